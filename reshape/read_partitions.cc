// Optimizer partitions of DeepSpeedZeroOptimizer (stages 1, 2) and BF16_Optimizer: one flat group
// cut evenly over data ranks. Format: docs/format/optimizer.md. Order and offsets come from
// param_shapes and the alignment pads; param_slice_mappings are evidence.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/limits.h"
#include "checkpoint/tree.h"
#include "reshape/partition.h"
#include "reshape/source.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::Get;
using checkpoint::GetIndex;
using checkpoint::IsNone;
using checkpoint::Result;
using checkpoint::Status;
using checkpoint::TensorView;
using checkpoint::Value;

// The optimizer dictionaries of one model-parallel rank, by data rank, with the names for messages.
struct RankFiles {
  std::vector<Value> optimizers;
  std::vector<std::string> names;
};

const std::vector<Value>* Items(const Value& value) { return checkpoint::SequenceItems(value); }

Value ItemAt(const Value& list, size_t index) {
  const auto* items = Items(list);
  return items != nullptr && index < items->size() ? (*items)[index] : nullptr;
}

// param_shapes[group], with the alignment pads: names, shapes and offsets. Empty where the file has
// none.
Result<std::vector<Member>> MembersFromShapes(const Value& model_root, const Value& optimizer,
                                              size_t group, const std::string& where) {
  std::vector<Member> members;
  const Value shapes = ItemAt(Get(model_root, "param_shapes"), group);
  const auto* items = checkpoint::MappingItems(shapes);
  if (items == nullptr) return members;
  const auto pads =
      checkpoint::AsIntList(ItemAt(Get(optimizer, "param_alignment_paddings"), group));
  if (pads && pads->size() != items->size()) {
    return MakeError(ErrorCode::kInconsistent,
                     fmt::format("{} alignment pads for group {}", pads->size(), group),
                     fmt::format("{}, one for each parameter", items->size()), where, "");
  }
  int64_t begin = 0;
  for (size_t i = 0; i < items->size(); ++i) {
    const auto name = checkpoint::AsString((*items)[i].first);
    const auto shape = checkpoint::AsIntList((*items)[i].second);
    if (!name || !shape) {
      return MakeError(ErrorCode::kInconsistent,
                       "param_shapes entry " + checkpoint::Render((*items)[i].second, 60),
                       "a name and a torch.Size", where, "");
    }
    CK_TRY(const int64_t numel, checkpoint::NumelOf(*shape, where + " " + *name));
    members.push_back({.name = *name, .numel = numel, .shape = *shape, .begin = begin});
    const int64_t pad = pads ? (*pads)[i] : 0;
    if (pad < 0 || pad > checkpoint::kTensorNumelMax || begin > checkpoint::kTensorNumelMax) {
      return MakeError(ErrorCode::kLimitExceeded,
                       fmt::format("an alignment pad of {} elements", pad),
                       "0 or more, within the largest tensor", where, "");
    }
    begin += numel + pad;
  }
  return members;
}

struct Fragment {
  std::string name;
  int64_t start = 0, numel = 0;
};

// param_slice_mappings[group] of one data rank, in file order; nothing where the file has none.
std::optional<std::vector<Fragment>> ReadFragments(const Value& optimizer, size_t group) {
  const auto* items =
      checkpoint::MappingItems(ItemAt(Get(optimizer, "param_slice_mappings"), group));
  if (items == nullptr) return std::nullopt;
  std::vector<Fragment> fragments;
  for (const auto& [key, value] : *items) {
    const auto name = checkpoint::AsString(key);
    const auto start = checkpoint::AsInt(Get(value, "start")),
               numel = checkpoint::AsInt(Get(value, "numel"));
    if (!name || !start || !numel || *start < 0 || *numel < 0) return std::nullopt;
    fragments.push_back({*name, *start, *numel});
  }
  return fragments;
}

