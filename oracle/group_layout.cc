// Where each parameter of a flat group starts, from param_shapes or from slice mappings.
#include <algorithm>
#include <set>

#include "checkpoint/limits.h"
#include "checkpoint/tree.h"
#include "oracle/partitions.h"

namespace oracle {

using checkpoint::Value;

const Value& RankFiles::First() const {
  static const Value kNone;
  for (const Value& dictionary : dictionaries) {
    if (dictionary) return dictionary;
  }
  return kNone;
}

Place RankFiles::FirstPlace(const Source& source) const {
  for (size_t data = 0; data < dictionaries.size(); ++data) {
    if (dictionaries[data]) return source.PlaceOf(files[data], RankOf(data));
  }
  return {};
}

int64_t PartitionNumel(int64_t numel, int64_t partition_count) {
  const int64_t alignment = 2 * partition_count;
  return (numel + alignment - 1) / alignment * 2;
}

GroupLayout LayoutFromShapes(const Value& shapes, const std::vector<int64_t>& pads) {
  GroupLayout layout;
  const checkpoint::Items* items = checkpoint::MappingItems(shapes);
  if (items == nullptr) return layout;
  for (size_t i = 0; i < items->size(); ++i) {
    const auto name = checkpoint::AsString((*items)[i].first);
    const auto shape = checkpoint::AsIntList((*items)[i].second);
    if (!name || !shape) continue;
    auto numel = checkpoint::NumelOf(*shape, *name);
    if (!numel.ok() || layout.numel > checkpoint::kTensorNumelMax)
      continue;  // the padding account shows it
    layout.members.push_back({*name, *shape, layout.numel});
    layout.numel += numel.value();
    if (i + 1 < items->size() && i < pads.size())
      layout.numel += std::clamp<int64_t>(pads[i], 0, checkpoint::kTensorNumelMax);
  }
  return layout;
}

namespace {

struct Fragment {
  int64_t start = 0, numel = 0;  // start inside the partition
};

std::map<std::string, Fragment> FragmentsOf(const Value& dictionary, int32_t position) {
  std::map<std::string, Fragment> fragments;
  const Value groups = checkpoint::Get(dictionary, "param_slice_mappings");
  const std::vector<Value>* maps = checkpoint::SequenceItems(groups);
  if (maps == nullptr || position >= static_cast<int32_t>(maps->size())) return fragments;
  const checkpoint::Items* items = checkpoint::MappingItems((*maps)[static_cast<size_t>(position)]);
  if (items == nullptr) return fragments;
  for (const auto& [key, value] : *items) {
    const auto name = checkpoint::AsString(key);
    const auto start = checkpoint::AsInt(checkpoint::Get(value, "start")),
               numel = checkpoint::AsInt(checkpoint::Get(value, "numel"));
    if (name && start && numel) fragments[*name] = {*start, *numel};
  }
  return fragments;
}

bool HasMaps(const Value& dictionary) {
  const Value groups = checkpoint::Get(dictionary, "param_slice_mappings");
  return checkpoint::SequenceItems(groups) != nullptr;
}

}  // namespace

namespace {

// Where a parameter lies in the flat group, as far as the fragments of the files that are there
// tell.
struct Extent {
  int64_t start = -1, numel = 0;
  size_t last_rank = 0;
};

// Adds the next fragment; false where fragments of neighbouring ranks do not join. A rank whose
// file is missing leaves a hole.
bool Join(const RankFiles& rank, size_t data, int64_t flat_start, int64_t numel, Extent& extent) {
  if (extent.start < 0) {
    extent = {flat_start, numel, data};
    return true;
  }
  bool hole = false;
  for (size_t between = extent.last_rank + 1; between < data; ++between)
    hole = hole || !rank.dictionaries[between];
  if (!hole && extent.start + extent.numel != flat_start) return false;
  extent.numel = flat_start + numel - extent.start;
  extent.last_rank = data;
  return true;
}

// The whole extent of a parameter whose first or last part is in a missing file.
Extent Completed(const RankFiles& rank, const GroupFacts& facts, Extent extent,
                 int64_t whole_numel) {
  if (extent.numel >= whole_numel) return extent;
  const int64_t first_rank = extent.start / std::max<int64_t>(facts.partition_numel, 1);
  const bool at_partition_start =
      first_rank > 0 && extent.start == first_rank * facts.partition_numel;
  if (at_partition_start && !rank.dictionaries[static_cast<size_t>(first_rank - 1)]) {
    extent.start -= whole_numel - extent.numel;
  }
  extent.numel = whole_numel;
  return extent;
}

}  // namespace

std::optional<GroupLayout> LayoutFromMaps(
    const RankFiles& rank, const GroupFacts& facts,
    const std::map<std::string, std::vector<int64_t>>& shapes) {
  std::map<std::string, Extent> extents;
  for (size_t data = 0; data < rank.dictionaries.size(); ++data) {
    const int64_t base = static_cast<int64_t>(data) * facts.partition_numel;
    for (const auto& [name, fragment] : FragmentsOf(rank.dictionaries[data], facts.position)) {
      if (fragment.start < 0 || fragment.numel < 0 || fragment.start > facts.partition_numel ||
          fragment.numel > facts.partition_numel - fragment.start) {
        return std::nullopt;
      }
      if (!Join(rank, data, base + fragment.start, fragment.numel, extents[name]))
        return std::nullopt;
    }
  }
  if (extents.empty()) return std::nullopt;
  GroupLayout layout;
  for (const auto& [name, found] : extents) {
    const auto shape = shapes.find(name);
    const int64_t whole_numel = shape == shapes.end() ? found.numel : Product(shape->second);
    const Extent extent = Completed(rank, facts, found, whole_numel);
    const bool known = shape != shapes.end() && whole_numel == extent.numel;
    layout.members.push_back(
        {name, known ? shape->second : std::vector<int64_t>{extent.numel}, extent.start});
  }
  std::sort(layout.members.begin(), layout.members.end(),
            [](const Member& a, const Member& b) { return a.start < b.start; });
  for (const Member& member : layout.members) {
    if (member.start < layout.numel) return std::nullopt;  // overlap
    layout.numel = member.start + member.numel();
  }
  return layout;
}

bool MapsAgree(const RankFiles& rank, const GroupFacts& facts, const GroupLayout& layout) {
  for (size_t data = 0; data < rank.dictionaries.size(); ++data) {
    const Value& dictionary = rank.dictionaries[data];
    if (!dictionary || !HasMaps(dictionary)) continue;
    const std::map<std::string, Fragment> fragments = FragmentsOf(dictionary, facts.position);
    const int64_t begin = static_cast<int64_t>(data) * facts.partition_numel,
                  end = begin + facts.partition_numel;
    size_t overlapping = 0;
    for (const Member& member : layout.members) {
      const int64_t first = std::max(member.start, begin),
                    last = std::min(member.start + member.numel(), end);
      if (first >= last) continue;
      ++overlapping;
      const auto found = fragments.find(member.name);
      if (found == fragments.end() || found->second.start != first - begin ||
          found->second.numel != last - first)
        return false;
    }
    if (overlapping != fragments.size()) return false;
  }
  return true;
}

Value BaseState(const Value& dictionary, int32_t position) {
  const Value base = checkpoint::Get(dictionary, "base_optimizer_state");
  if (const std::vector<Value>* groups = checkpoint::SequenceItems(base)) {  // elastic
    return position < static_cast<int32_t>(groups->size())
               ? (*groups)[static_cast<size_t>(position)]
               : Value();
  }
  return checkpoint::GetIndex(checkpoint::Get(base, "state"), position);
}

std::vector<std::string> StateKeys(const Value& dictionary, int32_t position) {
  std::vector<std::string> keys;
  const Value state = BaseState(dictionary, position);
  const checkpoint::Items* items = checkpoint::MappingItems(state);
  if (items == nullptr) return keys;
  for (const auto& [key, value] : *items) {
    const auto name = checkpoint::AsString(key);
    if (name && *name != "step" && checkpoint::IsTensor(value)) keys.push_back(*name);
  }
  return keys;
}

Value PartitionValue(const Value& dictionary, int32_t position, const std::string& state) {
  if (state != kMaster) return checkpoint::Get(BaseState(dictionary, position), state);
  const Value groups = checkpoint::Get(dictionary, "single_partition_of_fp32_groups");
  const std::vector<Value>* items = checkpoint::SequenceItems(groups);
  if (items == nullptr || position >= static_cast<int32_t>(items->size())) return Value();
  return (*items)[static_cast<size_t>(position)];
}

}  // namespace oracle
