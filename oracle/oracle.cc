#include "oracle/oracle.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <set>

#include "checkpoint/tree.h"
#include "oracle/assemble.h"
#include "oracle/draft.h"
#include "oracle/modules.h"
#include "oracle/nameless.h"

namespace oracle {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Result;
using checkpoint::Status;
using checkpoint::Value;

namespace {

bool IsMegatron(const Value& root) {
  const Value args = checkpoint::Get(root, "args");
  return checkpoint::Has(args, "num_layers") && checkpoint::Has(args, "hidden_size");
}

// The older fork numbers its layers from 3 and leaves `checkpoint_info` instead of
// universal_checkpoint_info.
std::string BuiltinFor(const Source& source, const ModuleList& modules) {
  const Value& root = source.Root(source.AnyModel());
  if (!IsMegatron(root)) return "";
  const auto has_layer = [&](int64_t layer) {
    return std::binary_search(modules.layers.begin(), modules.layers.end(), layer);
  };
  const bool starts_at_three = !modules.layers.empty() && !has_layer(2) && has_layer(3);
  const bool older = checkpoint::Has(root, "checkpoint_info") ||
                     (starts_at_three && !checkpoint::Has(root, "universal_checkpoint_info"));
  return older ? "megatron-deepspeed-bigscience" : "megatron-deepspeed";
}

Status MakeNaming(Draft& draft, const ModuleList& modules, const KnownNames& known) {
  const Value& root = draft.source.Root(draft.source.AnyModel());
  NamingInput input;
  input.user_rules = draft.options.rules;
  input.builtin = BuiltinFor(draft.source, modules);
  input.universal_info = checkpoint::Get(root, "universal_checkpoint_info");
  input.args = checkpoint::Get(root, "args");
  input.pipelined = draft.source.pipelined;
  for (const auto& [name, shape] : known.shapes) {
    input.names.insert(name);
    if (shape != std::vector<int64_t>{-1}) input.shapes[name] = shape;
  }
  for (const ModuleTensor& tensor : modules.tensors) {
    const std::string name =
        tensor.layer < 0 ? tensor.key : std::to_string(tensor.layer) + "." + tensor.key;
    input.names.insert(name);
    input.shapes.try_emplace(name, tensor.stored.view.shape);
  }
  CK_TRY(draft.naming, Naming::Make(std::move(input)));
  return checkpoint::Done{};
}

// The wrapper by the keys of its dictionary; empty where the dictionary is none of them.
std::string WrapperOf(const Value& dictionary) {
  if (checkpoint::Has(dictionary, "loss_scaler") || checkpoint::Has(dictionary, "zero_stage"))
    return "DeepSpeedZeroOptimizer";
  if (checkpoint::Has(dictionary, "single_partition_of_fp32_groups")) return "BF16_Optimizer";
  if (checkpoint::Has(dictionary, "fp32_groups_flat")) return "FP16_Optimizer";
  if (checkpoint::Has(dictionary, "fp32_groups")) return "FP16_UnfusedOptimizer";
  if (checkpoint::Has(dictionary, "state") && checkpoint::Has(dictionary, "param_groups"))
    return "torch";
  return "";
}

// Optimizer files that should be there and are not: what the settings say.
std::string WrapperBySettings(const Value& root) {
  if (checkpoint::SequenceItems(checkpoint::Get(root, "param_shapes")) == nullptr) return "none";
  const Value config = checkpoint::Get(root, "ds_config");
  const bool bf16 =
      checkpoint::AsBool(checkpoint::GetPath(config, {"bf16", "enabled"})).value_or(false);
  const auto stage =
      checkpoint::AsInt(checkpoint::GetPath(config, {"zero_optimization", "stage"})).value_or(1);
  const auto accumulation =
      checkpoint::AsString(checkpoint::GetPath(config, {"data_types", "grad_accum_dtype"}))
          .value_or("");
  return bf16 && (stage == 0 || accumulation == "fp32") ? "BF16_Optimizer"
                                                        : "DeepSpeedZeroOptimizer";
}

Status DetectWrapper(Draft& draft) {
  const Source& source = draft.source;
  const Value& root = source.Root(source.AnyModel());
  Value dictionary;
  std::string where = source.labels[source.AnyModel()];
  if (!source.optimizer.empty()) {
    where = source.labels[source.optimizer.begin()->second];
    dictionary =
        checkpoint::Get(source.Root(source.optimizer.begin()->second), "optimizer_state_dict");
  } else if (source.universal.count("optimizer_state") > 0) {
    dictionary = source.Root(source.universal.at("optimizer_state"));
    draft.summary.wrapper =
        checkpoint::Has(dictionary, "loss_scaler") ? "DeepSpeedZeroOptimizer" : "BF16_Optimizer";
  } else {
    dictionary = checkpoint::Get(root, "optimizer");
  }
  if (draft.summary.wrapper.empty()) draft.summary.wrapper = WrapperOf(dictionary);
  if (draft.summary.wrapper.empty() && checkpoint::IsNone(dictionary))
    draft.summary.wrapper = WrapperBySettings(root);
  if (draft.summary.wrapper.empty()) {
    return Error{ErrorCode::kUnsupported,
                 "an optimizer dictionary " + checkpoint::Render(dictionary, 80),
                 "one of the known wrappers", where, "This optimizer's layout is not read yet."};
  }
  auto stage = checkpoint::AsInt(checkpoint::Get(dictionary, "zero_stage"));
  if (!stage)
    stage =
        checkpoint::AsInt(checkpoint::GetPath(root, {"ds_config", "zero_optimization", "stage"}));
  draft.summary.zero_stage = static_cast<int32_t>(std::clamp<int64_t>(stage.value_or(0), 0, 3));
  if (draft.summary.zero_stage == 3 || checkpoint::Has(dictionary, "fp32_flat_groups")) {
    return Error{ErrorCode::kUnsupported, "a ZeRO-3 checkpoint", "ZeRO stage 0, 1 or 2", where,
                 "Save it from stage 0, 1 or 2 without experts; shardproof reads no other yet."};
  }
  draft.summary.elastic =
      checkpoint::SequenceItems(checkpoint::Get(dictionary, "base_optimizer_state")) != nullptr;
  return checkpoint::Done{};
}

bool IsPartitioned(const std::string& wrapper) {
  return wrapper == "DeepSpeedZeroOptimizer" || wrapper == "BF16_Optimizer";
}

Status ReadAll(Draft& draft) {
  CK_TRY(const ModuleList modules, ListModules(draft));
  const KnownNames known = ListKnownNames(draft.source);
  CK_DO(MakeNaming(draft, modules, known));
  CK_DO(DetectWrapper(draft));
  const bool nameless = !IsPartitioned(draft.summary.wrapper) && draft.summary.wrapper != "none";
  if (draft.source.pipelined) {
    draft.tied = TiedLayersByName(modules, known);
    if (nameless) {
      CK_TRY(const std::vector<NamelessRank> ranks, GatherNameless(draft));
      DecideStages(draft, modules, ranks);
    }
  } else if (draft.source.grid.pipeline > 1) {
    return Error{ErrorCode::kUnsupported, "pipeline stages without layer files",
                 "layer files, or one stage", draft.source.folder.step_folder.string(),
                 "Save it from stage 0, 1 or 2 without experts; shardproof reads no other yet."};
  }
  CK_DO(AddModules(draft, modules, draft.tied));
  CK_DO(DecideKinds(draft));
  if (draft.source.folder.universal)
    CK_DO(ReadUniversal(draft));
  else if (nameless)
    CK_DO(ReadNameless(draft));
  else
    CK_DO(ReadPartitions(draft));
  ReadCounters(draft);
  return Finish(draft);
}

int64_t CountOf(const Value& root, std::string_view key) {
  return checkpoint::AsInt(checkpoint::Get(root, key)).value_or(-1);
}

// Versions before 0.14.1 took the step at construction in every wrapper; the counters tell whether
// this one did.
bool TookDummyStep(const Summary& summary, const std::vector<TensorEntry>& tensors) {
  if (summary.wrapper == "FP16_Optimizer" || summary.wrapper == "FP16_UnfusedOptimizer")
    return true;
  if (!IsPartitioned(summary.wrapper)) return false;
  int major = 0, minor = 0;
  if (std::sscanf(summary.framework_version.c_str(), "%d.%d", &major, &minor) != 2 || major > 0 ||
      minor > 14)
    return false;
  for (const TensorEntry& entry : tensors) {
    if (entry.info.step && summary.global_steps >= 0 && summary.skipped_steps >= 0) {
      return *entry.info.step ==
             static_cast<double>(summary.global_steps - summary.skipped_steps + 1);
    }
  }
  return false;
}

// Layer numbers that names speak of: a layer whose files are all missing is still expected.
std::vector<int64_t> ExpectedLayers(const Draft& draft) {
  if (!draft.source.pipelined || draft.source.folder.universal) return {};
  std::vector<int64_t> layers = draft.naming.LayerNumbers();
  for (const TensorEntry& entry : draft.tensors) {
    if (entry.layer >= 0) layers.push_back(entry.layer);
  }
  return layers;
}

// Before the first step that was not skipped there are no moments; a folder without any is whole
// then, but not where some parameter has them or where the counters speak of a step.
bool MomentsExpected(const Draft& draft) {
  const Value& root = draft.source.Root(draft.source.AnyModel());
  const int64_t steps = CountOf(root, "global_steps"), skipped = CountOf(root, "skipped_steps");
  if (steps < 0 || steps > skipped) return true;
  return std::any_of(draft.tensors.begin(), draft.tensors.end(), [](const TensorEntry& entry) {
    return entry.info.states.count(kExpAvg) + entry.info.states.count(kExpAvgSq) > 0;
  });
}

void ListUniversalFiles(Draft& draft) {
  const std::vector<std::string> master{"fp32"}, all{"fp32", "exp_avg", "exp_avg_sq"};
  const bool moments = MomentsExpected(draft);
  for (const std::string& parameter : draft.source.folder.universal_parameters) {
    const bool trained = draft.untrained_copies.count(parameter) == 0;
    for (const std::string& state : moments&& trained ? all : master) {
      const bool present = draft.source.universal.count(parameter + "/" + state) > 0;
      draft.summary.files.push_back(
          {"zero/" + parameter + "/" + state + ".pt", "universal state", true, present});
    }
  }
  draft.summary.files.push_back({"zero/optimizer_state.pt", "universal state", true,
                                 draft.source.universal.count("optimizer_state") > 0});
}

void FillWeights(Draft& draft) {
  Summary& summary = draft.summary;
  summary.no_steps_taken = true;
  for (const TensorEntry& entry : draft.tensors) {
    summary.has_fused_qkv =
        summary.has_fused_qkv || entry.kind.fused == checkpoint::Fused::kQueryKeyValue;
    if (entry.info.role != Role::kTrainable) continue;
    if (entry.info.states.size() > 2 ||
        (entry.info.states.size() == 2 && entry.info.states.count(kMaster) == 0)) {
      summary.no_steps_taken = false;
    }
    const auto weight = entry.info.states.find(kWeight);
    if (!summary.dtype.empty() || weight == entry.info.states.end()) continue;
    summary.dtype = weight->second == checkpoint::DType::kFloat16    ? "fp16"
                    : weight->second == checkpoint::DType::kBFloat16 ? "bf16"
                                                                     : "fp32";
  }
  if (!summary.dtype.empty()) return;
  const Value config = checkpoint::Get(draft.source.Root(draft.source.AnyModel()), "ds_config");
  const auto enabled = [&](std::string_view key) {
    return checkpoint::AsBool(checkpoint::GetPath(config, {key, "enabled"})).value_or(false);
  };
  summary.dtype = enabled("fp16") ? "fp16" : enabled("bf16") ? "bf16" : "fp32";
}

void FillSummary(Draft& draft) {
  Summary& summary = draft.summary;
  const Value& root = draft.source.Root(draft.source.AnyModel());
  summary.format = draft.source.folder.universal ? "deepspeed-universal"
                   : IsMegatron(root)            ? "megatron-deepspeed"
                                                 : "deepspeed";
  summary.layout = draft.source.pipelined ? "pipeline" : "plain";
  summary.tag = draft.source.folder.tag;
  summary.framework_version =
      checkpoint::AsString(checkpoint::Get(root, "ds_version")).value_or("");
  summary.iteration = CountOf(root, "iteration");
  summary.global_steps = CountOf(root, "global_steps");
  summary.skipped_steps = CountOf(root, "skipped_steps");
  summary.tensor_parallel = draft.source.grid.tensor;
  summary.pipeline_parallel = draft.source.grid.pipeline;
  summary.data_parallel = draft.source.grid.data;
  summary.round_robin =
      checkpoint::AsBool(
          checkpoint::GetPath(root, {"ds_config", "zero_optimization", "round_robin_gradients"}))
          .value_or(false);
  for (const checkpoint::TorchFile& file : draft.source.files)
    summary.legacy_container = summary.legacy_container || file.legacy;
  summary.group_rule_known = draft.naming.group_rule() != checkpoint::GroupRule::kFromFiles;
  summary.rules_origin = draft.naming.origin();
  summary.qkv_layout =
      draft.options.qkv_layout ? draft.options.qkv_layout : draft.naming.qkv_layout();
  FillWeights(draft);
  summary.dummy_step = TookDummyStep(summary, draft.tensors);
  const bool optimizer_files = IsPartitioned(summary.wrapper) && !draft.source.folder.universal;
  summary.files = ListFiles(draft.source, optimizer_files, ExpectedLayers(draft));
  if (draft.source.folder.universal) ListUniversalFiles(draft);
  summary.findings.insert(summary.findings.begin(), draft.source.findings.begin(),
                          draft.source.findings.end());
}

class FileOracle : public Oracle {
 public:
  explicit FileOracle(Draft draft) : draft_(std::move(draft)) {
    for (const TensorEntry& entry : draft_.tensors) {
      infos_.push_back(entry.info);
      infos_.back().fused_qkv = entry.kind.fused == checkpoint::Fused::kQueryKeyValue &&
                                entry.kind.parallel != checkpoint::Parallel::kReplicated &&
                                entry.kind.sub_parameter_rows.empty();
    }
    // Every shard is in some file; fp32 states of missing files are twice as long as the 16-bit
    // weights that tell their shape.
    for (const checkpoint::TorchFile& file : draft_.source.files)
      bytes_max_ += static_cast<int64_t>(file.file->bytes().size());
    bytes_max_ = bytes_max_ * 2 * draft_.source.grid.tensor;
  }