// The flat order as the slice maps of all data ranks tell it; nothing where they are absent or do
// not fit together.
std::optional<std::vector<Member>> MembersFromFragments(const RankFiles& files, size_t group,
                                                        int64_t partition_numel) {
  std::vector<Member> members;
  for (size_t rank = 0; rank < files.optimizers.size(); ++rank) {
    auto fragments = ReadFragments(files.optimizers[rank], group);
    if (!fragments) return std::nullopt;
    std::stable_sort(fragments->begin(), fragments->end(),
                     [](const Fragment& a, const Fragment& b) { return a.start < b.start; });
    for (const Fragment& fragment : *fragments) {
      if (fragment.start > partition_numel || fragment.numel > partition_numel - fragment.start)
        return std::nullopt;
      const int64_t begin = static_cast<int64_t>(rank) * partition_numel + fragment.start;
      if (!members.empty() && members.back().name == fragment.name) {
        if (members.back().begin + members.back().numel != begin) return std::nullopt;
        members.back().numel += fragment.numel;
        continue;
      }
      if (!members.empty() && members.back().begin + members.back().numel > begin)
        return std::nullopt;
      members.push_back(
          {.name = fragment.name, .numel = fragment.numel, .shape = std::nullopt, .begin = begin});
    }
  }
  return members;
}

bool SameOrder(const std::vector<Member>& a, const std::vector<Member>& b) {
  const auto skip_empty = [](const std::vector<Member>& members) {
    std::vector<const Member*> kept;
    for (const Member& member : members) {
      if (member.numel > 0) kept.push_back(&member);
    }
    return kept;
  };
  const auto first = skip_empty(a), second = skip_empty(b);
  return std::equal(first.begin(), first.end(), second.begin(), second.end(),
                    [](const Member* x, const Member* y) {
                      return x->name == y->name && x->begin == y->begin && x->numel == y->numel;
                    });
}

// All states of one group over the data ranks, as stored.
struct StoredGroup {
  std::map<std::string, std::vector<TensorView>> states;  // by data rank
  std::optional<StepValue> step;
  bool step_in_state = false;
};

Status CheckFlat(const TensorView& view, const std::string& where) {
  if (view.IsContiguous()) return checkpoint::Done{};
  return MakeError(ErrorCode::kInconsistent, "a partition with strides", "contiguous elements",
                   where, "");
}

Status CheckStep(const std::optional<StepValue>& step, const std::string& file,
                 std::optional<StepValue>& common) {
  if (!step) return checkpoint::Done{};
  if (common && common->value != step->value) {
    return MakeError(ErrorCode::kInconsistent, fmt::format("step {}", step->value),
                     fmt::format("step {} as in the files before it", common->value), file,
                     "The optimizer files are not of one step; restore them.");
  }
  if (!common) common = step;
  return checkpoint::Done{};
}

// `state` of one group on one rank: rigid files have {'state': {g: ...}}, elastic ones a list over
// groups.
Value StateOfGroup(const Value& base, size_t group) {
  if (Items(base) != nullptr) return ItemAt(base, group);
  return GetIndex(Get(base, "state"), static_cast<int64_t>(group));
}

