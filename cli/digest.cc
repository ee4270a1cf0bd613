#include <fmt/core.h>

#include <memory>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/report.h"

namespace cli {

namespace {

struct DigestFlags {
  std::string checkpoint, algorithm = "xxh3-128";
  DeclarationFlags declarations;
  bool json = false;
};

int RunDigest(const DigestFlags& flags) {
  const auto declared = ToDeclared(flags.declarations);
  if (!declared.ok()) return ReportError(declared.error(), flags.json);
  const auto digest = certify::Digest(flags.checkpoint, declared.value(), flags.algorithm);
  if (!digest.ok()) return ReportError(digest.error(), flags.json);
  if (flags.json) {
    PrintJson(digest.value());
    return kExitDone;
  }
  for (const auto& [name, states] : digest.value()["tensors"].items()) {
    for (const auto& [state, hex] : states.items()) {
      if (state == "canonical") continue;
      fmt::print("{}  {} {}\n", hex.get<std::string>(), name, state);
    }
  }
  const char* whole = flags.declarations.only.empty() ? "whole" : "whole_of_selection";
  fmt::print("{}  {}\n", digest.value()[whole].get<std::string>(), whole);
  return kExitDone;
}

}  // namespace

void AddDigestCommand(CLI::App& root, int& exit_code) {
  auto flags = std::make_shared<DigestFlags>();
  CLI::App* app = root.add_subcommand(
      "digest", "a digest per logical tensor and state that no topology, stage or layout changes");
  app->add_option("checkpoint", flags->checkpoint, "run folder or step folder")->required();
  app->add_option("--algorithm", flags->algorithm, "xxh3-128 or sha256")
      ->check(CLI::IsMember({"xxh3-128", "sha256"}))
      ->capture_default_str();
  app->add_flag("--json", flags->json, "machine-readable output");
  AddDeclarationFlags(*app, flags->declarations, /*with_only=*/true);
  app->callback([flags, &exit_code] { exit_code = RunDigest(*flags); });
}

}  // namespace cli
