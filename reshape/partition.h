// How a flat group is padded and cut over data ranks. Pure arithmetic. Format:
// docs/format/optimizer.md. Tested by partition_test.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/status.h"

namespace reshape {

// The end of a group is padded to a multiple of this many elements per data rank (the framework's
// communication alignment).
inline constexpr int64_t kAlignmentPerRank = 2;

struct PartitionForm {
  int64_t group_numel = 0;      // parameters and the pads between them
  int64_t partition_count = 1;  // data ranks
  int64_t partition_numel = 0;  // elements of each partition, padding included
};

// Equal partitions of a group. 266240 elements over 768 ranks: 348 each.
PartitionForm MakePartitionForm(int64_t group_numel, int64_t partition_count);
// Elements of one partition that are not padding: 266240 over 768: 348 up to rank 764, then 20, 0,
// 0.
int64_t RealNumel(const PartitionForm& form, int64_t rank);

// What the files of one group show.
struct PartitionEvidence {
  int64_t group_numel = -1;  // sum over its parameters; -1: unknown
  int64_t partition_count = 1;
  std::vector<int64_t> stored;  // masters by data rank, in whatever state of padding
  std::vector<int64_t> padded;  // sizes that are known to include padding; empty: none known
};
// The form that fits all of it; with unknown group_numel the group is taken to end where the stored
// masters end. Older files strip padding wrongly (57 elements over 2 ranks stored as 30 and 29), so
// a stored size may lie between the real and the padded one. Errors: kInconsistent.
checkpoint::Result<PartitionForm> FindPartitionForm(const PartitionEvidence& evidence,
                                                    const std::string& where);

}  // namespace reshape
