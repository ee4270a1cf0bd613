// How a parameter is cut over tensor ranks, from three sources of rules in their order of
// precedence.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/tree.h"
#include "reshape/source.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::Fused;
using checkpoint::Get;
using checkpoint::Parallel;
using checkpoint::Result;
using checkpoint::Value;

std::vector<std::string> Patterns(const Value& info, std::string_view key) {
  std::vector<std::string> patterns;
  if (const auto* items = checkpoint::SequenceItems(Get(info, key))) {
    for (const Value& item : *items) {
      if (auto text = checkpoint::AsString(item)) patterns.push_back(std::move(*text));
    }
  }
  return patterns;
}

Result<bool> MatchesAny(const std::vector<std::string>& patterns, const std::string& name) {
  for (const std::string& pattern : patterns) {
    CK_TRY(const bool matches, checkpoint::MatchesPrefix(pattern, name));
    if (matches) return true;
  }
  return false;
}

// What universal_checkpoint_info says about one name. Its last resort, "everything else is
// concatenated on dimension 0", counts only where it was written for several tensor ranks: with
// one, the framework leaves the list of replicated names empty.
Result<std::optional<ParallelKind>> FromUniversal(const KindQuery& query, const Source& source) {
  const UniversalInfo& info = source.universal;
  if (!info.present) return std::optional<ParallelKind>{};
  CK_TRY(const bool vocabulary, MatchesAny(info.vocabulary, query.name));
  if (vocabulary) return std::optional<ParallelKind>({Parallel::kVocabulary, Fused::kNone, {}});
  for (const auto* list : {&info.replicated, &info.averaged}) {
    CK_TRY(const bool matches, MatchesAny(*list, query.name));
    if (matches) return std::optional<ParallelKind>({Parallel::kReplicated, Fused::kNone, {}});
  }
  CK_TRY(const bool two, MatchesAny(info.two_sub_parameters, query.name));
  if (two) return std::optional<ParallelKind>({Parallel::kColumn, Fused::kGatedLinear, {}});
  for (const auto& sub : info.sub_parameters) {
    CK_TRY(const bool matches, MatchesAny(sub.patterns, query.name));
    if (matches) return std::optional<ParallelKind>({Parallel::kColumn, Fused::kNone, sub.rows});
  }
  CK_TRY(const bool row, MatchesAny(info.row, query.name));
  if (row) return std::optional<ParallelKind>({Parallel::kRow, Fused::kNone, {}});
  const bool lists_replicated = !info.replicated.empty() || !info.averaged.empty();
  if (source.inventory.topology.tensor_parallel_size > 1 && lists_replicated) {
    return std::optional<ParallelKind>({Parallel::kColumn, Fused::kNone, {}});
  }
  return std::optional<ParallelKind>{};
}

std::optional<ParallelKind> FromRules(const std::optional<checkpoint::Rules>& rules,
                                      const KindQuery& query, bool swiglu) {
  if (!rules) return std::nullopt;
  const checkpoint::ParameterRule* rule =
      checkpoint::FirstParameterRule(*rules, query.canonical, swiglu);
  if (rule == nullptr) return std::nullopt;
  return ParallelKind{rule->parallel, rule->fused, rule->sub_parameter_rows};
}

void NoticeDisagreement(const KindQuery& query, const ParallelKind& used, const ParallelKind& other,
                        Source& source) {
  if (used.parallel == other.parallel) return;
  source.Notify("rules-disagree",
                fmt::format("{} by the rules in force, {} by the rules that come after them",
                            checkpoint::ParallelName(used.parallel),
                            checkpoint::ParallelName(other.parallel)),
                {query.name});
}

}  // namespace

Result<UniversalInfo> ReadUniversalInfo(const Value& model_root, const std::string& where) {
  UniversalInfo result;
  const Value info = Get(model_root, "universal_checkpoint_info");
  if (checkpoint::IsNone(info)) return result;
  result.present = true;
  result.vocabulary = Patterns(info, "vocabulary_parameter_patterns");
  result.replicated = Patterns(info, "tp_replicated_parameter_patterns");
  result.averaged = Patterns(info, "parameter_to_average_patterns");
  result.row = Patterns(info, "parameter_with_row_parallelism_patterns");
  result.two_sub_parameters = Patterns(info, "parameter_with_2_sub_params_cat_dim_0");
  result.pipeline_replicated = Patterns(info, "pipeline_replicated_parameter_patterns");
  const auto* items = checkpoint::SequenceItems(Get(info, "parameter_with_sub_params"));
  if (items == nullptr) return result;
  for (const Value& item : *items) {
    UniversalInfo::SubParameters sub;
    sub.patterns = Patterns(item, "patterns");
    const auto dimension = checkpoint::AsInt(Get(item, "partition_dim"));
    const auto* shape = checkpoint::SequenceItems(Get(item, "shape"));
    std::optional<std::vector<int64_t>> rows;
    if (dimension == 0 && shape != nullptr && !shape->empty()) {
      rows = checkpoint::AsIntList(shape->front());
      if (!rows) {
        if (const auto single = checkpoint::AsInt(shape->front()))
          rows = std::vector<int64_t>{*single};
      }
    }
    if (!rows) {
      return MakeError(ErrorCode::kUnsupported,
                       "parameter_with_sub_params " + checkpoint::Render(item, 80),
                       "sub-parameters on dimension 0", where,
                       "Give the layout of these parameters in a rules file.");
    }
    sub.rows = std::move(*rows);
    result.sub_parameters.push_back(std::move(sub));
  }
  return result;
}

Result<std::optional<ParallelKind>> FindParallelKind(const KindQuery& query, Source& source) {
  const std::optional<ParallelKind> user = FromRules(source.user_rules, query, source.swiglu);
  CK_TRY(const std::optional<ParallelKind> universal, FromUniversal(query, source));
  const std::optional<ParallelKind> builtin = FromRules(source.builtin_rules, query, source.swiglu);
  std::optional<ParallelKind> used;
  for (const auto& candidate : {user, universal, builtin}) {
    if (!candidate) continue;
    if (!used) {
      used = candidate;
      continue;
    }
    NoticeDisagreement(query, *used, *candidate, source);
    // The framework's lists know no fused query, key and value: the rules after them may add it,
    // where they agree otherwise.
    if (used->parallel == candidate->parallel && used->fused == Fused::kNone &&
        used->sub_parameter_rows.empty()) {
      used->fused = candidate->fused;
      used->sub_parameter_rows = candidate->sub_parameter_rows;
    }
  }
  return used;
}

}  // namespace reshape