  const Summary& summary() const override { return draft_.summary; }
  const std::vector<TensorInfo>& tensors() const override { return infos_; }
  const std::vector<checkpoint::TorchFile>& torch_files() const override {
    return draft_.source.files;
  }

  Result<Assembled> Assemble(size_t index, const std::string& state) const override {
    CHECK(index < infos_.size() && infos_[index].states.count(state) > 0,
          << "index=" << index << " state=" << state);
    return Guarded<Assembled>(index, [&] {
      return AssembleState(draft_.tensors[index], state, RuleOf(draft_.tensors[index]));
    });
  }

  Result<std::vector<HolderPart>> PartOfEachHolder(size_t index,
                                                   const std::string& state) const override {
    CHECK(index < infos_.size() && infos_[index].states.count(state) > 0,
          << "index=" << index << " state=" << state);
    return Guarded<std::vector<HolderPart>>(index, [&]() -> Result<std::vector<HolderPart>> {
      std::vector<HolderPart> parts;
      for (const Holder& holder : draft_.tensors[index].holders.at(state)) {
        if (holder.stale) continue;
        for (Segment& segment : SegmentsOf(holder)) {
          if (segment.present) parts.push_back({std::move(segment.place), std::move(segment.flat)});
        }
      }
      return parts;
    });
  }

