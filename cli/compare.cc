#include <fmt/core.h>

#include <memory>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/report.h"

namespace cli {

namespace {

struct CompareFlags {
  std::string first, second, second_tag;
  DeclarationFlags declarations;
  bool json = false;
};

int RunCompare(const CompareFlags& flags) {
  const auto first_declared = ToDeclared(flags.declarations);
  if (!first_declared.ok()) return ReportError(first_declared.error(), flags.json);
  certify::Declared second_declared = first_declared.value();
  second_declared.tag = flags.second_tag;
  const auto differences =
      certify::Compare(flags.first, flags.second, first_declared.value(), second_declared);
  if (!differences.ok()) return ReportError(differences.error(), flags.json);
  PrintJson(differences.value());
  return differences.value().value("equal", false) ? kExitDone : kExitRefuted;
}

}  // namespace

void AddCompareCommand(CLI::App& root, int& exit_code) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* app =
      root.add_subcommand("compare", "differences between two checkpoints in logical space");
  app->add_option("first", flags->first, "run folder or step folder")->required();
  app->add_option("second", flags->second, "run folder or step folder")->required();
  app->add_option("--second-tag", flags->second_tag, "step folder of the second");
  app->add_flag("--json", flags->json, "machine-readable output");
  AddDeclarationFlags(*app, flags->declarations, /*with_only=*/true);
  app->callback([flags, &exit_code] { exit_code = RunCompare(*flags); });
}

}  // namespace cli
