#include "reshape/blocks.h"

#include <algorithm>

#include "checkpoint/status.h"

namespace reshape {
namespace {

int64_t Product(const std::vector<int64_t>& factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) product *= factor;
  return product;
}

std::vector<int64_t> RowMajorStrides(const std::vector<int64_t>& extent) {
  std::vector<int64_t> strides(extent.size());
  int64_t stride = 1;
  for (size_t i = extent.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= extent[i];
  }
  return strides;
}

// The block of elements [begin, end) where both lie in one row of dimension `dimension`: all
// dimensions before it are fixed, all behind it whole.
struct RowRun {
  size_t dimension;
  int64_t begin, end;
};

Block MakeBlock(const Piece& piece, const std::vector<int64_t>& strides, const RowRun& run) {
  Block block;
  block.start = piece.box.start;
  block.extent = piece.box.extent;
  block.strides = strides;
  block.offset = piece.offset + (run.begin - piece.begin);
  int64_t rest = run.begin;
  for (size_t i = 0; i <= run.dimension; ++i) {
    block.start[i] += rest / strides[i];
    rest %= strides[i];
    block.extent[i] = i < run.dimension ? 1 : (run.end - run.begin) / strides[i];
  }
  CHECK(rest == 0, << "begin=" << run.begin << " rest=" << rest);
  return block;
}

}  // namespace

int64_t Block::numel() const { return Product(extent); }

int64_t CommonBlock::numel() const {
  int64_t product = 1;
  for (const CopyDimension& dimension : dimensions) product *= dimension.extent;
  return product;
}

std::vector<Block> BlocksOf(const Piece& piece) {
  if (piece.begin >= piece.end) return {};
  if (!piece.strides.empty() || piece.box.extent.empty()) {
    CHECK(piece.begin == 0 && piece.end == piece.box.numel(),
          << "begin=" << piece.begin << " end=" << piece.end);
    return {{piece.box.start, piece.box.extent, piece.strides, piece.offset}};
  }
  const std::vector<int64_t> strides = RowMajorStrides(piece.box.extent);
  std::vector<Block> blocks;
  // From `begin`, take the largest aligned steps that fit: up to the end of a row of the innermost
  // dimension, then of the next outer one, and so on; then back inwards. [5, 4] elements 2..11
  // are 2..3, 4..7, 8..11 with rows merged: (0, 2..3), (1..2, all).
  int64_t at = piece.begin;
  while (at < piece.end) {
    size_t dimension = strides.size() - 1;
    // Widen while `at` is on the boundary of the outer dimension's row and at least one such row
    // fits.
    while (dimension > 0 && at % strides[dimension - 1] == 0 &&
           at + strides[dimension - 1] <= piece.end)
      --dimension;
    const int64_t stride = strides[dimension];
    int64_t stop = piece.end - (piece.end - at) % stride;
    if (dimension > 0) {
      const int64_t row = strides[dimension - 1];
      stop = std::min(stop, (at / row + 1) * row);
    }
    blocks.push_back(MakeBlock(piece, strides, {dimension, at, stop}));
    at = stop;
  }
  return blocks;
}

std::optional<CommonBlock> Intersect(const Block& source, const Block& target) {
  CommonBlock common{source.offset, target.offset, {}};
  for (size_t i = 0; i < source.start.size(); ++i) {
    const int64_t begin = std::max(source.start[i], target.start[i]);
    const int64_t end =
        std::min(source.start[i] + source.extent[i], target.start[i] + target.extent[i]);
    if (begin >= end) return std::nullopt;
    common.source_offset += (begin - source.start[i]) * source.strides[i];
    common.target_offset += (begin - target.start[i]) * target.strides[i];
    if (end - begin > 1)
      common.dimensions.push_back({end - begin, source.strides[i], target.strides[i]});
  }
  // Stable: equal strides cannot occur in a target, but do in nothing else's interest.
  std::stable_sort(common.dimensions.begin(), common.dimensions.end(),
                   [](const CopyDimension& a, const CopyDimension& b) {
                     return a.target_stride > b.target_stride;
                   });
  std::vector<CopyDimension> merged;
  for (const CopyDimension& inner : common.dimensions) {
    if (!merged.empty()) {
      CopyDimension& outer = merged.back();
      if (outer.source_stride == inner.extent * inner.source_stride &&
          outer.target_stride == inner.extent * inner.target_stride) {
        outer = {outer.extent * inner.extent, inner.source_stride, inner.target_stride};
        continue;
      }
    }
    merged.push_back(inner);
  }
  common.dimensions = std::move(merged);
  return common;
}

LinearSpan SpanOf(const Block& block, const std::vector<int64_t>& shape) {
  if (block.numel() == 0) return {};
  const std::vector<int64_t> strides = RowMajorStrides(shape);
  LinearSpan span{0, 0};
  for (size_t i = 0; i < shape.size(); ++i) {
    span.first += block.start[i] * strides[i];
    span.last += (block.start[i] + block.extent[i] - 1) * strides[i];
  }
  return span;
}

}  // namespace reshape
