#include "reshape/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace reshape {
namespace {

using Numbers = std::vector<int64_t>;

Piece Flat(const Numbers& extent, int64_t begin, int64_t end, int64_t offset) {
  Piece piece;
  piece.box = {Numbers(extent.size(), 0), extent};
  piece.begin = begin;
  piece.end = end;
  piece.offset = offset;
  return piece;
}

// Storage offsets of all elements of the blocks, by row-major index in a tensor of this shape; -1:
// not covered, -2: twice.
Numbers OffsetsOf(const std::vector<Block>& blocks, const Numbers& shape) {
  int64_t numel = 1;
  for (const int64_t extent : shape) numel *= extent;
  Numbers offsets(static_cast<size_t>(numel), -1);
  for (const Block& block : blocks) {
    for (int64_t i = 0; i < block.numel(); ++i) {
      int64_t rest = i, index = 0, stride = 1, offset = block.offset;
      for (size_t d = shape.size(); d-- > 0;) {
        const int64_t at = rest % block.extent[d];
        rest /= block.extent[d];
        index += (block.start[d] + at) * stride;
        stride *= shape[d];
        offset += at * block.strides[d];
      }
      int64_t& slot = offsets[static_cast<size_t>(index)];
      slot = slot == -1 ? offset : -2;
    }
  }
  return offsets;
}

TEST(BlocksTest, WholeBoxIsOneBlock) {
  const auto blocks = BlocksOf(Flat({3, 4}, 0, 12, 5));
  ASSERT_EQ(blocks.size(), 1U);
  EXPECT_EQ(blocks[0].extent, (Numbers{3, 4}));
  EXPECT_EQ(blocks[0].offset, 5);
}

TEST(BlocksTest, IntervalInTheMiddleIsHeadRowsAndTail) {
  // [5, 4] elements 2..16: 2 3 | rows 1 to 3 | 16.
  const auto blocks = BlocksOf(Flat({5, 4}, 2, 17, 100));
  ASSERT_EQ(blocks.size(), 3U);
  EXPECT_EQ(blocks[0].start, (Numbers{0, 2}));
  EXPECT_EQ(blocks[1].extent, (Numbers{3, 4}));
  EXPECT_EQ(blocks[1].offset, 102);
  EXPECT_EQ(blocks[2].start, (Numbers{4, 0}));
  EXPECT_EQ(blocks[2].offset, 114);
}

TEST(BlocksTest, EveryIntervalOfABoxIsCoveredExactly) {
  const Numbers extent{3, 2, 4};
  for (int64_t begin = 0; begin <= 24; ++begin) {
    for (int64_t end = begin; end <= 24; ++end) {
      const auto blocks = BlocksOf(Flat(extent, begin, end, 1000));
      EXPECT_LE(blocks.size(), 5U);
      const Numbers offsets = OffsetsOf(blocks, extent);
      for (int64_t i = 0; i < 24; ++i) {
        const int64_t expected = i >= begin && i < end ? 1000 + i - begin : -1;
        ASSERT_EQ(offsets[static_cast<size_t>(i)], expected) << begin << ".." << end << " at " << i;
      }
    }
  }
}

TEST(BlocksTest, ScalarIsOneElement) {
  const auto blocks = BlocksOf(Flat({}, 0, 1, 7));
  ASSERT_EQ(blocks.size(), 1U);
  EXPECT_EQ(blocks[0].numel(), 1);
  const auto common = Intersect(blocks[0], blocks[0]);
  ASSERT_TRUE(common);
  EXPECT_EQ(common->numel(), 1);
  EXPECT_EQ(common->source_offset, 7);
}

TEST(BlocksTest, ColumnsOfARowSplitAreStrided) {
  // Columns 2 and 3 of [3, 4], from a shard [3, 2] into the whole.
  Block shard{{0, 2}, {3, 2}, {2, 1}, 0};
  Block whole{{0, 0}, {3, 4}, {4, 1}, 0};
  const auto common = Intersect(shard, whole);
  ASSERT_TRUE(common);
  EXPECT_EQ(common->target_offset, 2);
  ASSERT_EQ(common->dimensions.size(), 2U);
  EXPECT_EQ(common->dimensions[0].source_stride, 2);
  EXPECT_EQ(common->dimensions[0].target_stride, 4);
  EXPECT_EQ(common->dimensions[1].extent, 2);
}

TEST(BlocksTest, RowsThatContinueAreMergedIntoOneRun) {
  Block rows{{4, 0}, {2, 8}, {8, 1}, 0};
  Block whole{{0, 0}, {8, 8}, {8, 1}, 0};
  const auto common = Intersect(rows, whole);
  ASSERT_TRUE(common);
  ASSERT_EQ(common->dimensions.size(), 1U);
  EXPECT_EQ(common->dimensions[0].extent, 16);
  EXPECT_EQ(common->target_offset, 32);
}

TEST(BlocksTest, TransposedTargetIsWalkedInItsOwnOrder) {
  Block source{{0, 0}, {2, 3}, {3, 1}, 0};
  Block target{{0, 0}, {2, 3}, {1, 2}, 0};
  const auto common = Intersect(source, target);
  ASSERT_TRUE(common);
  ASSERT_EQ(common->dimensions.size(), 2U);
  EXPECT_EQ(common->dimensions[0].target_stride, 2);  // along the columns of the source
  EXPECT_EQ(common->dimensions[0].source_stride, 1);
  EXPECT_EQ(common->dimensions[1].target_stride, 1);
}

TEST(BlocksTest, BlocksApartHaveNothingInCommon) {
  Block a{{0}, {4}, {1}, 0}, b{{4}, {4}, {1}, 0};
  EXPECT_FALSE(Intersect(a, b));
}

TEST(BlocksTest, SpanIsFirstAndLastElement) {
  const LinearSpan span = SpanOf({{1, 1}, {2, 2}, {2, 1}, 0}, {4, 5});
  EXPECT_EQ(span.first, 6);
  EXPECT_EQ(span.last, 12);
}

}  // namespace
}  // namespace reshape
