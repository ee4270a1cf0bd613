// Parallel rules: the syntax, and the built-in rule sets as data. Which dimension a parameter is
// split on, how names of the pipeline and plain layouts correspond, what is fused in one tensor.
// What a rule *means* for bytes is coded in reshape/, oracle/ and fixtures/, each on its own.
// Syntax: docs/format/rules.md. Tested by rules_test.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/status.h"

namespace checkpoint {

enum class Parallel {
  kReplicated,  // the same on all tensor ranks
  kColumn,      // split on dimension 0
  kRow,         // split on dimension 1
  kVocabulary,  // split on dimension 0, with padding rows at the end
};
// What one tensor holds several of, along dimension 0.
enum class Fused { kNone, kQueryKeyValue, kGatedLinear };
// Order of the rows of a fused QKV tensor. Nothing in the files tells the first two apart: declared
// by rules or option.
enum class QkvLayout {
  // "per-head-group": per key/value head group [q.. k v]; checkpoint_version 2 and later.
  kPerHeadGroup,
  // "per-shard": [all q | all k | all v] in each tensor-parallel shard; also checkpoint_version 0.
  kPerShard,
  // "per-head-inner": [heads, head size, 3], q k v innermost; checkpoint_version 1.
  kPerHeadInner,
};
// Names as in JSON and options.
std::string_view QkvLayoutName(QkvLayout layout);
std::optional<QkvLayout> QkvLayoutFromName(std::string_view name);

// One correspondence of names. Templates: literal text with at most one {layer} (transformer layer
// index from 0 in canonical and plain names; file layer number in pipeline names, shifted by the
// numbering), one {rest} (one or more characters), {embedding}, {final}, {head} (file layer numbers
// by the numbering). An empty template: the layout has no such name.
struct NameRule {
  std::string canonical, pipeline, plain;
};

// Layer numbers of the pipeline layout: embedding = `embedding`; layer i = `first_layer` + i; final
// norm = `first_layer` + layers + `final_after`; head = `first_layer` + layers + `head_after`.
struct PipelineNumbering {
  int64_t embedding = 1, first_layer = 2, final_after = 0, head_after = 1;
};

// First match wins. `canonical` is an RE2 pattern that must match the whole canonical name.
struct ParameterRule {
  std::string canonical;
  Parallel parallel = Parallel::kReplicated;
  Fused fused = Fused::kNone;
  // The rule is passed over (the next ones are tried) where the model has no SwiGLU. Names alone do
  // not tell.
  bool only_with_swiglu = false;
  // Explicit sub-parameters of the full tensor along the split dimension; empty: none.
  std::vector<int64_t> sub_parameter_rows;
};

// A parameter that lives on two pipeline stages under one name. `stale_copy` marks the known
// exception: the copy on later stages is never trained (position embeddings of Megatron-DeepSpeed).
struct TiedRule {
  std::string canonical;  // RE2, whole name
  bool stale_copy = false;
  // Pipeline layer numbers that use it, where declared; empty: first and last stage.
  std::vector<int64_t> layers;
};

enum class GroupRule {
  // Groups as the files name them (param_shapes, optimizer ids).
  kFromFiles,
  // [parameters of 2 or more dimensions that do not end in .bias] [the rest]; weight decay on the
  // first.
  kMegatron,
  // As kMegatron, the first list cut in two at count / 2: three groups.
  kMegatronHalves,
};

struct Rules {
  std::string name;             // "megatron-deepspeed"
  std::vector<NameRule> names;  // empty: canonical names are the names
  std::optional<PipelineNumbering> numbering;
  std::vector<ParameterRule> parameters;
  std::vector<TiedRule> tied;
  GroupRule group_rule = GroupRule::kFromFiles;
  std::optional<QkvLayout> qkv_layout;
  std::vector<int64_t> cuts;  // pipeline stage boundaries as layer numbers, where declared
};

// Names as in JSON: "vocabulary", "gated-linear", "megatron-halves".
std::string_view ParallelName(Parallel parallel);
std::string_view FusedName(Fused fused);
std::string_view GroupRuleName(GroupRule group_rule);

// JSON as docs/format/rules.md has it. Errors: kMalformedRules (with the JSON path),
// kLimitExceeded.
Result<Rules> ParseRules(std::string_view text, const std::string& where);

// Built-in sets, as JSON text in the same syntax: "megatron-deepspeed" and
// "megatron-deepspeed-bigscience".
std::vector<std::string_view> BuiltinRuleNames();
std::string_view BuiltinRulesJson(std::string_view name);  // REQUIRES: one of BuiltinRuleNames()

// The first parameter rule that names `canonical`; null where none does (such a parameter is
// refused by the callers, never guessed). Rules with only_with_swiglu are passed over unless
// `swiglu`. REQUIRES: `rules` came from ParseRules.
const ParameterRule* FirstParameterRule(const Rules& rules, std::string_view canonical,
                                        bool swiglu);
// Likewise for tied rules.
const TiedRule* FirstTiedRule(const Rules& rules, std::string_view canonical);

// The two forms of names in a PipelineModule: "<layer>.<rest>" and "tied_modules.<key>.<rest>";
// `rest` is the key in a layer file. Nullopt for any other name.
struct PipelineName {
  std::optional<int64_t> layer;
  std::string tied_key;
  std::string rest;
};
std::optional<PipelineName> SplitPipelineName(std::string_view name);

// Template matching and filling, pure text. Match gives {layer}, {embedding}, {final}, {head} as
// the integers found, and {rest}.
struct TemplateMatch {
  std::optional<int64_t> layer, embedding, final_norm, head;
  std::string rest;
};
// Nullopt where the text does not fit; numbers have no leading zeros. An empty template fits
// nothing.
std::optional<TemplateMatch> MatchTemplate(std::string_view text_template, std::string_view text);
// REQUIRES: every field of the template is there.
std::string FillTemplate(std::string_view text_template, const TemplateMatch& fields);

// Pattern matching by RE2 (linear time, no backtracking); compiled patterns are kept. Errors:
// kMalformedRules for a pattern that does not compile, kLimitExceeded for one that is too long.
Result<bool> MatchesWhole(std::string_view pattern, std::string_view text);
Result<bool> MatchesPrefix(std::string_view pattern, std::string_view text);  // Python's re.match

}  // namespace checkpoint
