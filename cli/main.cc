// shardproof: reshapes distributed-training checkpoints and proves the result.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <exception>
#include <new>
#include <system_error>

#include "cli/command.h"
#include "cli/report.h"

namespace {

int Run(int argument_count, char** arguments) {
  CLI::App app{"shardproof reshapes distributed-training checkpoints and proves the result."};
  app.set_version_flag("--version", SHARDPROOF_VERSION);
  app.require_subcommand(1);
  app.footer("Exit codes: 0 done and certified, 1 refuted, 2 bad input or usage, 3 undecided.");
  int exit_code = cli::kExitDone;
  cli::AddInspectCommand(app, exit_code);
  cli::AddCheckCommand(app, exit_code);
  cli::AddReshapeCommand(app, exit_code);
  cli::AddCertifyCommand(app, exit_code);
  cli::AddVerifyCommand(app, exit_code);
  cli::AddCompareCommand(app, exit_code);
  cli::AddDigestCommand(app, exit_code);
  cli::AddFixtureCommand(app, exit_code);
  try {
    app.parse(argument_count, arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? cli::kExitDone : cli::kExitBadInput;
  }
  return exit_code;
}

}  // namespace

int main(int argument_count, char** arguments) {
  // Above a file size limit a write shall fail with an error that names the file.
  std::signal(SIGXFSZ, SIG_IGN);
  // Whatever a library throws past its room is our bug; it must not look like a verdict.
  try {
    return Run(argument_count, arguments);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "shardproof: out of memory\n");
    return cli::kExitBadInput;
  } catch (const std::system_error& error) {
    // Standard output cannot be written: a full disk behind a redirection.
    fmt::print(stderr, "shardproof: {}\n", error.what());
    return cli::kExitBadInput;
  } catch (const std::exception& error) {
    fmt::print(stderr, "shardproof: internal error: {}\n", error.what());
    std::abort();
  }
}
