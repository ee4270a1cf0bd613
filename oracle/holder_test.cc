#include "oracle/holder.h"

#include <gtest/gtest.h>

#include "checkpoint/tree.h"
#include "oracle/test_files.h"

namespace oracle {
namespace {

std::vector<float> Numbers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.reshape({-1}).contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

class HolderTest : public ::testing::Test {
 protected:
  // Writes the tensors as a list and returns them mapped.
  std::vector<Stored> Map(const std::vector<checkpoint::Value>& tensors) {
    const auto path = folder_.path() / "tensors.pt";
    writer_.Write(path, checkpoint::MakeList(tensors));
    file_ = Reopen(path);
    std::vector<Stored> mapped;
    for (const checkpoint::Value& value : *checkpoint::SequenceItems(file_.root)) {
      auto view = checkpoint::DecodeTensor(value, "test");
      EXPECT_TRUE(view.ok());
      mapped.push_back({view.value(), {"tensors.pt", "data/" + view.value().storage->key, {}}});
    }
    return mapped;
  }

  // Partitions [0 1 2 3] [4 5 6 7] [8 9] of a flat group of 10 elements, the last one without its
  // padding.
  std::shared_ptr<FlatState> ThreePartitions() {
    const std::vector<Stored> mapped =
        Map({writer_.Flat({0, 1, 2, 3}), writer_.Flat({4, 5, 6, 7}), writer_.Flat({8, 9})});
    auto flat = std::make_shared<FlatState>();
    flat->partition_numel = 4;
    for (const Stored& stored : mapped) flat->partitions.emplace_back(stored);
    return flat;
  }

  static Holder In(std::shared_ptr<FlatState> flat, int64_t start, std::vector<int64_t> shape) {
    Holder holder;
    holder.flat = std::move(flat);
    holder.start = start;
    holder.shape = std::move(shape);
    return holder;
  }

  TestFolder folder_;
  TreeWriter writer_;
  checkpoint::TorchFile file_;
};

TEST_F(HolderTest, ParameterAcrossThreePartitionsIsTheirConcatenation) {
  const Holder holder = In(ThreePartitions(), 3, {2, 3});
  const std::vector<Segment> segments = SegmentsOf(holder);
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(PresentNumel(segments), 6);
  EXPECT_EQ(Numbers(ShardOf(holder, segments)), (std::vector<float>{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(ShardOf(holder, segments).sizes().vec(), (std::vector<int64_t>{2, 3}));
}

TEST_F(HolderTest, MissingPartitionIsZeroAndNotPresent) {
  auto flat = ThreePartitions();
  flat->partitions[1].reset();
  const Holder holder = In(flat, 3, {6});
  const std::vector<Segment> segments = SegmentsOf(holder);
  EXPECT_EQ(PresentNumel(segments), 2);
  EXPECT_EQ(Numbers(ShardOf(holder, segments)), (std::vector<float>{3, 0, 0, 0, 0, 8}));
}

TEST_F(HolderTest, ElementsBehindTheLastPartitionAreNotPresent) {
  const Holder holder = In(ThreePartitions(), 8, {5});
  EXPECT_EQ(PresentNumel(SegmentsOf(holder)), 2);
  EXPECT_EQ(ShardOf(holder, SegmentsOf(holder)).numel(), 5);
}

TEST_F(HolderTest, SliceIsTheMiddleOfTheCopy) {
  EXPECT_EQ(Numbers(SliceOf(In(ThreePartitions(), 2, {6}), 1, 3)), (std::vector<float>{3, 4, 5}));
}

TEST_F(HolderTest, TransposedTensorIsRowMajorWhenFlat) {
  checkpoint::Value stored = writer_.Flat({0, 1, 2, 3, 4, 5});
  auto view = checkpoint::DecodeTensor(stored, "test");
  ASSERT_TRUE(view.ok());
  view.value().shape = {2, 3};
  view.value().strides = {1, 2};
  const std::vector<Stored> mapped = Map({checkpoint::MakeTensor(view.value())});
  Holder holder;
  holder.whole = mapped[0];
  holder.shape = {2, 3};
  EXPECT_EQ(Numbers(SegmentsOf(holder)[0].flat), (std::vector<float>{0, 2, 4, 1, 3, 5}));
}

TEST_F(HolderTest, CopiesThatDifferNameTheFirstElementAndTheWorstUlp) {
  const std::vector<Stored> mapped =
      Map({writer_.Flat({1, 2, 3, 4}), writer_.Flat({1, 2, 3.0000002384185791F, -4})});
  Holder first, second;
  first.whole = mapped[0];
  second.whole = mapped[1];
  first.shape = second.shape = {4};
  const CopyComparison comparison = CompareCopies(SegmentsOf(first), SegmentsOf(second));
  EXPECT_EQ(comparison.compared, 4);
  ASSERT_TRUE(comparison.disagreement);
  EXPECT_EQ(comparison.disagreement->differing, 2);
  EXPECT_EQ(comparison.disagreement->first_index, 2);
  EXPECT_EQ(comparison.disagreement->first_value, 3.0);
  EXPECT_EQ(comparison.disagreement->compared, 4);
  EXPECT_EQ(comparison.disagreement->max_ulp, 2LL * 0x40800000);  // from 4 down to -4
}

TEST_F(HolderTest, NegativeZeroIsNotZero) {
  const std::vector<Stored> mapped = Map({writer_.Flat({0}), writer_.Flat({-0.0F})});
  Holder first, second;
  first.whole = mapped[0];
  second.whole = mapped[1];
  first.shape = second.shape = {1};
  const CopyComparison comparison = CompareCopies(SegmentsOf(first), SegmentsOf(second));
  ASSERT_TRUE(comparison.disagreement);
  EXPECT_EQ(comparison.disagreement->max_ulp, 0);
}

TEST_F(HolderTest, OnlyWhatBothHoldIsCompared) {
  auto flat = ThreePartitions();
  auto partial = std::make_shared<FlatState>(*flat);
  partial->partitions[0].reset();
  const CopyComparison comparison =
      CompareCopies(SegmentsOf(In(flat, 0, {10})), SegmentsOf(In(partial, 0, {10})));
  EXPECT_EQ(comparison.compared, 6);
  EXPECT_FALSE(comparison.disagreement);
}

TEST_F(HolderTest, MasterMatchesItsRoundedWeightOnly) {
  // 1.00390625 lies between the bfloat16 neighbours 1 and 1.0078125, exactly in the middle: to
  // even, 1.
  const std::vector<Stored> mapped =
      Map({writer_.Flat({1.00390625F, 2}), writer_.BFloats({1, 2}, {2}),
           writer_.BFloats({1.0078125F, 2}, {2})});
  Holder master, rounded, other;
  master.whole = mapped[0];
  rounded.whole = mapped[1];
  other.whole = mapped[2];
  master.shape = rounded.shape = other.shape = {2};
  EXPECT_TRUE(MasterMatchesWeight(master, rounded, 100));
  EXPECT_FALSE(MasterMatchesWeight(master, other, 100));
}

}  // namespace
}  // namespace oracle
