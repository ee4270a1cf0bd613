#include "oracle/names.h"

#include <utility>

#include "checkpoint/limits.h"
#include "checkpoint/tree.h"

namespace oracle {

using checkpoint::Fused;
using checkpoint::NameRule;
using checkpoint::Parallel;
using checkpoint::ParameterRule;
using checkpoint::PipelineNumbering;
using checkpoint::Result;
using checkpoint::Rules;
using checkpoint::Status;
using checkpoint::TemplateMatch;
using checkpoint::Value;

namespace {

constexpr char kUniversalInfo[] = "universal_checkpoint_info";

std::string_view ParallelWord(Parallel parallel) {
  switch (parallel) {
    case Parallel::kReplicated:
      return "replicated";
    case Parallel::kColumn:
      return "column";
    case Parallel::kRow:
      return "row";
    case Parallel::kVocabulary:
      return "vocabulary";
  }
  return "replicated";
}

// The pattern lists of the dictionary, and of parameter_with_sub_params, by key.
std::map<std::string, std::vector<std::string>> PatternLists(const Value& info) {
  std::map<std::string, std::vector<std::string>> lists;
  const checkpoint::Items* items = checkpoint::MappingItems(info);
  if (items == nullptr) return lists;
  for (const auto& [key, value] : *items) {
    const auto name = checkpoint::AsString(key);
    const std::vector<Value>* patterns = checkpoint::SequenceItems(value);
    if (!name || patterns == nullptr) continue;
    for (const Value& pattern : *patterns) {
      if (const auto text = checkpoint::AsString(pattern)) lists[*name].push_back(*text);
    }
  }
  return lists;
}

// Is this layer number of a file what the field of the template stands for?
bool NumbersFit(const TemplateMatch& match, const PipelineNumbering& numbering, int64_t layers) {
  if (match.embedding && *match.embedding != numbering.embedding) return false;
  if (match.layer &&
      (*match.layer < numbering.first_layer || *match.layer >= numbering.first_layer + layers))
    return false;
  if (match.final_norm &&
      *match.final_norm != numbering.first_layer + layers + numbering.final_after)
    return false;
  return !match.head || *match.head == numbering.first_layer + layers + numbering.head_after;
}

}  // namespace

Result<Naming> Naming::Make(NamingInput input) {
  Naming naming;
  if (!input.builtin.empty()) {
    CK_TRY(naming.builtin_,
           checkpoint::ParseRules(checkpoint::BuiltinRulesJson(input.builtin), input.builtin));
    naming.templates_ = naming.builtin_->names;
    naming.numbering_ = naming.builtin_->numbering;
    naming.cuts_ = naming.builtin_->cuts;
  }
  if (input.user_rules) {
    if (!input.user_rules->names.empty()) naming.templates_ = input.user_rules->names;
    if (input.user_rules->numbering) naming.numbering_ = input.user_rules->numbering;
    if (!input.user_rules->cuts.empty()) naming.cuts_ = input.user_rules->cuts;
  }
  naming.patterns_ = PatternLists(input.universal_info);
  naming.input_ = std::move(input);
  if (naming.input_.pipelined && !naming.templates_.empty() && !naming.numbering_)
    naming.numbering_ = PipelineNumbering{};
  naming.CountLayers();
  naming.FindGatedLayers();
  return naming;
}

// An up projection with twice as many rows as the down projection has columns holds gate and up.
// Both are cut over the same ranks, so one rank's shards tell; biases follow their weights.
void Naming::FindGatedLayers() {
  const std::string up = "dense_h_to_4h.weight", down = "dense_4h_to_h.weight";
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, shape] : input_.shapes) shapes[Canonical(name)] = shape;
  for (const auto& [canonical, shape] : shapes) {
    if (!canonical.ends_with(up) || shape.size() != 2) continue;
    const std::string stem = canonical.substr(0, canonical.size() - up.size());
    const auto other = shapes.find(stem + down);
    if (other == shapes.end() || other->second.size() != 2 || other->second[1] <= 0 ||
        shape[0] != 2 * other->second[1])
      continue;
    gated_.insert(canonical);
    gated_.insert(stem + "dense_h_to_4h.bias");
  }
}

// From args, else: as many consecutive layer numbers as have the names that the first transformer
// layer has.
void Naming::CountLayers() {
  const auto told = checkpoint::AsInt(checkpoint::Get(input_.args, "num_layers"));
  if (told && *told >= 0 && *told <= checkpoint::kRanksMax) {
    layers_ = *told;
    return;
  }
  if (!numbering_) return;
  std::map<int64_t, std::set<std::string>> names_of_layer;
  for (const std::string& name : input_.names) {
    const auto match = checkpoint::MatchTemplate("{layer}.{rest}", name);
    if (match && match->layer) names_of_layer[*match->layer].insert(match->rest);
  }
  const auto first = names_of_layer.find(numbering_->first_layer);
  if (first == names_of_layer.end()) return;
  for (auto next = first; next != names_of_layer.end(); ++next) {
    if (next->first != numbering_->first_layer + layers_ || next->second != first->second) break;
    ++layers_;
  }
}

