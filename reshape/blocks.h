// Geometry of pieces: an interval of a flattened box as rectangular blocks, and what two blocks
// have in common as one strided copy. Pure integers; nothing here knows files, ranks or types. Used
// by plan.cc. Tested by blocks_test.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reshape/inventory.h"

namespace reshape {

// A rectangular part of a logical tensor that lies in a storage with one stride a dimension (in
// elements).
struct Block {
  std::vector<int64_t> start, extent;  // in the logical tensor
  std::vector<int64_t> strides;        // in the storage
  int64_t offset = 0;                  // of the first element, in elements of the storage
  int64_t numel() const;
};

// The blocks of a piece: one for a whole box, at most 2 * dimensions - 1 where the interval begins
// or ends inside a row; together they are exactly the elements of the piece.
std::vector<Block> BlocksOf(const Piece& piece);

struct CopyDimension {
  int64_t extent = 1, source_stride = 0, target_stride = 0;
};

// What two blocks share: outermost dimension first, dimensions that continue each other in both
// storages merged, ordered so that the innermost is the one with the shortest target stride. No
// dimensions: one element.
struct CommonBlock {
  int64_t source_offset = 0, target_offset = 0;
  std::vector<CopyDimension> dimensions;
  int64_t numel() const;
};
std::optional<CommonBlock> Intersect(const Block& source, const Block& target);

// Row-major index of the first and of the last element of a block in a tensor of this shape.
struct LinearSpan {
  int64_t first = 0, last = -1;
};
LinearSpan SpanOf(const Block& block, const std::vector<int64_t>& shape);

}  // namespace reshape
