#include <fmt/core.h>

#include <memory>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/report.h"

namespace cli {

namespace {

using nlohmann::ordered_json;

constexpr int64_t kLinesShown = 40;  // of a kind; --json has all

struct CompareFlags {
  std::string first, second, second_tag;
  DeclarationFlags declarations;
  bool json = false;
};

// "different   TEXT", one an entry; entries are texts or have one.
void PrintLines(const char* word, const ordered_json& entries) {
  int64_t shown = 0;
  for (const auto& entry : entries) {
    if (shown == kLinesShown) {
      fmt::print("{:<10} ... {} more; --json lists all\n", word,
                 static_cast<int64_t>(entries.size()) - shown);
      return;
    }
    ++shown;
    fmt::print("{:<10} {}\n", word,
               entry.is_string() ? entry.get<std::string>() : entry.value("text", ""));
    if (entry.is_object() && entry.contains("names"))
      for (const auto& name : entry["names"])
        fmt::print("{:<10}   {}\n", "", name.get<std::string>());
  }
}

void PrintStates(const ordered_json& states) {
  for (const auto& [state, sums] : states.items()) {
    const auto differing = sums.value("differing", int64_t{0});
    fmt::print("{:<12} {:>12} elements compared, {}", state, sums.value("compared", int64_t{0}),
               differing == 0 ? std::string("all equal") : fmt::format("{} differ", differing));
    if (differing > 0) fmt::print(", by at most {} ulp", sums["max_ulp"].dump());
    if (sums["factor"].is_number()) fmt::print("; b is a times {}", sums["factor"].dump());
    if (sums.contains("cosine") && sums["cosine"].is_number())
      fmt::print("; norm of b is {:.6g} of a's, cosine {:.6g}", sums.value("norm_ratio", 0.0),
                 sums.value("cosine", 0.0));
    fmt::print("\n");
  }
}

void PrintComparison(const ordered_json& comparison) {
  PrintStates(comparison["states"]);
  PrintLines("only in a", comparison["only_in_a"]);
  PrintLines("only in b", comparison["only_in_b"]);
  PrintLines("one side", comparison["states_of_one_side"]);
  PrintLines("different", comparison["tensors"]);
  PrintLines("undecided", comparison["undecided"]);
  PrintLines("padding", comparison["padding"]);
  PrintLines("notice", comparison["notices"]);
  const ordered_json& factor = comparison["constant_factor"];
  if (factor.is_object())
    fmt::print("moments of b are those of a times {}, and {} for squares{}\n",
               factor["exp_avg"].dump(), factor["exp_avg_sq"].dump(),
               factor.value("is_square", false) ? " (its square): gradients of another scale" : "");
  fmt::print("verdict: {}\n", comparison.value("verdict", ""));
}

int ExitCodeOf(const ordered_json& comparison) {
  const std::string verdict = comparison.value("verdict", "");
  if (verdict == "same") return kExitDone;
  return verdict == "different" ? kExitRefuted : kExitUndecided;
}

int RunCompare(const CompareFlags& flags) {
  const auto first_declared = ToDeclared(flags.declarations);
  if (!first_declared.ok()) return ReportError(first_declared.error(), flags.json);
  certify::Declared second_declared = first_declared.value();
  second_declared.tag = flags.second_tag;
  const auto comparison =
      certify::Compare(flags.first, flags.second, first_declared.value(), second_declared);
  if (!comparison.ok()) return ReportError(comparison.error(), flags.json);
  if (flags.json) {
    PrintJson(comparison.value());
  } else {
    PrintComparison(comparison.value());
  }
  return ExitCodeOf(comparison.value());
}

}  // namespace

void AddCompareCommand(CLI::App& root, int& exit_code) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* app =
      root.add_subcommand("compare", "differences between two checkpoints in logical space");
  app->footer(
      "Exit codes: 0 same, 1 different, 2 bad input or usage, 3 undecided (nothing that was "
      "compared differs, but something was not compared).");
  app->add_option("first", flags->first, "run folder or step folder")->required();
  app->add_option("second", flags->second, "run folder or step folder")->required();
  app->add_option("--second-tag", flags->second_tag, "step folder of the second");
  app->add_flag("--json", flags->json, "machine-readable output");
  AddDeclarationFlags(*app, flags->declarations, /*with_only=*/true);
  app->callback([flags, &exit_code] { exit_code = RunCompare(*flags); });
}

}  // namespace cli