std::optional<std::string> Naming::CanonicalBy(const std::vector<NameRule>& rules,
                                               const std::string& name) const {
  for (const NameRule& rule : rules) {
    const std::string& text_template = input_.pipelined ? rule.pipeline : rule.plain;
    if (text_template.empty()) continue;
    auto match = checkpoint::MatchTemplate(text_template, name);
    if (!match) continue;
    if (input_.pipelined && numbering_) {
      if (!NumbersFit(*match, *numbering_, layers_)) continue;
      if (match->layer) match->layer = *match->layer - numbering_->first_layer;
    }
    return checkpoint::FillTemplate(rule.canonical, *match);
  }
  return std::nullopt;
}

std::string Naming::Canonical(const std::string& name) const {
  return CanonicalBy(templates_, name).value_or(name);
}

Status Naming::ApplyRules(const Rules& rules, const std::string& origin,
                          ParameterKind& kind) const {
  for (const checkpoint::TiedRule& tied : rules.tied) {
    CK_TRY(const bool matches, checkpoint::MatchesWhole(tied.canonical, kind.canonical));
    if (matches) kind.stale_copy = kind.stale_copy || tied.stale_copy;
  }
  const bool swiglu = checkpoint::AsBool(checkpoint::Get(input_.args, "swiglu")).value_or(false);
  for (const ParameterRule& rule : rules.parameters) {
    if (rule.only_with_swiglu && !swiglu) continue;
    CK_TRY(const bool matches, checkpoint::MatchesWhole(rule.canonical, kind.canonical));
    if (!matches) continue;
    if (!kind.named) {
      kind.named = true;
      kind.parallel = rule.parallel;
      kind.rule = origin + ": " + rule.canonical;
    } else if (kind.parallel != rule.parallel) {
      if (kind.against_file) return checkpoint::Done{};  // the files' own word weighs more
      kind.disagreement = kind.rule + " says " + std::string(ParallelWord(kind.parallel)) + ", " +
                          origin + " says " + std::string(ParallelWord(rule.parallel));
      return checkpoint::Done{};
    }
    if (kind.fused == Fused::kNone) kind.fused = rule.fused;
    if (kind.sub_parameter_rows.empty()) kind.sub_parameter_rows = rule.sub_parameter_rows;
    return checkpoint::Done{};
  }
  return checkpoint::Done{};
}

// Which list names the parameter; `named` is false where none does (the converter then concatenates
// on dimension 0).
Result<ParameterKind> Naming::UniversalKind(const std::string& name) const {
  struct Meaning {
    const char* key;
    Parallel parallel;
    Fused fused;
  };
  static constexpr Meaning kMeanings[] = {
      {"tp_replicated_parameter_patterns", Parallel::kReplicated, Fused::kNone},
      {"parameter_to_average_patterns", Parallel::kReplicated, Fused::kNone},
      {"parameter_with_2_sub_params_cat_dim_0", Parallel::kColumn, Fused::kGatedLinear},
      {"parameter_with_row_parallelism_patterns", Parallel::kRow, Fused::kNone},
      {"vocabulary_parameter_patterns", Parallel::kVocabulary, Fused::kNone},
  };
  ParameterKind kind;
  for (const Meaning& meaning : kMeanings) {
    const auto list = patterns_.find(meaning.key);
    if (list == patterns_.end()) continue;
    for (const std::string& pattern : list->second) {
      CK_TRY(const bool matches, checkpoint::MatchesPrefix(pattern, name));
      if (!matches) continue;
      kind.named = true;
      kind.parallel = meaning.parallel;
      kind.fused = meaning.fused;
      kind.rule = std::string(kUniversalInfo) + ": " + pattern;
      return kind;
    }
  }
  return kind;
}

