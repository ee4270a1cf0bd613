// Optimizer files of DeepSpeedZeroOptimizer and BF16_Optimizer.
#include <fmt/format.h>

#include "reshape/target_builder.h"

namespace reshape {
namespace {

using checkpoint::Get;
using checkpoint::Has;
using checkpoint::MakeDict;
using checkpoint::MakeInt;
using checkpoint::MakeList;
using checkpoint::Result;
using checkpoint::Status;
using checkpoint::TensorView;
using checkpoint::Value;

// First version that writes the pads between parameters.
constexpr FrameworkVersion kAlignmentPaddingsSince{0, 19, 7};

// A flat state of one partition: the storage has the whole partition, the view `numel` elements of
// it.
Value PartitionTensor(TargetBuilder& builder, const GroupStretch& stretch, const std::string& state,
                      int64_t view_numel) {
  checkpoint::DType dtype = checkpoint::DType::kFloat32;
  for (const FlatMember& member : stretch.group->members) {
    const StateChoice choice =
        ChooseState(builder, stretch.rank->tensors[member.rank_tensor], state);
    if (choice.exists) dtype = choice.target_dtype;
  }
  TensorView view;
  view.storage = checkpoint::MakeStorage(dtype, stretch.end - stretch.begin);
  view.shape = {view_numel};
  view.strides = {1};
  view.requires_grad = state == kMaster;
  PlaceGroup(builder, stretch, state, view.storage);
  return checkpoint::MakeTensor(view);
}

// What the base optimizer and the wrapper hold of one partition.
struct PartitionStates {
  std::vector<std::pair<Value, Value>> states;  // {group: {step, exp_avg, exp_avg_sq}}
  std::vector<Value> elastic_states;            // the same as a list
  std::vector<Value> param_groups, masters;
};

Status AddPartitionGroup(TargetBuilder& builder, const GroupStretch& stretch, PartitionStates& out,
                         int32_t data_rank) {
  const FlatGroup& group = *stretch.group;
  const std::vector<int32_t> tensors = TensorsOf(*stretch.rank, group);
  const int64_t real = RealNumel(group.form, data_rank), whole = group.form.partition_numel;
  CK_TRY(const std::optional<StepValue> step, StepOfGroup(builder, tensors, group.source_group));
  Entries entries;
  const std::vector<std::string> moments = MomentNames(builder.source, tensors);
  if (step && !moments.empty()) Append(entries, "step", StepTree(builder, *step));
  for (const std::string& moment : moments) {
    Append(entries, moment,
           PartitionTensor(builder, stretch, moment, builder.choice.elastic ? real : whole));
  }
  const auto index = static_cast<int64_t>(out.param_groups.size());
  const Value state = MakeDict(entries);
  if (!entries.empty()) out.states.emplace_back(MakeInt(index), state);
  out.elastic_states.push_back(state);
  out.param_groups.push_back(ParamGroup(builder, group.source_group, {MakeInt(index)}));
  const bool keeps_padding = builder.choice.wrapper == Wrapper::kBf16;
  out.masters.push_back(PartitionTensor(builder, stretch, kMaster, keeps_padding ? whole : real));
  return checkpoint::Done{};
}

Value BaseState(const TargetBuilder& builder, PartitionStates& states) {
  if (builder.choice.elastic) return MakeList(std::move(states.elastic_states));
  Entries entries;
  Append(entries, "state", MakeDict(std::move(states.states)));
  Append(entries, "param_groups", MakeList(std::move(states.param_groups)));
  return MakeDict(std::move(entries));
}

// The parts of a dictionary that a target decides; all others are carried, or composed by Compose*.
struct PartitionParts {
  Value base, elastic_step, masters, paddings, alignment, counts, mappings;
};

// An elastic file has no param_groups; of their keys the framework saves `step` alone, where its
// optimizer has one (FusedAdam; it stays 0 there), and its loader insists on it.
Value ElasticStep(const TargetBuilder& builder, const PartitionStates& states) {
  if (!builder.choice.elastic || states.param_groups.empty()) return nullptr;
  return Get(states.param_groups.front(), "step");
}

Value ComposeZero(TargetBuilder& builder, size_t source_rank, const PartitionParts& parts) {
  Entries entries;
  const Value from = SourceOptimizerDict(builder.source, source_rank);
  const Value scaler = ScalerObject(builder, source_rank);
  Append(entries, "loss_scaler", scaler);
  Append(entries, "dynamic_loss_scale", Get(scaler, "dynamic"));
  Append(entries, "overflow",
         checkpoint::MakeBool(checkpoint::AsBool(Get(from, "overflow")).value_or(false)));
  Append(entries, "clip_grad", ClipGrad(builder, source_rank));
  Append(entries, "base_optimizer_state", parts.base);
  if (parts.elastic_step != nullptr)
    Append(entries, "base_optimizer_state_step", parts.elastic_step);
  Append(entries, "single_partition_of_fp32_groups", parts.masters);
  Append(entries, "zero_stage",
         checkpoint::MakeReduce("deepspeed.runtime.zero.config", "ZeroStageEnum",
                                {MakeInt(builder.choice.topology.zero_stage)}));
  Append(entries, "group_paddings", parts.paddings);
  if (SourceVersion(builder.source) >= kAlignmentPaddingsSince)
    Append(entries, "param_alignment_paddings", parts.alignment);
  Append(entries, "partition_count", parts.counts);
  Append(entries, "ds_version", builder.Version());
  Append(entries, "param_slice_mappings", parts.mappings);
  return MakeDict(std::move(entries));
}

Value ComposeBf16(TargetBuilder& builder, size_t source_rank, const PartitionParts& parts) {
  Entries entries;
  Append(entries, "clip_grad", ClipGrad(builder, source_rank));
  Append(entries, "base_optimizer_state", parts.base);
  Append(entries, "single_partition_of_fp32_groups", parts.masters);
  Append(entries, "group_paddings", parts.paddings);
  Append(entries, "partition_count", parts.counts);
  Append(entries, "ds_version", builder.Version());
  Append(entries, "param_slice_mappings", parts.mappings);
  return MakeDict(std::move(entries));
}

// The source's own dictionary of the same wrapper and type with what changes set: keys that we do
// not know stay.
Value Carry(const TargetBuilder& builder, Value dict, const PartitionParts& parts) {
  const std::pair<const char*, const Value*> changes[] = {
      {"base_optimizer_state", &parts.base}, {"single_partition_of_fp32_groups", &parts.masters},
      {"group_paddings", &parts.paddings},   {"param_alignment_paddings", &parts.alignment},
      {"partition_count", &parts.counts},    {"param_slice_mappings", &parts.mappings},
  };
  for (const auto& [key, value] : changes) {
    if (Has(dict, key)) dict = checkpoint::WithEntry(dict, key, *value);
  }
  if (Has(dict, "zero_stage")) {
    dict = checkpoint::WithEntry(
        dict, "zero_stage",
        checkpoint::MakeReduce("deepspeed.runtime.zero.config", "ZeroStageEnum",
                               {MakeInt(builder.choice.topology.zero_stage)}));
  }
  return dict;
}

}  // namespace

Result<Value> PartitionedOptimizer(TargetBuilder& builder, const RankLayout& rank,
                                   int32_t data_rank) {
  PartitionStates states;
  std::vector<Value> counts;
  for (const FlatGroup& group : rank.groups) {
    const int64_t begin = data_rank * group.form.partition_numel;
    CK_DO(AddPartitionGroup(builder, {&rank, &group, begin, begin + group.form.partition_numel},
                            states, data_rank));
    counts.push_back(MakeInt(group.form.partition_count));
  }
  PartitionParts parts;
  parts.elastic_step = ElasticStep(builder, states);
  parts.base = BaseState(builder, states);
  parts.masters = MakeList(std::move(states.masters));
  parts.paddings = GroupPaddings(builder, rank, data_rank);
  parts.alignment = AlignmentPaddings(rank);
  parts.counts = MakeList(std::move(counts));
  parts.mappings = SliceMappings(builder, rank, data_rank);
  const size_t source_rank = builder.SourceRank(rank);
  const bool same = builder.source.wrapper == builder.choice.wrapper &&
                    builder.source.weight_dtype == builder.choice.dtype &&
                    builder.source.elastic == builder.choice.elastic;
  const Value from = SourceOptimizerDict(builder.source, source_rank);
  if (same && checkpoint::MappingItems(from) != nullptr) return Carry(builder, from, parts);
  if (builder.choice.wrapper == Wrapper::kBf16) return ComposeBf16(builder, source_rank, parts);
  return ComposeZero(builder, source_rank, parts);
}

Status AddOptimizerFiles(TargetBuilder& builder, const RankLayout& rank) {
  const size_t source_rank = builder.SourceRank(rank);
  const bool prefixed = builder.choice.dtype == checkpoint::DType::kBFloat16;
  Value top;
  if (source_rank < builder.source.optim_files.size() &&
      !builder.source.optim_files[source_rank].empty()) {
    top = builder.source.optim_files[source_rank].front().torch.root;
  }
  const Value config =
      RewriteConfig(builder, Get(top != nullptr ? top : SourceRoot(builder.source), "ds_config"));
  for (int32_t data_rank = 0; data_rank < builder.data_ranks(); ++data_rank) {
    CK_TRY(const Value dict, PartitionedOptimizer(builder, rank, data_rank));
    TargetFile file;
    file.path =
        builder.PathOf(fmt::format("{}zero_pp_rank_{}_mp_rank_{:02d}_optim_states.pt",
                                   prefixed ? "bf16_" : "", data_rank, builder.RankIndex(rank)));
    if (top != nullptr) {
      file.root = checkpoint::WithEntry(checkpoint::WithEntry(top, "optimizer_state_dict", dict),
                                        "ds_config", config);
    } else {
      Entries entries;
      Append(entries, "optimizer_state_dict", dict);
      Append(entries, "ds_config", config);
      Append(entries, "ds_version", builder.Version());
      file.root = MakeDict(std::move(entries));
    }
    builder.target.files.push_back(std::move(file));
  }
  return checkpoint::Done{};
}

}  // namespace reshape