Result<StoredGroup> ReadStored(const RankFiles& files, size_t group) {
  StoredGroup stored;
  for (size_t rank = 0; rank < files.optimizers.size(); ++rank) {
    const Value& optimizer = files.optimizers[rank];
    const std::string where = fmt::format("{} group {}", files.names[rank], group);
    const Value partition = ItemAt(Get(optimizer, "single_partition_of_fp32_groups"), group);
    CK_TRY(TensorView master,
           checkpoint::DecodeTensor(partition, where + " single_partition_of_fp32_groups"));
    CK_DO(CheckFlat(master, where));
    stored.states[kMasterState].push_back(std::move(master));
    const Value base = Get(optimizer, "base_optimizer_state");
    CK_TRY(OptimizerEntry entry, ReadOptimizerEntry(StateOfGroup(base, group), -1, where));
    for (auto& [key, view] : entry.tensors) {
      CK_DO(CheckFlat(view, where));
      stored.states[key].push_back(std::move(view));
    }
    stored.step_in_state |= entry.step.has_value();
    if (!entry.step) entry.step = ReadStep(Get(optimizer, "base_optimizer_state_step"));
    // apex FusedAdam keeps the count in the group; elsewhere that entry is stale, so it counts only
    // where the state has none.
    if (!entry.step && !entry.tensors.empty()) {
      entry.step = ReadStep(Get(ItemAt(Get(base, "param_groups"), group), "step"));
    }
    CK_DO(CheckStep(entry.step, where, stored.step));
  }
  for (const auto& [key, views] : stored.states) {
    if (views.size() == files.optimizers.size()) continue;
    return MakeError(ErrorCode::kInconsistent,
                     fmt::format("state '{}' on {} data ranks", key, views.size()),
                     fmt::format("on all {}", files.optimizers.size()),
                     fmt::format("{} group {}", files.names[0], group),
                     "Optimizer files of different steps are mixed.");
  }
  return stored;
}

Status FillFlats(const RankFiles& files, const StoredGroup& stored, const PartitionForm& form,
                 LocalGroup& group) {
  for (const auto& [key, views] : stored.states) {
    group.flat_dtypes[key] = views.front().storage->dtype;
    auto& segments = group.flats[key];
    for (size_t rank = 0; rank < views.size(); ++rank) {
      const TensorView& view = views[rank];
      const int64_t begin = static_cast<int64_t>(rank) * form.partition_numel;
      const int64_t real = RealNumel(form, static_cast<int64_t>(rank));
      if (view.numel() < real || view.storage->dtype != group.flat_dtypes[key]) {
        return MakeError(ErrorCode::kInconsistent,
                         fmt::format("{} elements of '{}'", view.numel(), key),
                         fmt::format("at least {} elements, of one type", real), files.names[rank],
                         "The partition does not fit the parameters of its group.");
      }
      if (real > 0) {
        segments.push_back(
            {begin, begin + real, view.storage, view.offset, DataRank{static_cast<int32_t>(rank)}});
      }
    }
  }
  return checkpoint::Done{};
}

// Sizes of the stored partitions of one kind.
std::vector<int64_t> Numels(const StoredGroup& stored, const std::string& state) {
  std::vector<int64_t> numels;
  const auto position = stored.states.find(state);
  if (position == stored.states.end()) return numels;
  for (const TensorView& view : position->second) numels.push_back(view.numel());
  return numels;
}

// Every size that the files keep with padding: the moments of rigid files, and BF16_Optimizer's
// masters.
std::vector<int64_t> PaddedNumels(const Inventory& inventory, const StoredGroup& stored) {
  if (inventory.elastic) return {};
  if (inventory.wrapper == Wrapper::kBf16) return Numels(stored, kMasterState);
  for (const auto& [key, views] : stored.states) {
    if (key != kMasterState) return Numels(stored, key);
  }
  return {};
}

void NoticePaddings(const RankFiles& files, const PartitionForm& form, size_t group,
                    Source& source) {
  const int64_t ranks = form.partition_count;
  const bool last_only = source.inventory.wrapper == Wrapper::kBf16;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto recorded =
        checkpoint::AsIntList(Get(files.optimizers[static_cast<size_t>(rank)], "group_paddings"));
    if (!recorded || group >= recorded->size()) return;
    const int64_t total = form.partition_numel * ranks - form.group_numel;
    const int64_t expected =
        last_only ? (rank == ranks - 1 ? total : 0) : form.partition_numel - RealNumel(form, rank);
    if ((*recorded)[group] == expected) continue;
    source.Notify("false-group-paddings",
                  fmt::format("group_paddings of group {} do not say how much padding the "
                              "partitions have; the records are not used.",
                              group),
                  {files.names[static_cast<size_t>(rank)]});
    return;
  }
}

