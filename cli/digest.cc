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

void PrintDigest(const nlohmann::ordered_json& digest) {
  for (const auto& [name, states] : digest["tensors"].items()) {
    for (const auto& [state, hex] : states.items()) {
      if (state == "canonical") continue;
      fmt::print("{}  {} {}\n", hex.get<std::string>(), name, state);
    }
  }
  for (const char* whole : {"whole", "whole_of_selection", "whole_of_what_is_there"})
    if (digest.contains(whole)) fmt::print("{}  {}\n", digest[whole].get<std::string>(), whole);
}

// On standard error, with --json too: a digest is filed by whoever reads only its last line.
void PrintDigestNotices(const nlohmann::ordered_json& digest) {
  for (const auto& notice : digest["notices"]) {
    fmt::print(stderr, "notice {}: {}\n", notice.value("kind", ""), notice.value("text", ""));
    for (const auto& name : notice["names"]) fmt::print(stderr, "  {}\n", name.get<std::string>());
  }
  if (!digest.value("complete", false))
    fmt::print(stderr, "INCOMPLETE: this is no digest of the whole checkpoint\n");
}

int RunDigest(const DigestFlags& flags) {
  const auto declared = ToDeclared(flags.declarations);
  if (!declared.ok()) return ReportError(declared.error(), flags.json);
  const auto digest = certify::Digest(flags.checkpoint, declared.value(), flags.algorithm);
  if (!digest.ok()) return ReportError(digest.error(), flags.json);
  if (flags.json) {
    PrintJson(digest.value());
  } else {
    PrintDigest(digest.value());
  }
  PrintDigestNotices(digest.value());
  return digest.value().value("complete", false) ? kExitDone : kExitBadInput;
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
