// The rule sets that ship with shardproof, in the syntax that users write (docs/format/rules.md).
#include <array>

#include "checkpoint/rules.h"

namespace checkpoint {
namespace {

// deepspeedai/Megatron-DeepSpeed: GPT and Llama models, pipeline and plain layout.
constexpr std::string_view kMegatronDeepSpeed = R"json({
  "name": "megatron-deepspeed",
  "names": [
    {"canonical": "embedding.{rest}", "pipeline": "tied_modules.embed.{rest}",
     "plain": "language_model.embedding.{rest}"},
    {"canonical": "embedding.{rest}", "pipeline": "{embedding}.{rest}",
     "plain": "language_model.embedding.{rest}"},
    {"canonical": "layers.{layer}.{rest}", "pipeline": "{layer}.{rest}",
     "plain": "language_model.encoder.layers.{layer}.{rest}"},
    {"canonical": "final_layernorm.{rest}", "pipeline": "{final}.{rest}",
     "plain": "language_model.encoder.final_layernorm.{rest}"},
    {"canonical": "output_layer.weight", "pipeline": "{head}.lm_head.weight",
     "plain": "language_model.output_layer.weight"}
  ],
  "numbering": {"embedding": 1, "first_layer": 2, "final_after": 0, "head_after": 1},
  "parameters": [
    {"canonical": "embedding\\.word_embeddings\\.weight", "parallel": "vocabulary"},
    {"canonical": "output_layer\\.weight", "parallel": "vocabulary"},
    {"canonical": "embedding\\.position_embeddings\\.weight", "parallel": "replicated"},
    {"canonical": "embedding\\.word_embeddings\\.norm\\.(weight|bias)", "parallel": "replicated"},
    {"canonical": "layers\\.\\d+\\.(input|post_attention)_layernorm\\.(weight|bias)",
     "parallel": "replicated"},
    {"canonical": "layers\\.\\d+\\.self_attention\\.query_key_value\\.(weight|bias)",
     "parallel": "column", "fused": "query-key-value"},
    {"canonical": "layers\\.\\d+\\.self_attention\\.dense\\.weight", "parallel": "row"},
    {"canonical": "layers\\.\\d+\\.self_attention\\.dense\\.bias", "parallel": "replicated"},
    {"canonical": "layers\\.\\d+\\.mlp\\.dense_h_to_4h\\.(weight|bias)",
     "parallel": "column", "fused": "gated-linear", "only_with_swiglu": true},
    {"canonical": "layers\\.\\d+\\.mlp\\.dense_h_to_4h\\.(weight|bias)", "parallel": "column"},
    {"canonical": "layers\\.\\d+\\.mlp\\.dense_4h_to_h\\.weight", "parallel": "row"},
    {"canonical": "layers\\.\\d+\\.mlp\\.dense_4h_to_h\\.bias", "parallel": "replicated"},
    {"canonical": "final_layernorm\\.(weight|bias)", "parallel": "replicated"},
    {"canonical": "(.+\\.)?inv_freq", "parallel": "replicated"}
  ],
  "tied": [
    {"canonical": "embedding\\.word_embeddings\\.weight"},
    {"canonical": "embedding\\.position_embeddings\\.weight", "stale_copy": true},
    {"canonical": "embedding\\.word_embeddings\\.norm\\.(weight|bias)", "stale_copy": true}
  ],
  "groups": "megatron"
}
)json";

// bigscience-workshop/Megatron-DeepSpeed: GPT and BLOOM. Layer 2 and the one behind the last
// transformer layer are functions without a file.
constexpr std::string_view kMegatronDeepSpeedBigScience = R"json({
  "name": "megatron-deepspeed-bigscience",
  "names": [
    {"canonical": "embedding.{rest}", "pipeline": "tied_modules.embed.{rest}",
     "plain": "language_model.embedding.{rest}"},
    {"canonical": "layers.{layer}.{rest}", "pipeline": "{layer}.{rest}",
     "plain": "language_model.encoder.layers.{layer}.{rest}"},
    {"canonical": "final_layernorm.{rest}", "pipeline": "{final}.{rest}",
     "plain": "language_model.encoder.final_layernorm.{rest}"}
  ],
  "numbering": {"embedding": 1, "first_layer": 3, "final_after": 1, "head_after": 2},
  "parameters": [
    {"canonical": "embedding\\.word_embeddings\\.weight", "parallel": "vocabulary"},
    {"canonical": "embedding\\.position_embeddings\\.weight", "parallel": "replicated"},
    {"canonical": "embedding\\.word_embeddings\\.norm\\.(weight|bias)", "parallel": "replicated"},
    {"canonical": "layers\\.\\d+\\.(input|post_attention)_layernorm\\.(weight|bias)",
     "parallel": "replicated"},
    {"canonical": "layers\\.\\d+\\.self_attention\\.query_key_value\\.(weight|bias)",
     "parallel": "column", "fused": "query-key-value"},
    {"canonical": "layers\\.\\d+\\.self_attention\\.dense\\.weight", "parallel": "row"},
    {"canonical": "layers\\.\\d+\\.self_attention\\.dense\\.bias", "parallel": "replicated"},
    {"canonical": "layers\\.\\d+\\.mlp\\.dense_h_to_4h\\.(weight|bias)",
     "parallel": "column", "fused": "gated-linear", "only_with_swiglu": true},
    {"canonical": "layers\\.\\d+\\.mlp\\.dense_h_to_4h\\.(weight|bias)", "parallel": "column"},
    {"canonical": "layers\\.\\d+\\.mlp\\.dense_4h_to_h\\.weight", "parallel": "row"},
    {"canonical": "layers\\.\\d+\\.mlp\\.dense_4h_to_h\\.bias", "parallel": "replicated"},
    {"canonical": "final_layernorm\\.(weight|bias)", "parallel": "replicated"},
    {"canonical": "(.+\\.)?inv_freq", "parallel": "replicated"}
  ],
  "tied": [
    {"canonical": "embedding\\.word_embeddings\\.weight"},
    {"canonical": "embedding\\.position_embeddings\\.weight", "stale_copy": true},
    {"canonical": "embedding\\.word_embeddings\\.norm\\.(weight|bias)", "stale_copy": true}
  ],
  "groups": "megatron-halves"
}
)json";

struct BuiltinRules {
  std::string_view name, json;
};
constexpr std::array<BuiltinRules, 2> kBuiltin = {{
    {"megatron-deepspeed", kMegatronDeepSpeed},
    {"megatron-deepspeed-bigscience", kMegatronDeepSpeedBigScience},
}};

}  // namespace

std::vector<std::string_view> BuiltinRuleNames() {
  std::vector<std::string_view> names;
  for (const BuiltinRules& rules : kBuiltin) names.push_back(rules.name);
  return names;
}

std::string_view BuiltinRulesJson(std::string_view name) {
  for (const BuiltinRules& rules : kBuiltin) {
    if (rules.name == name) return rules.json;
  }
  CHECK(false, << "no built-in rules named " << name);
  return "";
}

}  // namespace checkpoint
