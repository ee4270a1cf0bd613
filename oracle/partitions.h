// Flat groups cut into data rank partitions: which parameter starts where, how long the partitions
// are, and whether the padding is accounted for. Internal to oracle/. Format:
// docs/format/optimizer.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "oracle/draft.h"

namespace oracle {

// The optimizer dictionaries of one model-parallel rank, by data rank; null Values where a file is
// missing.
struct RankFiles {
  int32_t stage = 0, tensor = 0;
  std::vector<checkpoint::Value> dictionaries;
  std::vector<size_t> files;  // index into Source::files; meaningless where the Value is null
  const checkpoint::Value& First() const;  // first dictionary that is there; null Value otherwise
  Place FirstPlace(const Source& source) const;  // of First()
  Rank RankOf(size_t data) const { return {tensor, stage, static_cast<int32_t>(data)}; }
};

// Members of one group in the order of its flat buffer, with their starts.
struct GroupLayout {
  std::vector<Member> members;
  int64_t numel = 0;  // without the padding at the end
};

struct GroupFacts {
  int32_t position = 0;  // of the group on this rank
  int64_t partition_count = 1, partition_numel = 0;
  bool elastic = false,
       keeps_padding = false;  // BF16_Optimizer keeps the padding of the fp32 partitions
};

// The smallest multiple of 2 x count that holds `numel`, divided by count. 10 elements, 4
// partitions: 16 / 4 = 4.
int64_t PartitionNumel(int64_t numel, int64_t partition_count);

// Order of the group as param_shapes says (starts include alignment pads between parameters).
GroupLayout LayoutFromShapes(const checkpoint::Value& shapes, const std::vector<int64_t>& pads);
// Order as the slice mappings of all data ranks say; shapes are looked up in `shapes`. Null where
// they contradict themselves.
std::optional<GroupLayout> LayoutFromMaps(
    const RankFiles& rank, const GroupFacts& facts,
    const std::map<std::string, std::vector<int64_t>>& shapes);
// Do the slice mappings say what this layout means? True where there are none.
bool MapsAgree(const RankFiles& rank, const GroupFacts& facts, const GroupLayout& layout);

// Tensor of one partition: "fp32_master" or a key of the base optimizer's state; null Value where
// absent.
checkpoint::Value PartitionValue(const checkpoint::Value& dictionary, int32_t position,
                                 const std::string& state);
// Keys of the base optimizer's state for this group, in file order, without "step".
std::vector<std::string> StateKeys(const checkpoint::Value& dictionary, int32_t position);
checkpoint::Value BaseState(const checkpoint::Value& dictionary, int32_t position);

// Adds one PaddingAccount per data rank (and findings for historic values that are accepted).
checkpoint::Status AccountForPadding(Draft& draft, const RankFiles& rank, const GroupFacts& facts,
                                     const GroupLayout& layout, int32_t group);

}  // namespace oracle
