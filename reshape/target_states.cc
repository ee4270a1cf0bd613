#include <algorithm>
#include <set>

#include "reshape/target_builder.h"

namespace reshape {
namespace {

using checkpoint::DType;
using checkpoint::StoragePtr;
using checkpoint::TensorView;

const StatePieces* Find(const std::map<std::string, StatePieces>& states, const std::string& name) {
  const auto found = states.find(name);
  return found == states.end() ? nullptr : &found->second;
}

// Weights of trainable and frozen parameters change type with the model; buffers, and parameters of
// a type of their own, keep theirs.
StateChoice ChooseWeight(const TargetBuilder& builder, const LogicalTensor& tensor) {
  const StatePieces* weight = Find(tensor.states, kWeight);
  const StatePieces* master = Find(tensor.states, kMaster);
  StateChoice choice{kWeight, false, weight != nullptr, DType::kFloat32, builder.choice.dtype, 1};
  if (weight != nullptr) {
    choice.source_dtype = weight->dtype;
    const bool of_model_type =
        tensor.role != Role::kBuffer && weight->dtype == builder.source.weight_dtype;
    if (!of_model_type) choice.target_dtype = weight->dtype;
  }
  // From the master where the type changes, so that the weight is the master rounded; also where no
  // weight is stored.
  if (master != nullptr && (weight == nullptr || choice.source_dtype != choice.target_dtype)) {
    choice.state = kMaster;
    choice.exists = true;
    choice.source_dtype = master->dtype;
  }
  return choice;
}

}  // namespace

StateChoice ChooseState(TargetBuilder& builder, const RankTensor& local, const std::string& state) {
  const LogicalTensor& tensor = builder.Tensor(local);
  if (state == kWeight) return ChooseWeight(builder, tensor);
  StateChoice choice{state, false, false, DType::kFloat32, DType::kFloat32, 1};
  const StatePieces* pieces = local.stale ? Find(tensor.stale_states, state) : nullptr;
  choice.stale = pieces != nullptr;
  if (local.stale && !choice.stale) builder.made_up_copies.insert(local.tensor);
  if (pieces == nullptr) pieces = Find(tensor.states, state);
  if (pieces == nullptr && state == kMaster) {  // fp32 runs: the weight is the master
    choice.state = kWeight;
    pieces = Find(tensor.states, kWeight);
  }
  if (pieces == nullptr) return choice;
  choice.exists = true;
  choice.source_dtype = pieces->dtype;
  choice.target_dtype = choice.state == kWeight ? DType::kFloat32 : pieces->dtype;
  const float factor = builder.choice.moment_factor;
  if (state == "exp_avg") choice.factor = factor;
  if (state == "exp_avg_sq") choice.factor = factor * factor;
  return choice;
}

std::vector<std::string> MomentNames(const Inventory& source, const std::vector<int32_t>& tensors) {
  std::set<std::string> names;  // sorted: exp_avg, exp_avg_sq, max_exp_avg_sq
  for (const int32_t tensor : tensors) {
    for (const auto& [name, pieces] : source.tensors[static_cast<size_t>(tensor)].states) {
      if (name != kWeight && name != kMaster) names.insert(name);
    }
  }
  return {names.begin(), names.end()};
}

void Place(TargetBuilder& builder, const RankTensor& local, const StateChoice& from,
           const Stretch& stretch) {
  if (!from.exists || stretch.begin >= stretch.end) return;
  std::vector<Piece> pieces;
  AppendPieces(local.slabs, {stretch.begin, stretch.end, stretch.storage, stretch.offset, {}},
               pieces);
  for (Piece& piece : pieces) {
    builder.target.placements.push_back(
        {local.tensor, from.state, from.stale, std::move(piece), from.source_dtype, from.factor});
  }
}

TensorView OwnTensor(TargetBuilder& builder, const RankTensor& local, const std::string& state,
                     bool keep_strides) {
  const StateChoice choice = ChooseState(builder, local, state);
  const LogicalTensor& tensor = builder.Tensor(local);
  TensorView view;
  view.storage = checkpoint::MakeStorage(choice.target_dtype, local.numel());
  view.shape = local.shape;
  view.strides = checkpoint::ContiguousStrides(local.shape);
  view.requires_grad = state == kMaster;
  // Strides of a whole tensor say nothing about a part of it.
  if (keep_strides && !tensor.weight_strides.empty() && local.shape == tensor.shape) {
    view.strides = tensor.weight_strides;
    if (choice.exists) {
      Piece piece{{std::vector<int64_t>(local.shape.size(), 0), local.shape},
                  0,
                  local.numel(),
                  view.storage,
                  0,
                  view.strides,
                  {}};
      builder.target.placements.push_back(
          {local.tensor, choice.state, choice.stale, piece, choice.source_dtype, choice.factor});
    }
    return view;
  }
  Place(builder, local, choice, {view.storage, 0, local.numel(), 0});
  return view;
}

void PlaceGroup(TargetBuilder& builder, const GroupStretch& stretch, const std::string& state,
                const StoragePtr& storage) {
  for (const FlatMember& member : stretch.group->members) {
    const RankTensor& local = stretch.rank->tensors[member.rank_tensor];
    const int64_t begin = std::max(member.begin, stretch.begin);
    const int64_t end = std::min(member.begin + local.numel(), stretch.end);
    if (begin >= end) continue;
    const StateChoice choice = ChooseState(builder, local, state);
    if (!choice.exists) builder.made_up_states.insert(local.tensor);
    Place(builder, local, choice,
          {storage, begin - member.begin, end - member.begin, begin - stretch.begin});
  }
}

std::vector<int32_t> TensorsOf(const RankLayout& rank, const FlatGroup& group) {
  std::vector<int32_t> tensors;
  for (const FlatMember& member : group.members)
    tensors.push_back(rank.tensors[member.rank_tensor].tensor);
  return tensors;
}

}  // namespace reshape
