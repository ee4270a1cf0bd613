#include "reshape/target_fixture.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/tensor.h"
#include "checkpoint/tree.h"
#include "reshape/layer_partition.h"
#include "reshape/naming.h"

namespace reshape {
namespace {

using checkpoint::DType;
using checkpoint::Fused;
using checkpoint::MakeBool;
using checkpoint::MakeDict;
using checkpoint::MakeFloat;
using checkpoint::MakeInt;
using checkpoint::MakeNone;
using checkpoint::MakeString;
using checkpoint::Parallel;
using checkpoint::Value;
using Shape = std::vector<int64_t>;

using Entries = std::vector<std::pair<Value, Value>>;
void Put(Entries& entries, const char* key, Value value) {
  entries.emplace_back(MakeString(key), std::move(value));
}

StatePieces Pieces(DType dtype, const Shape& shape) {
  Piece piece;
  piece.box = {Shape(shape.size(), 0), shape};
  piece.end = piece.box.numel();
  piece.storage = checkpoint::MakeStorage(dtype, piece.end);
  return {dtype, {piece}};
}

void AddTensor(Inventory& source, const std::string& canonical, const Shape& shape, int32_t group) {
  LogicalTensor tensor;
  tensor.canonical = tensor.name = canonical;
  tensor.shape = shape;
  tensor.group = group;
  tensor.states["weight"] = Pieces(source.weight_dtype, shape);
  if (source.weight_dtype != DType::kFloat32)
    tensor.states["fp32_master"] = Pieces(DType::kFloat32, shape);
  for (const char* moment : {"exp_avg", "exp_avg_sq"})
    tensor.states[moment] = Pieces(DType::kFloat32, shape);
  tensor.step = StepValue{5, false};
  source.groups[static_cast<size_t>(group)].tensors.push_back(
      static_cast<int32_t>(source.tensors.size()));
  source.tensors.push_back(std::move(tensor));
}

Value HyperParameters(const char* name, double weight_decay) {
  Entries entries;
  Put(entries, "name", MakeString(name));
  Put(entries, "lr", MakeFloat(0.003));
  Put(entries, "bias_correction", MakeBool(true));
  Put(entries, "weight_decay", MakeFloat(weight_decay));
  Put(entries, "step", MakeInt(0));
  return MakeDict(std::move(entries));
}

Value Config(DType dtype, int64_t stage) {
  Entries zero, type, config;
  Put(zero, "stage", MakeInt(stage));
  Put(type, "enabled", MakeBool(true));
  if (dtype == DType::kFloat16) Put(type, "hysteresis", MakeInt(2));
  Put(config, "train_batch_size", MakeInt(12));
  Put(config, "train_micro_batch_size_per_gpu", MakeInt(1));
  Put(config, "gradient_clipping", MakeFloat(1.0));
  Put(config, "zero_optimization", MakeDict(std::move(zero)));
  if (dtype != DType::kFloat32)
    Put(config, dtype == DType::kFloat16 ? "fp16" : "bf16", MakeDict(std::move(type)));
  return MakeDict(std::move(config));
}

Value Scaler() {
  Entries entries;
  Put(entries, "dynamic_loss_scale", MakeBool(true));
  Put(entries, "cur_scale", MakeInt(4096));
  Put(entries, "cur_iter", MakeInt(4));
  Put(entries, "last_overflow_iter", MakeInt(-1));
  Put(entries, "scale_factor", MakeFloat(2.0));
  Put(entries, "scale_window", MakeInt(1000));
  Put(entries, "clip_grad", MakeFloat(1.0));
  return MakeDict(std::move(entries));
}

Value Args(const GptOptions& options, int64_t rank) {
  Entries entries;
  Put(entries, "num_layers", MakeInt(options.layers));
  Put(entries, "num_attention_heads", MakeInt(2));
  Put(entries, "hidden_size", MakeInt(4));
  Put(entries, "make_vocab_size_divisible_by", MakeInt(2));
  Put(entries, "tensor_model_parallel_size", MakeInt(options.tensor_ranks));
  Put(entries, "pipeline_model_parallel_size", MakeInt(options.stages));
  Put(entries, "world_size",
      MakeInt(int64_t{options.tensor_ranks} * options.stages * options.data_ranks));
  Put(entries, "rank", MakeInt(rank));
  Put(entries, "local_rank", MakeInt(rank));
  Put(entries, "zero_stage", MakeInt(0));
  Put(entries, "padded_vocab_size", MakeInt(6));
  Put(entries, "fp16", MakeBool(options.dtype == DType::kFloat16));
  Put(entries, "bf16", MakeBool(options.dtype == DType::kBFloat16));
  return checkpoint::MakeInstance("argparse", "Namespace", MakeDict(std::move(entries)));
}

Value Root(const Value& optimizer, const Value& config, const Value& args) {
  Entries root, degrees;
  Put(degrees, "pp_degree", MakeInt(1));
  Put(degrees, "tp_degree", MakeInt(1));
  for (const char* key : {"module", "buffer_names"}) Put(root, key, MakeNone());
  Put(root, "optimizer", optimizer);
  for (const char* key :
       {"param_shapes", "frozen_param_shapes", "shared_params", "frozen_param_fragments"})
    Put(root, key, MakeNone());
  Put(root, "global_steps", MakeInt(4));
  Put(root, "dp_world_size", MakeInt(1));
  Put(root, "mp_world_size", MakeInt(1));
  Put(root, "checkpoint_parallel_dimensions", MakeDict(std::move(degrees)));
  Put(root, "ds_config", config);
  Put(root, "ds_version", MakeString("0.19.8"));
  if (args != nullptr) Put(root, "args", args);
  Put(root, "rng_state", MakeInt(1));
  return MakeDict(std::move(root));
}

SourceFile File(const std::string& name, Value root) {
  SourceFile file;
  file.name.name = name;
  file.name.path = "/nowhere/" + name;
  file.torch.root = std::move(root);
  return file;
}

void AddGptTensors(Inventory& source, const GptOptions& options) {
  const int64_t rows =
      (5 + 2 * options.tensor_ranks - 1) / (2 * options.tensor_ranks) * 2 * options.tensor_ranks;
  AddTensor(source, "embedding.word_embeddings.weight", {rows, 4}, 0);
  source.tensors.back().parallel = Parallel::kVocabulary;
  AddTensor(source, "embedding.position_embeddings.weight", {3, 4}, 0);
  if (options.stale_copy) source.tensors.back().stale_states = source.tensors.back().states;
  source.tensors.back().stale_states.erase("weight");
  for (int64_t i = 0; i < options.layers; ++i) {
    const std::string layer = fmt::format("layers.{}.", i);
    AddTensor(source, layer + "input_layernorm.weight", {4}, 1);
    AddTensor(source, layer + "self_attention.query_key_value.weight", {12, 4}, 0);
    source.tensors.back().parallel = Parallel::kColumn;
    source.tensors.back().fused = Fused::kQueryKeyValue;
    AddTensor(source, layer + "self_attention.dense.weight", {4, 4}, 0);
    source.tensors.back().parallel = Parallel::kRow;
    AddTensor(source, layer + "mlp.dense_h_to_4h.bias", {8}, 1);
    source.tensors.back().parallel = Parallel::kColumn;
  }
  AddTensor(source, "final_layernorm.weight", {4}, 1);
}

void NameGptTensors(Inventory& source) {
  const Naming naming{&source.rules, source.transformer_layers, true};
  for (LogicalTensor& tensor : source.tensors) {
    tensor.name = *NameInLayout(naming, source.layout, tensor.canonical);
    if (source.layout == NameLayout::kPlain) continue;
    if (tensor.name.starts_with("tied_modules.")) {
      tensor.layers = {1, 2 + source.transformer_layers + 1};
    } else {
      tensor.layers = {std::stoll(tensor.name)};
    }
  }
}

}  // namespace

Inventory MakeGpt(const GptOptions& options) {
  Inventory source;
  source.folder.tag = "global_step4";
  source.topology = {
      options.tensor_ranks, options.stages, options.data_ranks,
      options.wrapper == Wrapper::kZero || options.wrapper == Wrapper::kBf16 ? 1 : 0};
  source.wrapper = options.wrapper;
  source.layout = options.layout;
  source.weight_dtype = options.dtype;
  source.rules =
      checkpoint::ParseRules(checkpoint::BuiltinRulesJson("megatron-deepspeed"), "built-in")
          .value();
  source.megatron = source.has_fused_qkv = true;
  source.original_vocabulary_rows = 5;
  source.transformer_layers = options.layers;
  source.groups.resize(2);
  source.groups[0].hyper_parameters = HyperParameters("wd_no_scale_lr", 0.01);
  source.groups[1].hyper_parameters = HyperParameters("no_wd_no_scale_lr", 0.0);
  AddGptTensors(source, options);
  NameGptTensors(source);
  if (options.layout == NameLayout::kPipeline)
    source.cuts = TransformerCuts({{}, options.layers}, options.stages);
  for (int64_t i = 0; i < int64_t{options.tensor_ranks} * options.stages; ++i) {
    source.model_files.push_back(File(fmt::format("mp_rank_{:02d}_model_states.pt", i),
                                      Root(Scaler(), Config(options.dtype, 0), Args(options, i))));
  }
  return source;
}

Inventory MakePlain(const std::vector<int64_t>& numels, Wrapper wrapper, DType dtype) {
  Inventory source;
  source.folder.tag = "global_step4";
  source.topology = {1, 1, 1, wrapper == Wrapper::kZero || wrapper == Wrapper::kBf16 ? 1 : 0};
  source.wrapper = wrapper;
  source.weight_dtype = dtype;
  source.groups.resize(1);
  source.groups[0].hyper_parameters = HyperParameters("all", 0.1);
  for (size_t i = 0; i < numels.size(); ++i)
    AddTensor(source, fmt::format("p{}", i), {numels[i]}, 0);
  source.model_files.push_back(
      File("mp_rank_00_model_states.pt", Root(MakeNone(), Config(dtype, 1), nullptr)));
  return source;
}

Value TreeOf(const Target& target, const std::string& name) {
  for (const TargetFile& file : target.files) {
    if (file.path == target.step_folder_name + "/" + name) return file.root;
  }
  ADD_FAILURE() << "no file " << name;
  return nullptr;
}

bool HasNotice(const Target& target, const std::string& kind) {
  return std::any_of(target.notices.begin(), target.notices.end(),
                     [&](const Notice& notice) { return notice.kind == kind; });
}

}  // namespace reshape
