#include <memory>

#include "checkpoint/file.h"
#include "cli/command.h"
#include "cli/report.h"

namespace cli {

namespace {

constexpr int64_t kCertificateBytesMax = 1LL << 30;

struct VerifyFlags {
  std::string certificate, source, target;
  bool json = false;
};

int RunVerify(const VerifyFlags& flags) {
  const auto text = checkpoint::ReadSmallFile(flags.certificate, kCertificateBytesMax);
  if (!text.ok()) return ReportError(text.error(), flags.json);
  const auto certificate =
      nlohmann::ordered_json::parse(text.value(), nullptr, /*allow_exceptions=*/false);
  if (certificate.is_discarded() || !certificate.is_object()) {
    return ReportError({checkpoint::ErrorCode::kUsage, "no JSON object", "a certificate",
                        flags.certificate, "Give a file written by `certify --certificate`."},
                       flags.json);
  }
  const auto judgement = certify::VerifyCertificate(certificate, flags.source, flags.target);
  if (!judgement.ok()) {
    checkpoint::Error error = judgement.error();
    // What is wrong in the certificate itself is told by its entry.
    if (error.code == checkpoint::ErrorCode::kUsage)
      error.where = flags.certificate + ", entry " + error.where;
    return ReportError(error, flags.json);
  }
  if (flags.json) {
    PrintJson(certify::JudgementJson(judgement.value(), /*certificate=*/false));
  } else {
    PrintJudgement(judgement.value(), /*certificate=*/false);
  }
  return ExitCode(judgement.value().verdict);
}

}  // namespace

void AddVerifyCommand(CLI::App& root, int& exit_code) {
  auto flags = std::make_shared<VerifyFlags>();
  CLI::App* app = root.add_subcommand("verify", "are these still the files that were certified?");
  app->add_option("certificate", flags->certificate, "certificate (JSON)")->required();
  app->add_option("source", flags->source, "run folder or step folder")->required();
  app->add_option("target", flags->target, "run folder or step folder")->required();
  app->add_flag("--json", flags->json, "machine-readable output");
  app->callback([flags, &exit_code] { exit_code = RunVerify(*flags); });
}

}  // namespace cli
