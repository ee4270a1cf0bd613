// Which part of a full tensor one tensor rank holds, and a flat interval of such a shard as pieces.
// Pure arithmetic on shapes; nothing here knows files. Format: docs/format/megatron.md. Tested by
// shards_test.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/rules.h"
#include "checkpoint/status.h"
#include "reshape/inventory.h"

namespace reshape {

// What decides how a full tensor is cut over tensor ranks.
struct ShardForm {
  checkpoint::Parallel parallel = checkpoint::Parallel::kReplicated;
  std::vector<int64_t> full_shape;
  std::vector<int64_t> sub_parameter_rows;  // on dimension 0; empty: one
};

// A box of the full tensor as a run of the shard: elements [flat_begin, flat_begin + box.numel())
// of the shard, flattened row-major, are the elements of `box`, flattened row-major. `local_start`
// is the box's first index inside the shard.
struct Slab {
  Box box;
  std::vector<int64_t> local_start;
  int64_t flat_begin = 0;
};

// 0 for column and vocabulary, 1 for row, -1 for replicated.
int32_t SplitDimension(checkpoint::Parallel parallel);

// Shape of the full tensor whose shards have `shard_shape`. Errors: kInconsistent where the tensor
// has no such dimension.
checkpoint::Result<std::vector<int64_t>> FullShape(checkpoint::Parallel parallel,
                                                   const std::vector<int64_t>& shard_shape,
                                                   int32_t tensor_parallel_size,
                                                   const std::string& name);

// Shape of one shard of the full tensor. Errors: kUnreachableTarget where the dimension or a
// sub-parameter does not divide.
checkpoint::Result<std::vector<int64_t>> ShardShape(const ShardForm& form,
                                                    int32_t tensor_parallel_size,
                                                    const std::string& name);

// The boxes of one tensor rank, in the order of its shard. REQUIRES: ShardShape() succeeds, the
// rank is below the size.
std::vector<Slab> SlabsOfShard(const ShardForm& form, TensorRank tensor_rank,
                               int32_t tensor_parallel_size);

// Where an interval of a flattened shard lies.
struct StoredInterval {
  int64_t begin = 0, end = 0;  // elements of the shard
  checkpoint::StoragePtr storage;
  int64_t offset = 0;  // of element `begin`, in elements of the storage
  ShardCoordinate holder;
};
// Appends the pieces of the interval: one for each slab that it meets.
void AppendPieces(const std::vector<Slab>& slabs, const StoredInterval& interval,
                  std::vector<Piece>& pieces);

// Appends the pieces of a whole shard that is stored with strides (in elements, over the shard's
// dimensions).
struct StridedShard {
  checkpoint::StoragePtr storage;
  int64_t offset = 0;
  std::vector<int64_t> strides;
  ShardCoordinate holder;
};
void AppendStridedPieces(const std::vector<Slab>& slabs, const StridedShard& shard,
                         std::vector<Piece>& pieces);

}  // namespace reshape