namespace {

// parameter_with_sub_params: [{patterns, shape: [[rows, rows, rows], columns], partition_dim}].
Result<ParameterKind> SubParameterKind(const Value& info, const std::string& name) {
  ParameterKind kind;
  const Value list = checkpoint::Get(info, "parameter_with_sub_params");
  const std::vector<Value>* entries = checkpoint::SequenceItems(list);
  if (entries == nullptr) return kind;
  for (const Value& entry : *entries) {
    const Value patterns = checkpoint::Get(entry, "patterns"),
                shape = checkpoint::Get(entry, "shape");
    const auto dimension = checkpoint::AsInt(checkpoint::Get(entry, "partition_dim"));
    const std::vector<Value>* texts = checkpoint::SequenceItems(patterns);
    const std::vector<Value>* extents = checkpoint::SequenceItems(shape);
    if (texts == nullptr || extents == nullptr || !dimension || *dimension < 0 || *dimension > 1 ||
        *dimension >= static_cast<int64_t>(extents->size())) {
      continue;
    }
    for (const Value& text : *texts) {
      CK_TRY(const bool matches,
             checkpoint::MatchesPrefix(checkpoint::AsString(text).value_or("$^"), name));
      if (!matches) continue;
      kind.named = true;
      kind.parallel = *dimension == 0 ? Parallel::kColumn : Parallel::kRow;
      kind.sub_parameter_rows = checkpoint::AsIntList((*extents)[static_cast<size_t>(*dimension)])
                                    .value_or(std::vector<int64_t>());
      kind.rule = std::string(kUniversalInfo) + ": parameter_with_sub_params";
      return kind;
    }
  }
  return kind;
}

}  // namespace

Status Naming::ApplyUniversal(const std::string& name, ParameterKind& kind) const {
  CK_TRY(ParameterKind said, UniversalKind(name));
  if (!said.named) {
    CK_TRY(said, SubParameterKind(input_.universal_info, name));
  }
  if (!said.named) return checkpoint::Done{};
  if (!kind.named) {
    kind.named = true;
    kind.parallel = said.parallel;
    kind.fused = said.fused;
    kind.sub_parameter_rows = said.sub_parameter_rows;
    kind.rule = said.rule;
  } else if (kind.parallel != said.parallel) {
    kind.against_file = true;
    kind.disagreement = kind.rule + " says " + std::string(ParallelWord(kind.parallel)) + ", " +
                        said.rule + " says " + std::string(ParallelWord(said.parallel));
  }
  return checkpoint::Done{};
}

Result<ParameterKind> Naming::KindOf(const std::string& name) const {
  ParameterKind kind;
  kind.canonical = Canonical(name);
  if (input_.user_rules)
    CK_DO(ApplyRules(*input_.user_rules, "rules " + input_.user_rules->name, kind));
  const bool declared = kind.named;
  CK_DO(ApplyUniversal(name, kind));
  if (builtin_) CK_DO(ApplyRules(*builtin_, "built-in " + builtin_->name, kind));
  const bool any_list = patterns_.count("tp_replicated_parameter_patterns") > 0 ||
                        patterns_.count("parameter_with_row_parallelism_patterns") > 0;
  if (!kind.named && !builtin_ && any_list) {
    kind.named = true;
    kind.parallel = Parallel::kColumn;
    kind.rule = std::string(kUniversalInfo) + ": in no list, dimension 0";
  }
  const bool plain_column = kind.named && kind.parallel == Parallel::kColumn &&
                            kind.fused == Fused::kNone && kind.sub_parameter_rows.empty();
  if (!declared && plain_column && gated_.count(kind.canonical) > 0) {
    kind.fused = Fused::kGatedLinear;
    kind.rule += ", gated: twice as many rows as the down projection has columns";
  }
  return kind;
}

checkpoint::GroupRule Naming::group_rule() const {
  if (input_.user_rules && input_.user_rules->group_rule != checkpoint::GroupRule::kFromFiles)
    return input_.user_rules->group_rule;
  return builtin_ ? builtin_->group_rule : checkpoint::GroupRule::kFromFiles;
}

std::string Naming::origin() const {
  std::string origin;
  const auto add = [&](const std::string& text) { origin += (origin.empty() ? "" : ", ") + text; };
  if (input_.user_rules) add("rules " + input_.user_rules->name);
  if (!checkpoint::IsNone(input_.universal_info)) add(kUniversalInfo);
  if (builtin_) add("built-in " + builtin_->name);
  return origin.empty() ? "none" : origin;
}

std::optional<checkpoint::QkvLayout> Naming::qkv_layout() const {
  return input_.user_rules ? input_.user_rules->qkv_layout : std::nullopt;
}

std::vector<int64_t> Naming::LayerNumbers() const {
  std::vector<int64_t> numbers;
  if (!numbering_ || layers_ <= 0 || !builtin_) return numbers;
  numbers.push_back(numbering_->embedding);
  for (int64_t layer = 0; layer < layers_; ++layer)
    numbers.push_back(numbering_->first_layer + layer);
  numbers.push_back(numbering_->first_layer + layers_ + numbering_->final_after);
  if (checkpoint::AsBool(checkpoint::Get(input_.args, "untie_embeddings_and_output_weights"))
          .value_or(false)) {
    numbers.push_back(numbering_->first_layer + layers_ + numbering_->head_after);
  }
  return numbers;
}

}  // namespace oracle
