// universal_checkpoint_info as the model code of Megatron-DeepSpeed makes it: patterns of parameter
// names, which depend on the layout and on whether there is more than one tensor rank.
#include <algorithm>

#include "reshape/target_builder.h"

namespace reshape {
namespace {

using checkpoint::Get;
using checkpoint::Has;
using checkpoint::MakeString;
using checkpoint::Value;

constexpr const char* kComposedKeys[] = {
    "vocabulary_parameter_patterns",         "pipeline_replicated_parameter_patterns",
    "tp_replicated_parameter_patterns",      "parameter_with_row_parallelism_patterns",
    "parameter_with_2_sub_params_cat_dim_0",
};

class Patterns {
 public:
  explicit Patterns(const TargetBuilder& builder) : builder_(builder) {
    layer_ = builder.pipeline() ? "\\d+." : "language_model.encoder.layers.\\d+.";
    final_ = builder.pipeline() ? "\\d+." : "language_model.encoder.final_layernorm.";
    tied_ = !HasCanonical("output_layer.weight");
    embedding_ = !builder.pipeline() ? "language_model.embedding."
                 : tied_             ? "tied_modules.embed."
                                     : "\\d+.";
  }

  Value Vocabulary() const {
    std::vector<std::string> patterns{embedding_ + "word_embeddings.weight"};
    if (!tied_)
      patterns.push_back(builder_.pipeline() ? "\\d+.lm_head.weight"
                                             : "language_model.output_layer.weight");
    return List(patterns);
  }

  Value PipelineReplicated() const {
    std::vector<std::string> patterns;
    if (tied_) {
      patterns.push_back(embedding_ + "word_embeddings.weight");
      if (HasCanonical("embedding.position_embeddings.weight"))
        patterns.push_back(embedding_ + "position_embeddings.weight");
    }
    return List(patterns);
  }

  Value TensorReplicated() const {
    std::vector<std::string> patterns{layer_ + "input_layernorm.weight",
                                      layer_ + "post_attention_layernorm.weight",
                                      final_ + "weight"};
    if (HasCanonical("final_layernorm.bias")) patterns.push_back(final_ + "bias");
    for (const char* rest : {"position_embeddings.weight", "word_embeddings.norm.weight",
                             "word_embeddings.norm.bias"}) {
      if (HasCanonical(std::string("embedding.") + rest)) patterns.push_back(embedding_ + rest);
    }
    for (const char* rest : {"self_attention.dense.bias", "mlp.dense_4h_to_h.bias",
                             "input_layernorm.bias", "post_attention_layernorm.bias"}) {
      if (HasCanonical(std::string("layers.0.") + rest)) patterns.push_back(layer_ + rest);
    }
    return List(patterns);
  }

  Value RowParallel() const {
    return List({layer_ + "mlp.dense_4h_to_h.weight", layer_ + "self_attention.dense.weight"});
  }

  Value TwoSubParameters() const {
    std::vector<std::string> patterns;
    for (const char* rest : {"mlp.dense_h_to_4h.weight", "mlp.dense_h_to_4h.bias"}) {
      const LogicalTensor* tensor = Find(std::string("layers.0.") + rest);
      if (tensor != nullptr && tensor->fused == checkpoint::Fused::kGatedLinear)
        patterns.push_back(layer_ + rest);
    }
    return List(patterns);
  }

 private:
  const LogicalTensor* Find(const std::string& canonical) const {
    const auto& tensors = builder_.source.tensors;
    const auto found =
        std::find_if(tensors.begin(), tensors.end(),
                     [&](const LogicalTensor& tensor) { return tensor.canonical == canonical; });
    return found == tensors.end() ? nullptr : &*found;
  }
  bool HasCanonical(const std::string& canonical) const { return Find(canonical) != nullptr; }

  static Value List(const std::vector<std::string>& patterns) {
    std::vector<Value> items;
    for (const std::string& pattern : patterns) items.push_back(MakeString(pattern));
    return checkpoint::MakeList(std::move(items));
  }

  const TargetBuilder& builder_;
  std::string layer_, final_, embedding_;
  bool tied_ = true;
};

}  // namespace

Value RewriteUniversalInfo(const TargetBuilder& builder, const Value& info) {
  if (checkpoint::MappingItems(info) == nullptr) return info;
  Value out = info;
  if (builder.choice.vocabulary_rows > 0 && Has(out, "padded_vocab_size")) {
    out = checkpoint::WithEntry(out, "padded_vocab_size",
                                checkpoint::MakeInt(builder.choice.vocabulary_rows));
  }
  const bool was_parallel = builder.source.topology.tensor_parallel_size > 1;
  const bool parallel = builder.choice.topology.tensor_parallel_size > 1;
  const bool same = !CrossesLayouts(builder.source, builder.choice) && was_parallel == parallel;
  if (same || !builder.source.megatron || !Has(out, "vocabulary_parameter_patterns")) return out;
  Entries entries;
  for (const auto& [key, value] : *checkpoint::MappingItems(out)) {
    const std::string name = checkpoint::AsString(key).value_or("");
    const bool composed = std::find(std::begin(kComposedKeys), std::end(kComposedKeys), name) !=
                          std::end(kComposedKeys);
    if (!composed) entries.emplace_back(key, value);
    if (name != "vocabulary_parameter_patterns") continue;
    const Patterns patterns(builder);
    Append(entries, "vocabulary_parameter_patterns", patterns.Vocabulary());
    if (builder.pipeline())
      Append(entries, "pipeline_replicated_parameter_patterns", patterns.PipelineReplicated());
    if (parallel) {
      Append(entries, "tp_replicated_parameter_patterns", patterns.TensorReplicated());
      Append(entries, "parameter_with_row_parallelism_patterns", patterns.RowParallel());
    }
    Append(entries, "parameter_with_2_sub_params_cat_dim_0", patterns.TwoSubParameters());
  }
  return checkpoint::MakeDict(std::move(entries));
}

}  // namespace reshape