  Result<std::vector<std::vector<ShardCopy>>> CopiesOf(size_t index,
                                                       const std::string& state) const override {
    CHECK(index < infos_.size() && infos_[index].states.count(state) > 0,
          << "index=" << index << " state=" << state);
    using Copies = std::vector<std::vector<ShardCopy>>;
    return Guarded<Copies>(index, [&]() -> Result<Copies> {
      const std::vector<Holder>& holders = draft_.tensors[index].holders.at(state);
      const bool split = infos_[index].partition_dim >= 0 && draft_.source.grid.tensor > 1 &&
                         std::none_of(holders.begin(), holders.end(),
                                      [](const Holder& holder) { return holder.full; });
      Copies copies(static_cast<size_t>(split ? draft_.source.grid.tensor : 1));
      for (const Holder& holder : holders) {
        if (holder.stale) continue;
        ShardCopy copy{holder.rank, {}};
        for (const Segment& segment : SegmentsOf(holder))
          copy.pieces.push_back({segment.place, segment.flat.numel(), segment.present});
        copies[split ? static_cast<size_t>(holder.rank.tensor) : 0].push_back(std::move(copy));
      }
      return copies;
    });
  }

  Result<std::map<std::string, at::Tensor>> StaleCopy(size_t index) const override {
    CHECK(index < infos_.size(), << "index=" << index);
    return Guarded<std::map<std::string, at::Tensor>>(
        index, [&]() -> Result<std::map<std::string, at::Tensor>> {
          std::map<std::string, at::Tensor> copies;
          const TensorEntry& entry = draft_.tensors[index];
          for (const auto& [state, holders] : entry.holders) {
            const bool stale = std::any_of(holders.begin(), holders.end(),
                                           [](const Holder& holder) { return holder.stale; });
            if (!stale) continue;
            CK_TRY(copies[state], AssembleStale(entry, state, RuleOf(entry)));
          }
          return copies;
        });
  }

