// What the trees say about the run: the framework's configuration and the training arguments.
#include <fmt/format.h>

#include <algorithm>

#include "reshape/target_builder.h"

namespace reshape {
namespace {

using checkpoint::AsInt;
using checkpoint::DType;
using checkpoint::Get;
using checkpoint::Has;
using checkpoint::IsNone;
using checkpoint::MakeBool;
using checkpoint::MakeDict;
using checkpoint::MakeInt;
using checkpoint::MakeString;
using checkpoint::Value;
using checkpoint::WithEntry;
using checkpoint::WithoutEntry;

constexpr int64_t kSamplesMax =
    int64_t{1} << 40;  // a bound for numbers from the configuration; products stay in range

int64_t Samples(const Value& config, const char* key) {
  const int64_t count = AsInt(Get(config, key)).value_or(0);
  return count > 0 && count <= kSamplesMax ? count : 0;
}

Value OneEntry(const char* key, Value value) {
  Entries entries;
  Append(entries, key, std::move(value));
  return MakeDict(std::move(entries));
}

// The section of the weights' type in the place of the one that it replaces, else at the end.
Value WithTypeSection(const TargetBuilder& builder, const Value& config) {
  if (builder.choice.dtype == builder.source.weight_dtype) return config;
  const char* wanted = builder.choice.dtype == DType::kFloat16    ? "fp16"
                       : builder.choice.dtype == DType::kBFloat16 ? "bf16"
                                                                  : nullptr;
  Entries entries;
  bool placed = wanted == nullptr;
  for (const auto& [key, value] : *checkpoint::MappingItems(config)) {
    const std::string name = checkpoint::AsString(key).value_or("");
    if (name != "fp16" && name != "bf16" && name != "bfloat16") {
      entries.emplace_back(key, value);
    } else if (!placed) {
      Append(entries, wanted, OneEntry("enabled", MakeBool(true)));
      placed = true;
    }
  }
  if (!placed) Append(entries, wanted, OneEntry("enabled", MakeBool(true)));
  return MakeDict(std::move(entries));
}

// BF16_Optimizer at stage 1 is what the framework chooses for fp32 accumulation: the entry comes
// and goes with it. Other wrappers of bf16 at stage 1 need it gone, and stage 0 accepts no type but
// the model's.
Value WithAccumulationType(const TargetBuilder& builder, Value config) {
  const Value types = Get(config, "data_types");
  const bool wants =
      builder.choice.wrapper == Wrapper::kBf16 && builder.choice.topology.zero_stage == 1;
  if (wants) {
    const Value base = checkpoint::MappingItems(types) != nullptr ? types : MakeDict({});
    return WithEntry(config, "data_types", WithEntry(base, "grad_accum_dtype", MakeString("fp32")));
  }
  const bool refuses =
      builder.source.wrapper == Wrapper::kBf16 || builder.choice.topology.zero_stage == 0 ||
      (builder.choice.topology.zero_stage == 1 && builder.choice.dtype == DType::kBFloat16);
  if (!refuses || !Has(types, "grad_accum_dtype")) return config;
  const Value rest = WithoutEntry(types, "grad_accum_dtype");
  return checkpoint::MappingItems(rest)->empty() ? WithoutEntry(config, "data_types")
                                                 : WithEntry(config, "data_types", rest);
}

Value WithZeroSection(const TargetBuilder& builder, const Value& config) {
  Value zero = Get(config, "zero_optimization");
  const int32_t stage = builder.choice.topology.zero_stage;
  if (checkpoint::MappingItems(zero) == nullptr) {
    if (stage == 0) return config;
    zero = MakeDict({});
  }
  zero = WithEntry(zero, "stage", MakeInt(stage));
  if (builder.choice.elastic || builder.source.elastic)
    zero = WithEntry(zero, "elastic_checkpoint", MakeBool(builder.choice.elastic));
  return WithEntry(config, "zero_optimization", zero);
}

Value WithBatchSizes(const TargetBuilder& builder, Value config) {
  const BatchChange change = ChangeOfBatch(builder);
  if (change.to.global == 0) return config;
  if (Has(config, "train_batch_size"))
    config = WithEntry(config, "train_batch_size", MakeInt(change.to.global));
  if (Has(config, "gradient_accumulation_steps")) {
    config = WithEntry(config, "gradient_accumulation_steps", MakeInt(change.to.accumulation));
  }
  return config;
}

const char* TypeName(DType dtype) {
  return dtype == DType::kFloat16 ? "float16" : dtype == DType::kBFloat16 ? "bfloat16" : "float32";
}

void SetWherePresent(Value& mapping, const char* key, Value value) {
  if (Has(mapping, key)) mapping = WithEntry(mapping, key, std::move(value));
}

// Ranks of one machine as far as the source shows: equal to the world's where all local ranks are
// global ones.
int64_t LocalRank(const TargetBuilder& builder, int64_t rank) {
  int64_t largest = 0;
  bool one_machine = true;
  for (const SourceFile& file : builder.source.model_files) {
    const Value args = Get(file.torch.root, "args");
    const int64_t local = AsInt(Get(args, "local_rank")).value_or(0);
    one_machine = one_machine && local == AsInt(Get(args, "rank")).value_or(0);
    largest = std::max(largest, std::min(local, kSamplesMax));
  }
  return one_machine ? rank : rank % (largest + 1);
}

}  // namespace

BatchChange ChangeOfBatch(const TargetBuilder& builder) {
  const Value config = Get(SourceRoot(builder.source), "ds_config");
  const int64_t from_ranks = builder.source.topology.data_parallel_size,
                to_ranks = builder.data_ranks();
  const int64_t micro = Samples(config, "train_micro_batch_size_per_gpu");
  BatchChange change;
  if (from_ranks == to_ranks || micro == 0) return change;
  const int64_t global = Samples(config, "train_batch_size");
  const int64_t accumulation = Samples(config, "gradient_accumulation_steps");
  if (global ==
      0) {  // the configuration fixes what one rank does: the global batch follows the data ranks
    if (accumulation == 0) return change;
    change.from = {micro * accumulation * from_ranks, micro, accumulation};
    change.to = {micro * accumulation * to_ranks, micro, accumulation};
    return change;
  }
  change.from = {global, micro, std::max<int64_t>(1, global / (micro * from_ranks))};
  // The global batch stays where the new ranks divide it, else the nearest smaller one is taken.
  const int64_t steps = std::max<int64_t>(1, global / (micro * to_ranks));
  change.to = {micro * steps * to_ranks, micro, steps};
  return change;
}

Value RewriteConfig(TargetBuilder& builder, const Value& config) {
  if (checkpoint::MappingItems(config) == nullptr)
    return config == nullptr ? checkpoint::MakeNone() : config;
  const auto known = builder.rewritten_configs.find(config.get());
  if (known != builder.rewritten_configs.end()) return known->second;
  Value rewritten = WithZeroSection(builder, config);
  rewritten = WithAccumulationType(builder, WithTypeSection(builder, rewritten));
  rewritten = WithBatchSizes(builder, rewritten);
  builder.rewritten_configs.emplace(config.get(), rewritten);
  return rewritten;
}

Value RewriteArgs(TargetBuilder& builder, const RankLayout& rank, const Value& args) {
  if (checkpoint::MappingItems(args) == nullptr) return args;
  const Topology& topology = builder.choice.topology;
  const DType dtype = builder.choice.dtype;
  const int64_t tensor_ranks = topology.tensor_parallel_size,
                data_ranks = topology.data_parallel_size;
  // Axes are pipe, data, model: the file is written by data rank 0.
  const int64_t global_rank = static_cast<int64_t>(rank.stage) * data_ranks * tensor_ranks +
                              static_cast<int64_t>(rank.tensor_rank);
  Value out = args;
  SetWherePresent(out, "tensor_model_parallel_size", MakeInt(tensor_ranks));
  SetWherePresent(out, "pipeline_model_parallel_size", MakeInt(topology.pipeline_parallel_size));
  SetWherePresent(out, "transformer_pipeline_model_parallel_size",
                  MakeInt(topology.pipeline_parallel_size));
  SetWherePresent(out, "data_parallel_size", MakeInt(data_ranks));
  SetWherePresent(out, "world_size",
                  MakeInt(tensor_ranks * topology.pipeline_parallel_size * data_ranks));
  SetWherePresent(out, "rank", MakeInt(global_rank));
  SetWherePresent(out, "local_rank", MakeInt(LocalRank(builder, global_rank)));
  SetWherePresent(out, "zero_stage", MakeInt(topology.zero_stage));
  if (builder.choice.vocabulary_rows > 0)
    SetWherePresent(out, "padded_vocab_size", MakeInt(builder.choice.vocabulary_rows));
  if (const BatchChange change = ChangeOfBatch(builder); change.to.global > 0) {
    SetWherePresent(out, "global_batch_size", MakeInt(change.to.global));
  }
  if (dtype != builder.source.weight_dtype) {
    SetWherePresent(out, "fp16", MakeBool(dtype == DType::kFloat16));
    SetWherePresent(out, "bf16", MakeBool(dtype == DType::kBFloat16));
    SetWherePresent(out, "params_dtype", checkpoint::MakeGlobal("torch", TypeName(dtype)));
    SetWherePresent(out, "accumulate_allreduce_grads_in_fp32", MakeBool(dtype == DType::kBFloat16));
  }
  if (CrossesLayouts(builder.source, builder.choice)) {
    SetWherePresent(out, "no_pipeline_parallel", MakeBool(!builder.pipeline()));
    SetWherePresent(out, "ds_pipeline_enabled", MakeBool(builder.pipeline()));
    if (!builder.pipeline()) out = WithoutEntry(out, "attn_mask");  // the pipeline's alone
  }
  if (Has(out, "deepspeed_config_dict")) {
    out = WithEntry(out, "deepspeed_config_dict",
                    RewriteConfig(builder, Get(out, "deepspeed_config_dict")));
  }
  return out;
}

}  // namespace reshape
