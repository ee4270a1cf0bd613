#include "cli/program.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <string_view>
#include <system_error>

#include "cli/command.h"
#include "cli/report.h"

namespace cli {
namespace {

std::string CommandNames(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names += (names.empty() ? "" : ", ") + command->get_name();
  return names;
}

// The command that the arguments name, or null.
const CLI::App* CommandOf(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? nullptr : chosen.front();
}

// The first argument that is no option: meant as a command where none was understood.
std::string FirstWord(int argument_count, const char* const* arguments) {
  for (int i = 1; i < argument_count; ++i)
    if (arguments[i][0] != '-') return arguments[i];
  return "";
}

checkpoint::Error UsageError(const CLI::App& app, const CLI::ParseError& error,
                             const std::string& first_word) {
  checkpoint::Error usage{checkpoint::ErrorCode::kUsage, error.what(), "", "command line", ""};
  const CLI::App* command = CommandOf(app);
  if (command != nullptr) {
    usage.expected =
        "the arguments that `" + app.get_name() + " " + command->get_name() + " --help` lists";
    usage.where = "arguments of " + command->get_name();
    usage.advice = "Compare with that list; nothing was read or written.";
    return usage;
  }
  usage.found = first_word.empty() ? "no command" : "unknown command '" + first_word + "'";
  usage.expected = "one of " + CommandNames(app);
  usage.advice = "`" + app.get_name() + " --help` says what each command does.";
  return usage;
}

}  // namespace

int RunProgram(int argument_count, const char* const* arguments, const std::string& version) {
  CLI::App app{"shardproof reshapes distributed-training checkpoints and proves the result."};
  app.name("shardproof");
  app.set_version_flag("--version", version);
  app.require_subcommand(1);
  app.footer("Exit codes: 0 done and certified, 1 refuted, 2 bad input or usage, 3 undecided.");
  int exit_code = kExitDone;
  AddInspectCommand(app, exit_code);
  AddCheckCommand(app, exit_code);
  AddReshapeCommand(app, exit_code);
  AddCertifyCommand(app, exit_code);
  AddVerifyCommand(app, exit_code);
  AddCompareCommand(app, exit_code);
  AddDigestCommand(app, exit_code);
  AddFixtureCommand(app, exit_code);
  try {
    app.parse(argument_count, arguments);
  } catch (const CLI::ParseError& error) {
    // Help and version arrive here too, with code 0.
    if (error.get_exit_code() == 0) return app.exit(error) == 0 ? kExitDone : kExitBadInput;
    bool json = false;
    for (int i = 1; i < argument_count; ++i)
      json = json || std::string_view(arguments[i]) == "--json";
    return ReportError(UsageError(app, error, FirstWord(argument_count, arguments)), json);
  } catch (const std::system_error& error) {
    // fmt throws where a print fails; what is still in the buffer fails in FinishOutput.
    fmt::print(stderr, "shardproof: standard output could not be written: {}\n", error.what());
    return kExitBadInput;
  }
  return FinishOutput(exit_code);
}

}  // namespace cli
