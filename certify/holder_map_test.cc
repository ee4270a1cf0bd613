#include "certify/holder_map.h"

#include <ATen/Tensor.h>
#include <gtest/gtest.h>

#include "certify/fake_oracle.h"

namespace certify {
namespace {

class HolderMapTest : public ::testing::Test {
 protected:
  std::vector<HolderShare> Shares(const std::vector<int64_t>& marked_at) {
    std::vector<bool> marked(32, false);
    for (const int64_t index : marked_at) marked[static_cast<size_t>(index)] = true;
    return SharesOfHolders(SubjectOf(fake_), index_, oracle::kMaster, marked);
  }
  // dense.weight (8 x 4) cut for two tensor ranks on `dimension`, each shard in one part.
  void Cut(int32_t dimension, bool halves = false) {
    fake_->facts.tensor_parallel = 2;
    fake_->Info("dense.weight").partition_dim = dimension;
    const at::Tensor value = fake_->Value("dense.weight", oracle::kMaster);
    auto& parts = fake_->parts[{index_, oracle::kMaster}];
    parts.clear();
    for (const int32_t rank : {0, 1}) {
      at::Tensor flat =
          value.chunk(2, dimension)[static_cast<size_t>(rank)].clone().contiguous().flatten();
      if (halves) {
        const at::Tensor first = value.narrow(0, rank * 2, 2).flatten();
        const at::Tensor second = value.narrow(0, 4 + rank * 2, 2).flatten();
        flat.narrow(0, 0, 8).copy_(first);
        flat.narrow(0, 8, 8).copy_(second);
      }
      parts.push_back({{"file" + std::to_string(rank), "", {rank, 0, 0}}, flat});
    }
  }

  std::shared_ptr<FakeOracle> fake_ = SoundModel();
  size_t index_ = fake_->Index("dense.weight");
};

TEST_F(HolderMapTest, PartitionsFollowEachOther) {
  const auto shares = Shares({3, 15, 16});
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0].marked, 2);
  EXPECT_EQ(shares[1].marked, 1);
  EXPECT_EQ(HoldersText(shares), "; in every part");
}

TEST_F(HolderMapTest, RowsOfAColumnSplit) {
  Cut(0);
  EXPECT_EQ(HoldersText(Shares({16, 17})), "; held by tp1-pp0-dp0 (file1): 2 of 16");
}

TEST_F(HolderMapTest, ColumnsOfARowSplit) {
  Cut(1);
  // Row 0 is 0 1 | 2 3.
  EXPECT_EQ(HoldersText(Shares({1, 4})), "; held by tp0-pp0-dp0 (file0): 2 of 16");
}

TEST_F(HolderMapTest, HalvesOfAGatedLayer) {
  Cut(0, true);
  // Rows 2 and 3 of each half of four are rank 1's.
  EXPECT_EQ(HoldersText(Shares({8, 24})), "; held by tp1-pp0-dp0 (file1): 2 of 16");
}

TEST_F(HolderMapTest, NothingIsGuessedWhereTheContentDoesNotFit) {
  fake_->Value("dense.weight", oracle::kMaster).mul_(2);
  fake_->parts[{index_, oracle::kMaster}][0].flat =
      fake_->parts[{index_, oracle::kMaster}][0].flat.mul(3);
  EXPECT_TRUE(Shares({1}).empty());
  EXPECT_EQ(HoldersText({}), "");
}

}  // namespace
}  // namespace certify
