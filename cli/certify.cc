#include <memory>

#include "cli/certify_step.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/report.h"

namespace cli {

namespace {

struct CertifyFlags {
  std::string source, target, target_tag, param_groups_file;
  DeclarationFlags declarations;
  ReportFiles reports;
  bool json = false;
};

int RunCertify(const CertifyFlags& flags) {
  const auto paths = CheckReportPaths(flags.reports, {flags.source, flags.target});
  if (!paths.ok()) return ReportError(paths.error(), flags.json);
  const auto source_declared = ToDeclared(flags.declarations);
  if (!source_declared.ok()) return ReportError(source_declared.error(), flags.json);
  certify::Declared target_declared = source_declared.value();
  target_declared.tag = flags.target_tag;
  if (!flags.param_groups_file.empty()) {
    const auto groups = ReadParamGroups(flags.param_groups_file);
    if (!groups.ok()) return ReportError(groups.error(), flags.json);
    target_declared.param_groups = flags.param_groups_file;
    target_declared.declared_groups = groups.value();
  }
  return CertifyAndReport({.source = flags.source,
                           .target = flags.target,
                           .source_declared = source_declared.value(),
                           .target_declared = target_declared,
                           .reports = flags.reports,
                           .json = flags.json});
}

}  // namespace

int CertifyAndReport(const CertifyStep& step) {
  const auto judgement =
      certify::Certify(step.source, step.target, step.source_declared, step.target_declared);
  if (!judgement.ok()) return ReportError(judgement.error(), step.json);
  const bool certificate_wanted =
      !step.reports.json.empty() || !step.reports.html.empty() || !step.reports.junit.empty();
  if (certificate_wanted) {
    const auto certificate = certify::MakeCertificate(judgement.value(), step.source, step.target,
                                                      step.source_declared, step.target_declared);
    if (!certificate.ok()) return ReportError(certificate.error(), step.json);
    const auto written = WriteReports(step.reports, judgement.value(), certificate.value());
    if (!written.ok()) return ReportError(written.error(), step.json);
  }
  if (step.json) {
    PrintJson(certify::JudgementJson(judgement.value(), /*certificate=*/true));
  } else {
    PrintJudgement(judgement.value(), /*certificate=*/true);
  }
  return ExitCode(judgement.value().verdict);
}

void AddReportFlags(CLI::App& app, ReportFiles& files) {
  app.add_option("--certificate", files.json, "write the certificate (JSON) here");
  app.add_option("--html", files.html, "write the certificate as one HTML page here");
  app.add_option("--junit", files.junit, "write a JUnit report here");
}

void AddCertifyCommand(CLI::App& root, int& exit_code) {
  auto flags = std::make_shared<CertifyFlags>();
  CLI::App* app =
      root.add_subcommand("certify", "laws R1-R8: does the target hold the same state?");
  app->add_option("source", flags->source, "run folder or step folder")->required();
  app->add_option("target", flags->target, "run folder or step folder")->required();
  app->add_option("--target-tag", flags->target_tag, "step folder of the target");
  app->add_option("--param-groups", flags->param_groups_file,
                  "JSON list of hyper-parameter dictionaries, one a group (elastic sources)");
  app->add_flag("--json", flags->json, "machine-readable output");
  AddReportFlags(*app, flags->reports);
  AddDeclarationFlags(*app, flags->declarations, /*with_only=*/true);
  app->callback([flags, &exit_code] { exit_code = RunCertify(*flags); });
}

}  // namespace cli
