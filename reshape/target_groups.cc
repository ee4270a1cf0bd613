#include <algorithm>

#include "reshape/target_builder.h"

namespace reshape {
namespace {

using checkpoint::MakeInt;
using checkpoint::Value;

constexpr char kFragmentModule[] = "deepspeed.utils.tensor_fragment";

}  // namespace

Value ParamShapes(const TargetBuilder& builder, const RankLayout& rank) {
  std::vector<Value> groups;
  for (const FlatGroup& group : rank.groups) {
    Entries entries;
    for (const FlatMember& member : group.members) {
      const RankTensor& local = rank.tensors[member.rank_tensor];
      Append(entries, builder.NameOf(local), checkpoint::MakeTorchSize(local.shape));
    }
    groups.push_back(checkpoint::MakeOrderedDict(std::move(entries)));
  }
  return checkpoint::MakeList(std::move(groups));
}

// DeepSpeedZeroOptimizer records what each rank has of it; BF16_Optimizer records all of it on the
// last rank.
Value GroupPaddings(const TargetBuilder& builder, const RankLayout& rank, int32_t data_rank) {
  std::vector<Value> paddings;
  for (const FlatGroup& group : rank.groups) {
    const PartitionForm& form = group.form;
    int64_t padding = form.partition_numel - RealNumel(form, data_rank);
    if (builder.choice.wrapper == Wrapper::kBf16) {
      const bool last = data_rank + 1 == builder.data_ranks();
      padding = last ? form.partition_numel * form.partition_count - group.numel : 0;
    }
    paddings.push_back(MakeInt(padding));
  }
  return checkpoint::MakeList(std::move(paddings));
}

Value AlignmentPaddings(const RankLayout& rank) {
  std::vector<Value> groups;
  for (const FlatGroup& group : rank.groups) {
    std::vector<Value> paddings;
    for (const FlatMember& member : group.members)
      paddings.push_back(MakeInt(member.padding_after));
    groups.push_back(checkpoint::MakeList(std::move(paddings)));
  }
  return checkpoint::MakeList(std::move(groups));
}

Value SliceMappings(const TargetBuilder& builder, const RankLayout& rank, int32_t data_rank) {
  std::vector<Value> groups;
  for (const FlatGroup& group : rank.groups) {
    const int64_t partition_begin = data_rank * group.form.partition_numel;
    const int64_t partition_end = partition_begin + group.form.partition_numel;
    Entries entries;
    for (const FlatMember& member : group.members) {
      const RankTensor& local = rank.tensors[member.rank_tensor];
      const int64_t begin = std::max(member.begin, partition_begin);
      const int64_t end = std::min(member.begin + local.numel(), partition_end);
      if (begin >= end) continue;
      Entries address;
      Append(address, "numel", MakeInt(end - begin));
      Append(address, "start", MakeInt(begin - partition_begin));
      Append(entries, builder.NameOf(local),
             checkpoint::MakeInstance(kFragmentModule, "fragment_address",
                                      checkpoint::MakeDict(std::move(address))));
    }
    groups.push_back(checkpoint::MakeOrderedDict(std::move(entries)));
  }
  return checkpoint::MakeList(std::move(groups));
}

}  // namespace reshape
