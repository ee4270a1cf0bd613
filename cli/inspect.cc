#include <fmt/core.h>

#include <memory>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/report.h"

namespace cli {

namespace {

struct InspectFlags {
  std::string checkpoint;
  DeclarationFlags declarations;
  bool json = false;
};

std::string Joined(const nlohmann::ordered_json& list, const char* separator) {
  std::string joined;
  for (const auto& item : list) {
    if (!joined.empty()) joined += separator;
    joined += item.is_string() ? item.get<std::string>() : item.dump();
  }
  return joined;
}

void PrintSummary(const nlohmann::ordered_json& summary) {
  if (summary.contains("error")) {
    const auto& error = summary["error"];
    fmt::print("{}: {}: {}\n", error.value("where", ""), error.value("code", ""),
               error.value("found", ""));
    PrintDamage(summary["damage"]);
    return;
  }
  const auto& topology = summary["topology"];
  fmt::print("{} checkpoint, step {}: TP={} PP={} DP={}, ZeRO stage {}, {}\n",
             summary.value("format", "?"), summary["step"].dump(), topology["tp"].dump(),
             topology["pp"].dump(), topology["dp"].dump(), summary["zero_stage"].dump(),
             summary.value("dtype", "?"));
  for (const char* key : {"wrapper", "layout", "rules", "framework_version"}) {
    if (summary.contains(key) && summary[key].is_string()) {
      fmt::print("  {:<18} {}\n", key, summary[key].get<std::string>());
    }
  }
  for (const auto& finding : summary["file_findings"]) {
    fmt::print("  {:<18} {}\n", finding.value("severity", ""), finding.value("text", ""));
  }
  if (!summary.value("complete", false)) {
    fmt::print("  {:<18} what follows is what the files that are there say\n", "INCOMPLETE");
  }
  fmt::print("\n{:<62} {:<16} {:<9} {:<12} {:<4} {}\n", "tensor", "shape", "dtype", "parallel",
             "dim", "states");
  for (const auto& tensor : summary["tensors"]) {
    fmt::print("{:<62} {:<16} {:<9} {:<12} {:<4} {}\n", tensor.value("name", "?"),
               "[" + Joined(tensor["shape"], ", ") + "]", tensor.value("dtype", ""),
               tensor.value("parallel", ""), tensor["partition_dim"].dump(),
               tensor.contains("alias_of") && tensor["alias_of"].is_string()
                   ? "alias of " + tensor["alias_of"].get<std::string>()
                   : Joined(tensor["states"], " "));
  }
  if (summary.contains("damage")) PrintDamage(summary["damage"]);
}

int RunInspect(const InspectFlags& flags) {
  const auto declared = ToDeclared(flags.declarations);
  if (!declared.ok()) return ReportError(declared.error(), flags.json);
  const auto summary = certify::Inspect(flags.checkpoint, declared.value());
  if (!summary.ok()) return ReportError(summary.error(), flags.json);
  if (flags.json) {
    PrintJson(summary.value());
  } else {
    PrintSummary(summary.value());
  }
  return summary.value().value("complete", false) ? kExitDone : kExitBadInput;
}

}  // namespace

void AddInspectCommand(CLI::App& root, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* app = root.add_subcommand("inspect", "say what a checkpoint is and list its tensors");
  app->add_option("checkpoint", flags->checkpoint, "run folder or step folder")->required();
  app->add_flag("--json", flags->json, "machine-readable output");
  AddDeclarationFlags(*app, flags->declarations, /*with_only=*/false);
  app->callback([flags, &exit_code] { exit_code = RunInspect(*flags); });
}

}  // namespace cli
