// Shared by target_*.cc, which lay out the files of a target one kind each. Internal to the target
// side; everybody else uses target.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/tensor.h"
#include "checkpoint/tree.h"
#include "reshape/rank_layout.h"
#include "reshape/resolve.h"
#include "reshape/target.h"

namespace reshape {

inline constexpr char kWeight[] = "weight";
inline constexpr char kMaster[] = "fp32_master";

// Everything that the layout of the files starts from, and what it collects on the way.
struct TargetBuilder {
  const Inventory& source;
  const ResolvedTarget& choice;
  std::vector<TargetName> names;  // by tensor
  std::vector<RankLayout> ranks;  // index = stage * TP + tensor rank
  Target target;

  std::set<int32_t> made_up_copies;  // stale copies that the source does not have
  std::set<int32_t> made_up_states;  // tensors without moments in a flat group that has them
  std::map<const checkpoint::Node*, checkpoint::Value>
      rewritten_configs;  // one Python object stays one object

  const LogicalTensor& Tensor(const RankTensor& local) const {
    return source.tensors[static_cast<size_t>(local.tensor)];
  }
  const std::string& NameOf(const RankTensor& local) const {
    return names[static_cast<size_t>(local.tensor)].name;
  }
  bool pipeline() const { return choice.layout == NameLayout::kPipeline; }
  bool partitioned() const {
    return choice.wrapper == Wrapper::kZero || choice.wrapper == Wrapper::kBf16;
  }
  int32_t data_ranks() const { return choice.topology.data_parallel_size; }
  size_t RankIndex(const RankLayout& rank) const;
  // The source rank whose file a target rank takes over what is not derived: stage and tensor rank
  // scaled.
  size_t SourceRank(const RankLayout& rank) const;
  // "global_step4/" + name.
  std::string PathOf(const std::string& file_name) const {
    return target.step_folder_name + "/" + file_name;
  }
  // ds_version of the source, which the target claims too.
  checkpoint::Value Version() const;
  void Notify(std::string kind, std::string text, std::vector<std::string> about = {});
};

// --- target_states.cc: which source state fills what, and placements. ---

// Where one state of one tensor in the target comes from.
struct StateChoice {
  std::string state;  // of the source
  bool stale = false;
  bool exists = false;  // false: the source has no such state, the target is zero
  checkpoint::DType source_dtype = checkpoint::DType::kFloat32;
  checkpoint::DType target_dtype = checkpoint::DType::kFloat32;
  float factor = 1;
};
StateChoice ChooseState(TargetBuilder& builder, const RankTensor& local, const std::string& state);
// States in optimizer dictionaries for a set of tensors, in the order in which optimizers write
// them: exp_avg, exp_avg_sq, others.
std::vector<std::string> MomentNames(const Inventory& source, const std::vector<int32_t>& tensors);
// Elements [begin, end) of a shard lie in `storage` from `offset` on.
struct Stretch {
  checkpoint::StoragePtr storage;
  int64_t begin = 0, end = 0, offset = 0;
};
void Place(TargetBuilder& builder, const RankTensor& local, const StateChoice& from,
           const Stretch& stretch);
// A tensor of its own with the shard's shape (and the source's strides where `keep_strides`),
// filled.
checkpoint::TensorView OwnTensor(TargetBuilder& builder, const RankTensor& local,
                                 const std::string& state, bool keep_strides);
// The intersection of a flat group with elements [begin, end) of it, placed into `storage` from
// element 0 on.
struct GroupStretch {
  const RankLayout* rank = nullptr;
  const FlatGroup* group = nullptr;
  int64_t begin = 0, end = 0;
};
void PlaceGroup(TargetBuilder& builder, const GroupStretch& stretch, const std::string& state,
                const checkpoint::StoragePtr& storage);
std::vector<int32_t> TensorsOf(const RankLayout& rank, const FlatGroup& group);

// --- target_scalars.cc: step counters and loss scaler. ---

// A step as the optimizer stores it: a number, or a 0-d float tensor with its own storage.
checkpoint::Value StepTree(TargetBuilder& builder, const StepValue& step);
// The one step of a flat group; nothing where no state was ever made. Errors: kUnreachableTarget
// where its tensors have different steps.
checkpoint::Result<std::optional<StepValue>> StepOfGroup(const TargetBuilder& builder,
                                                         const std::vector<int32_t>& tensors,
                                                         int32_t group);
// {params: ids} behind the group's hyper-parameters.
checkpoint::Value ParamGroup(const TargetBuilder& builder, int32_t source_group,
                             std::vector<checkpoint::Value> ids);
using Entries = std::vector<std::pair<checkpoint::Value, checkpoint::Value>>;
void Append(Entries& entries, const std::string& key, checkpoint::Value value);
// Scaler entries of FP16_Optimizer and FP16_UnfusedOptimizer, and the scaler object of
// DeepSpeedZeroOptimizer, from whatever the source has.
void AppendScalerEntries(TargetBuilder& builder, size_t source_rank, Entries& entries);
checkpoint::Value ScalerObject(TargetBuilder& builder, size_t source_rank);
checkpoint::Value ClipGrad(const TargetBuilder& builder, size_t source_rank);

// --- target_config.cc: ds_config, args, universal_checkpoint_info, checkpoint_info. ---

// How many samples a step takes, and how: global = micro x accumulation x data ranks. All 0 where
// the source does not say.
struct BatchSizes {
  int64_t global = 0, micro = 0, accumulation = 0;
};
struct BatchChange {
  BatchSizes from, to;
};
BatchChange ChangeOfBatch(const TargetBuilder& builder);
checkpoint::Value RewriteConfig(TargetBuilder& builder, const checkpoint::Value& config);
checkpoint::Value RewriteArgs(TargetBuilder& builder, const RankLayout& rank,
                              const checkpoint::Value& args);
// target_universal_info.cc: patterns of names for the target's layout.
checkpoint::Value RewriteUniversalInfo(const TargetBuilder& builder, const checkpoint::Value& info);

// --- target_weights.cc: module dictionaries and layer files. ---

// Storage of each flat group's weights, and views into them by index of the rank's tensors.
struct RankWeights {
  std::vector<checkpoint::TensorView> views;
};
RankWeights PlainWeights(TargetBuilder& builder, const RankLayout& rank);
checkpoint::Value ModuleTree(const TargetBuilder& builder, const RankLayout& rank,
                             const RankWeights& weights);
void AddLayerFiles(TargetBuilder& builder);

// --- target_groups.cc: what files say about flat groups. ---

checkpoint::Value ParamShapes(const TargetBuilder& builder, const RankLayout& rank);
checkpoint::Value GroupPaddings(const TargetBuilder& builder, const RankLayout& rank,
                                int32_t data_rank);
checkpoint::Value AlignmentPaddings(const RankLayout& rank);
checkpoint::Value SliceMappings(const TargetBuilder& builder, const RankLayout& rank,
                                int32_t data_rank);

// --- target_optimizer_*.cc: optimizer dictionaries, one file a wrapper. ---

checkpoint::Result<checkpoint::Value> PartitionedOptimizer(TargetBuilder& builder,
                                                           const RankLayout& rank,
                                                           int32_t data_rank);
checkpoint::Result<checkpoint::Value> FusedOptimizer(TargetBuilder& builder,
                                                     const RankLayout& rank);
checkpoint::Result<checkpoint::Value> UnfusedOptimizer(TargetBuilder& builder,
                                                       const RankLayout& rank);
checkpoint::Value BareOptimizer(TargetBuilder& builder, const RankLayout& rank);
checkpoint::Status AddOptimizerFiles(TargetBuilder& builder, const RankLayout& rank);

// --- target_model_files.cc, target_universal.cc: files. ---

checkpoint::Status AddModelFiles(TargetBuilder& builder);
checkpoint::Status AddUniversalFolder(TargetBuilder& builder);
void AddIdenticalFiles(TargetBuilder& builder);
checkpoint::Status AddTextFiles(TargetBuilder& builder);

// --- target_notices.cc: what was made up, dropped, carried in place. ---

void AddNotices(TargetBuilder& builder);

}  // namespace reshape