Status ReadGroup(const RankFiles& files, size_t index, ModelRank& rank, Source& source) {
  const std::string where = fmt::format("{} group {}", files.names.front(), index);
  LocalGroup group;
  const Value base = Get(files.optimizers.front(), "base_optimizer_state");
  group.hyper_parameters = ItemAt(Get(base, "param_groups"), index);
  CK_TRY(const StoredGroup stored, ReadStored(files, index));
  group.step = stored.step;
  group.step_in_state = stored.step_in_state;
  CK_TRY(group.members,
         MembersFromShapes(source.ModelRoot(rank), files.optimizers.front(), index, where));
  for (const Member& member : group.members)
    group.numel = std::max(group.numel, member.begin + member.numel);

  const int64_t count = static_cast<int64_t>(files.optimizers.size());
  PartitionEvidence evidence{group.numel, count, Numels(stored, kMasterState),
                             PaddedNumels(source.inventory, stored)};
  if (group.members.empty()) {
    // Nothing names the group but the slice maps: they are trusted here, and proved by content
    // later.
    evidence.group_numel = -1;
    CK_TRY(PartitionForm form, FindPartitionForm(evidence, where));
    auto members = MembersFromFragments(files, index, form.partition_numel);
    if (members && !members->empty()) {
      group.members = std::move(*members);
      group.numel = group.members.back().begin + group.members.back().numel;
    } else {
      source.named = false;
      group.numel = form.group_numel;
      group.end_padding_max =
          source.inventory.wrapper == Wrapper::kBf16 ? kAlignmentPerRank * count - 1 : 0;
    }
    evidence.group_numel = group.numel;
  }
  CK_TRY(const PartitionForm form, FindPartitionForm(evidence, where));
  CK_DO(FillFlats(files, stored, form, group));
  NoticePaddings(files, form, index, source);
  auto told = MembersFromFragments(files, index, form.partition_numel);
  const bool has_maps = ReadFragments(files.optimizers.front(), index).has_value();
  if (has_maps && (!told || !SameOrder(*told, group.members))) {
    group.maps_contradict = true;
    if (told) group.rival = std::move(*told);
  }
  rank.groups.push_back(std::move(group));
  return checkpoint::Done{};
}

}  // namespace

Status ReadPartitions(Source& source) {
  source.named = true;
  for (ModelRank& rank : source.ranks) {
    const size_t index =
        source.RankIndex(static_cast<int32_t>(rank.stage), static_cast<int32_t>(rank.tensor_rank));
    RankFiles files;
    size_t groups = 0;
    for (const SourceFile& file : source.inventory.optim_files[index]) {
      const Value optimizer = Get(file.torch.root, "optimizer_state_dict");
      const auto* partitions = Items(Get(optimizer, "single_partition_of_fp32_groups"));
      if (partitions == nullptr || (!files.optimizers.empty() && partitions->size() != groups)) {
        return MakeError(ErrorCode::kInconsistent,
                         fmt::format("{} groups", partitions ? partitions->size() : 0),
                         files.optimizers.empty()
                             ? "a list of partitions"
                             : fmt::format("{} groups as in {}", groups, files.names.front()),
                         file.name.name, "Optimizer files of two runs are mixed.");
      }
      groups = partitions->size();
      files.optimizers.push_back(optimizer);
      files.names.push_back(file.name.name);
    }
    const auto* shapes = Items(Get(source.ModelRoot(rank), "param_shapes"));
    if (shapes != nullptr && shapes->size() != groups) {
      return MakeError(
          ErrorCode::kInconsistent, fmt::format("{} groups in param_shapes", shapes->size()),
          fmt::format("{} as in {}", groups, files.names.front()), source.ModelFileName(rank),
          "Model and optimizer files of two runs are mixed.");
    }
    for (size_t group = 0; group < groups; ++group) CK_DO(ReadGroup(files, group, rank, source));
  }
  return checkpoint::Done{};
}

}  // namespace reshape
