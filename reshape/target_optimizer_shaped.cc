// Stage-0 optimizer dictionaries, inside the model files: FP16_Optimizer (flat groups),
// FP16_UnfusedOptimizer and the bare optimizer (one entry a parameter).
#include "reshape/target_builder.h"

namespace reshape {
namespace {

using checkpoint::MakeDict;
using checkpoint::MakeInt;
using checkpoint::MakeList;
using checkpoint::MakeTensor;
using checkpoint::Result;
using checkpoint::TensorView;
using checkpoint::Value;

Value FlatTensor(TargetBuilder& builder, const GroupStretch& stretch, const std::string& state) {
  TensorView view;
  view.storage = checkpoint::MakeStorage(checkpoint::DType::kFloat32, stretch.end);
  view.shape = {stretch.end};
  view.strides = {1};
  view.requires_grad = state == kMaster;
  PlaceGroup(builder, stretch, state, view.storage);
  return MakeTensor(view);
}

// A torch optimizer's state_dict with one entry a parameter, numbered through the groups.
Value ShapedState(TargetBuilder& builder, const RankLayout& rank) {
  Entries states;
  std::vector<Value> param_groups;
  int64_t next_id = 0;
  for (const FlatGroup& group : rank.groups) {
    std::vector<Value> ids;
    for (const FlatMember& member : group.members) {
      const RankTensor& local = rank.tensors[member.rank_tensor];
      const LogicalTensor& tensor = builder.Tensor(local);
      ids.push_back(MakeInt(next_id));
      Entries entries;
      const std::vector<std::string> moments = MomentNames(builder.source, {local.tensor});
      const Group& source_group = builder.source.groups[static_cast<size_t>(group.source_group)];
      const bool in_groups = checkpoint::Has(source_group.hyper_parameters, "step") && !tensor.step;
      const std::optional<StepValue> step =
          tensor.step || in_groups ? tensor.step : source_group.step;
      if (step && !moments.empty()) Append(entries, "step", StepTree(builder, *step));
      for (const std::string& moment : moments)
        Append(entries, moment, MakeTensor(OwnTensor(builder, local, moment, true)));
      if (!entries.empty()) states.emplace_back(MakeInt(next_id), MakeDict(std::move(entries)));
      ++next_id;
    }
    param_groups.push_back(ParamGroup(builder, group.source_group, std::move(ids)));
  }
  Entries dict;
  Append(dict, "state", MakeDict(std::move(states)));
  Append(dict, "param_groups", MakeList(std::move(param_groups)));
  return MakeDict(std::move(dict));
}

}  // namespace

Result<Value> FusedOptimizer(TargetBuilder& builder, const RankLayout& rank) {
  const size_t source_rank = builder.SourceRank(rank);
  Entries states;
  std::vector<Value> param_groups, masters;
  for (const FlatGroup& group : rank.groups) {
    const std::vector<int32_t> tensors = TensorsOf(rank, group);
    const GroupStretch all{&rank, &group, 0, group.numel};
    CK_TRY(const std::optional<StepValue> step, StepOfGroup(builder, tensors, group.source_group));
    const std::vector<std::string> moments = MomentNames(builder.source, tensors);
    Entries entries;
    if (step && !moments.empty()) Append(entries, "step", StepTree(builder, *step));
    for (const std::string& moment : moments)
      Append(entries, moment, FlatTensor(builder, all, moment));
    const Value index = MakeInt(static_cast<int64_t>(param_groups.size()));
    if (!entries.empty()) states.emplace_back(index, MakeDict(std::move(entries)));
    param_groups.push_back(ParamGroup(builder, group.source_group, {index}));
    masters.push_back(FlatTensor(builder, all, kMaster));
  }
  Entries base;
  Append(base, "state", MakeDict(std::move(states)));
  Append(base, "param_groups", MakeList(std::move(param_groups)));
  Entries dict;
  AppendScalerEntries(builder, source_rank, dict);
  Append(dict, "optimizer_state_dict", MakeDict(std::move(base)));
  Append(dict, "fp32_groups_flat", MakeList(std::move(masters)));
  Append(dict, "clip_grad", ClipGrad(builder, source_rank));
  return MakeDict(std::move(dict));
}

Result<Value> UnfusedOptimizer(TargetBuilder& builder, const RankLayout& rank) {
  Entries dict;
  AppendScalerEntries(builder, builder.SourceRank(rank), dict);
  Append(dict, "optimizer_state_dict", ShapedState(builder, rank));
  std::vector<Value> groups;
  for (const FlatGroup& group : rank.groups) {
    std::vector<Value> masters;
    for (const FlatMember& member : group.members) {
      masters.push_back(
          MakeTensor(OwnTensor(builder, rank.tensors[member.rank_tensor], kMaster, true)));
    }
    groups.push_back(MakeList(std::move(masters)));
  }
  Append(dict, "fp32_groups", MakeList(std::move(groups)));
  return MakeDict(std::move(dict));
}

Value BareOptimizer(TargetBuilder& builder, const RankLayout& rank) {
  return ShapedState(builder, rank);
}

}  // namespace reshape