 private:
  // No exception of libtorch, nor of memory, leaves this room.
  template <typename T, typename Function>
  Result<T> Guarded(size_t index, const Function& function) const {
    try {
      return function();
    } catch (const std::exception& exception) {
      return Error{ErrorCode::kInconsistent, std::string(exception.what()).substr(0, 300),
                   "a tensor that libtorch can assemble", infos_[index].name,
                   "Check the file with `check`."};
    }
  }

  // Sub-parameters of one shard: declared rows, gate and up, or q, k and v where each shard is [q |
  // k | v].
  JoinRule RuleOf(const TensorEntry& entry) const {
    JoinRule rule;
    rule.tensor_parallel = draft_.source.grid.tensor;
    rule.bytes_max = bytes_max_;
    if (!entry.kind.sub_parameter_rows.empty()) {
      rule.shares = entry.kind.sub_parameter_rows;
    } else if (entry.kind.fused == checkpoint::Fused::kGatedLinear) {
      rule.shares = {1, 1};
    } else if (entry.kind.fused == checkpoint::Fused::kQueryKeyValue &&
               draft_.summary.qkv_layout == checkpoint::QkvLayout::kPerShard) {
      const Value args = checkpoint::Get(draft_.source.Root(draft_.source.AnyModel()), "args");
      const int64_t heads = CountOf(args, "num_attention_heads");
      int64_t key_value_heads = CountOf(args, "num_key_value_heads");
      if (key_value_heads <= 0) key_value_heads = heads;
      rule.shares = heads > 0 ? Shares{heads, key_value_heads, key_value_heads} : Shares{1, 1, 1};
    }
    int64_t divisor = 0;
    for (const int64_t share : rule.shares) divisor = std::gcd(divisor, share);
    for (int64_t& share : rule.shares) share = divisor > 0 ? share / divisor : share;
    return rule;
  }

  Draft draft_;
  std::vector<TensorInfo> infos_;
  int64_t bytes_max_ = 0;
};

}  // namespace

Result<std::shared_ptr<const Oracle>> Oracle::Open(const std::filesystem::path& path,
                                                   const OpenOptions& options) {
  try {
    CK_TRY(Source source, OpenSource(path, options));
    Draft draft(std::move(source));
    draft.options = options;
    CK_DO(ReadAll(draft));
    FillSummary(draft);
    return std::shared_ptr<const Oracle>(std::make_shared<FileOracle>(std::move(draft)));
  } catch (const std::exception& exception) {
    return Error{ErrorCode::kInconsistent, std::string(exception.what()).substr(0, 300),
                 "a checkpoint that libtorch can read", path.string(),
                 "Check the files with `check`."};
  }
}

}  // namespace oracle
