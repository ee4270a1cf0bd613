// Hand-worked shards and pieces.
#include "reshape/shards.h"

#include <gtest/gtest.h>

#include "checkpoint/tensor.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::Parallel;
using Numbers = std::vector<int64_t>;

TEST(ShardsTest, ColumnShardIsOneRunOfRows) {
  const auto slabs = SlabsOfShard({Parallel::kColumn, {6, 4}, {}}, TensorRank{1}, 3);
  ASSERT_EQ(slabs.size(), 1u);
  EXPECT_EQ(slabs[0].box.start, (Numbers{2, 0}));
  EXPECT_EQ(slabs[0].box.extent, (Numbers{2, 4}));
  EXPECT_EQ(slabs[0].flat_begin, 0);
}

TEST(ShardsTest, RowShardIsOneRunOfColumns) {
  const auto slabs = SlabsOfShard({Parallel::kRow, {6, 4}, {}}, TensorRank{1}, 2);
  ASSERT_EQ(slabs.size(), 1u);
  EXPECT_EQ(slabs[0].box.start, (Numbers{0, 2}));
  EXPECT_EQ(slabs[0].box.extent, (Numbers{6, 2}));
}

TEST(ShardsTest, GatedLinearShardHoldsItsShareOfEachHalf) {
  // Full: 4 gate rows, 4 up rows, 3 columns. Rank 1 of 2: gate rows 2 and 3, then up rows 6 and 7.
  const auto slabs = SlabsOfShard({Parallel::kColumn, {8, 3}, {4, 4}}, TensorRank{1}, 2);
  ASSERT_EQ(slabs.size(), 2u);
  EXPECT_EQ(slabs[0].box.start, (Numbers{2, 0}));
  EXPECT_EQ(slabs[0].flat_begin, 0);
  EXPECT_EQ(slabs[1].box.start, (Numbers{6, 0}));
  EXPECT_EQ(slabs[1].box.extent, (Numbers{2, 3}));
  EXPECT_EQ(slabs[1].flat_begin, 6);
  EXPECT_EQ(slabs[1].local_start, (Numbers{2, 0}));
}

TEST(ShardsTest, PerShardQueryKeyValueHasThreeSlabs) {
  // 8 query rows, 4 key rows, 4 value rows over 2 ranks; rank 1 holds q 4-7, k 10-11, v 14-15.
  const auto slabs = SlabsOfShard({Parallel::kColumn, {16, 2}, {8, 4, 4}}, TensorRank{1}, 2);
  ASSERT_EQ(slabs.size(), 3u);
  EXPECT_EQ(slabs[0].box.start, (Numbers{4, 0}));
  EXPECT_EQ(slabs[1].box.start, (Numbers{10, 0}));
  EXPECT_EQ(slabs[2].box.start, (Numbers{14, 0}));
  EXPECT_EQ(slabs[2].flat_begin, 12);
}

TEST(ShardsTest, ReplicatedAndSingleRankHoldEverything) {
  EXPECT_EQ(SlabsOfShard({Parallel::kReplicated, {5}, {}}, TensorRank{3}, 4)[0].box.extent,
            (Numbers{5}));
  EXPECT_EQ(SlabsOfShard({Parallel::kColumn, {8, 3}, {4, 4}}, TensorRank{0}, 1).size(), 1u);
  EXPECT_EQ(SlabsOfShard({Parallel::kReplicated, {}, {}}, TensorRank{0}, 1)[0].box.numel(), 1);
}

TEST(ShardsTest, PartitionBoundaryInTheMiddleOfARow) {
  // A [4, 5] shard that lies at 3 in its flat group, partitions of 8: elements 0-4 are in the
  // first, 5-12 in the second.
  const auto slabs = SlabsOfShard({Parallel::kReplicated, {4, 5}, {}}, TensorRank{0}, 1);
  const auto storage = checkpoint::MakeStorage(checkpoint::DType::kFloat32, 8);
  std::vector<Piece> pieces;
  AppendPieces(slabs, {0, 5, storage, 3, {}}, pieces);
  AppendPieces(slabs, {5, 13, storage, 0, {}}, pieces);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[1].begin, 5);
  EXPECT_EQ(pieces[1].end, 13);
  EXPECT_EQ(pieces[1].offset, 0);
  EXPECT_EQ(pieces[0].offset, 3);
}

TEST(ShardsTest, IntervalOverTwoSlabsBecomesTwoPieces) {
  // Two slabs of 6 elements; the interval 4-9 takes the last two of the first and the first three
  // of the second.
  const auto slabs = SlabsOfShard({Parallel::kColumn, {8, 3}, {4, 4}}, TensorRank{1}, 2);
  const auto storage = checkpoint::MakeStorage(checkpoint::DType::kFloat32, 100);
  std::vector<Piece> pieces;
  AppendPieces(slabs, {4, 9, storage, 50, {}}, pieces);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].begin, 4);
  EXPECT_EQ(pieces[0].end, 6);
  EXPECT_EQ(pieces[0].offset, 50);
  EXPECT_EQ(pieces[1].begin, 0);
  EXPECT_EQ(pieces[1].end, 3);
  EXPECT_EQ(pieces[1].offset, 52);
}

TEST(ShardsTest, TransposedShardKeepsItsStrides) {
  const auto slabs = SlabsOfShard({Parallel::kColumn, {8, 3}, {4, 4}}, TensorRank{0}, 2);
  const auto storage = checkpoint::MakeStorage(checkpoint::DType::kFloat32, 12);
  std::vector<Piece> pieces;
  AppendStridedPieces(slabs, {storage, 0, {1, 4}, {}}, pieces);  // [4, 3], stored column by column
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[1].offset, 2);
  EXPECT_EQ(pieces[1].strides, (Numbers{1, 4}));
  EXPECT_EQ(pieces[1].end, 6);
}

TEST(ShardsTest, FullShapeUndoesTheSplit) {
  EXPECT_EQ(FullShape(Parallel::kRow, {4, 3}, 2, "w").value(), (Numbers{4, 6}));
  EXPECT_EQ(FullShape(Parallel::kVocabulary, {56, 32}, 2, "w").value(), (Numbers{112, 32}));
  EXPECT_EQ(FullShape(Parallel::kReplicated, {7}, 8, "w").value(), (Numbers{7}));
  EXPECT_EQ(FullShape(Parallel::kRow, {4}, 2, "w").error().code, ErrorCode::kInconsistent);
}

TEST(ShardsTest, ShardShapeRefusesWhatDoesNotDivide) {
  EXPECT_EQ(ShardShape({Parallel::kColumn, {6, 2}, {}}, 3, "w").value(), (Numbers{2, 2}));
  EXPECT_EQ(ShardShape({Parallel::kColumn, {6, 2}, {}}, 4, "w").error().code,
            ErrorCode::kUnreachableTarget);
  // The rows divide, but a sub-parameter does not: [3 | 3] over 2.
  EXPECT_EQ(ShardShape({Parallel::kColumn, {6, 2}, {3, 3}}, 2, "w").error().code,
            ErrorCode::kUnreachableTarget);
  EXPECT_EQ(ShardShape({Parallel::kRow, {6}, {}}, 2, "w").error().code,
            ErrorCode::kUnreachableTarget);
}

}  // namespace
}  // namespace reshape
