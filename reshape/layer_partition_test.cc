#include "reshape/layer_partition.h"

#include <gtest/gtest.h>

namespace reshape {
namespace {

using Cuts = std::vector<int64_t>;

TEST(LayerPartitionTest, CutsTransformersAsTheFrameworkDoes) {
  EXPECT_EQ(TransformerCuts({{}, 4}, 2), (Cuts{0, 4, 9}));
  EXPECT_EQ(TransformerCuts({{}, 6}, 4), (Cuts{0, 4, 6, 7, 11}));
  EXPECT_EQ(TransformerCuts({{}, 8}, 4), (Cuts{0, 4, 6, 8, 13}));
}

TEST(LayerPartitionTest, CountsEmbeddingsWhereTheMethodSaysSo) {
  // Weights 0 1 1 1 1 1 0 1 0: six in all, three on each stage.
  EXPECT_EQ(TransformerCuts({.layers = 4, .count_embeddings = true}, 2), (Cuts{0, 4, 9}));
}

TEST(LayerPartitionTest, OneStageOwnsAll) { EXPECT_EQ(TransformerCuts({{}, 4}, 1), (Cuts{0, 9})); }

TEST(LayerPartitionTest, FewerEntriesThanPartsGetOneEach) {
  EXPECT_EQ(PartitionBalanced({1, 1}, 3), (Cuts{0, 1, 2, 2}));
}

TEST(LayerPartitionTest, BalancesUnequalWeights) {
  // Parts 3+1, 2+2: both sum to 4.
  EXPECT_EQ(PartitionBalanced({3, 1, 2, 2}, 2), (Cuts{0, 2, 4}));
}

TEST(LayerPartitionTest, CountsTheListWithItsFunctions) {
  EXPECT_EQ(LayerListCount({{}, 4}), 9);
  EXPECT_EQ(
      LayerListCount({{.embedding = 1, .first_layer = 3, .final_after = 1, .head_after = 2}, 4}),
      11);
  EXPECT_EQ(LayerListCount({{}, 4, false}), 8);
}

}  // namespace
}  // namespace reshape
