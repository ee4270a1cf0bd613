#include <memory>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/report.h"

namespace cli {

namespace {

struct CheckFlags {
  std::string checkpoint, junit;
  DeclarationFlags declarations;
  bool json = false;
};

int RunCheck(const CheckFlags& flags) {
  const auto paths =
      CheckReportPaths({.json = "", .html = "", .junit = flags.junit}, {flags.checkpoint});
  if (!paths.ok()) return ReportError(paths.error(), flags.json);
  const auto declared = ToDeclared(flags.declarations);
  if (!declared.ok()) return ReportError(declared.error(), flags.json);
  const auto judgement = certify::Check(flags.checkpoint, declared.value());
  if (!judgement.ok()) return ReportError(judgement.error(), flags.json);
  const auto written = WriteReports({.json = "", .html = "", .junit = flags.junit},
                                    judgement.value(), nlohmann::ordered_json());
  if (!written.ok()) return ReportError(written.error(), flags.json);
  if (flags.json) {
    PrintJson(certify::JudgementJson(judgement.value(), /*certificate=*/false));
  } else {
    PrintJudgement(judgement.value(), /*certificate=*/false);
  }
  return ExitCode(judgement.value().verdict);
}

}  // namespace

void AddCheckCommand(CLI::App& root, int& exit_code) {
  auto flags = std::make_shared<CheckFlags>();
  CLI::App* app = root.add_subcommand("check", "laws S1-S8 on one checkpoint");
  app->add_option("checkpoint", flags->checkpoint, "run folder or step folder")->required();
  app->add_flag("--json", flags->json, "machine-readable output");
  app->add_option("--junit", flags->junit, "write a JUnit report here");
  AddDeclarationFlags(*app, flags->declarations, /*with_only=*/true);
  app->callback([flags, &exit_code] { exit_code = RunCheck(*flags); });
}

}  // namespace cli
