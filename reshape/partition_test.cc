// Padding and partitions of flat groups, with the numbers of known fault reports.
#include "reshape/partition.h"

#include <gtest/gtest.h>

namespace reshape {
namespace {

using checkpoint::ErrorCode;

TEST(PartitionTest, PaddingMayFillSeveralTrailingRanks) {
  const PartitionForm form = MakePartitionForm(266240, 768);
  EXPECT_EQ(form.partition_numel * 768, 267264);
  EXPECT_EQ(form.partition_numel, 348);
  EXPECT_EQ(RealNumel(form, 0), 348);
  EXPECT_EQ(RealNumel(form, 764), 348);
  EXPECT_EQ(RealNumel(form, 765), 348 - 328);
  EXPECT_EQ(RealNumel(form, 766), 0);
  EXPECT_EQ(RealNumel(form, 767), 0);
}

TEST(PartitionTest, GroupsOfFewerElementsThanRanks) {
  // One element over 4 ranks: padded to 8, partitions of 2, one of them with a real element.
  const PartitionForm form = MakePartitionForm(1, 4);
  EXPECT_EQ(form.partition_numel, 2);
  EXPECT_EQ(RealNumel(form, 0), 1);
  EXPECT_EQ(RealNumel(form, 1), 0);
}

TEST(PartitionTest, MastersWithoutPaddingAreUnderstood) {
  const auto form = FindPartitionForm({57, 2, {30, 27}, {30, 30}}, "test");
  ASSERT_TRUE(form.ok());
  EXPECT_EQ(form.value().partition_numel, 30);
}

TEST(PartitionTest, MastersThatOlderVersionsStrippedWronglyAreUnderstood) {
  const auto form = FindPartitionForm({57, 2, {30, 29}, {}}, "test");
  ASSERT_TRUE(form.ok());
  EXPECT_EQ(form.value().partition_numel, 30);
  EXPECT_EQ(RealNumel(form.value(), 1), 27);
}

TEST(PartitionTest, MastersWithPaddingKeptAreUnderstood) {
  const auto form = FindPartitionForm({57, 2, {30, 30}, {30, 30}}, "test");
  ASSERT_TRUE(form.ok());
  EXPECT_EQ(form.value().partition_numel, 30);
}

TEST(PartitionTest, PaddingToTheRankCountAloneIsUnderstood) {
  // 58 elements over 2 ranks: 29 each where only the rank count was padded to, 30 otherwise.
  const auto form = FindPartitionForm({58, 2, {29, 29}, {29, 29}}, "test");
  ASSERT_TRUE(form.ok());
  EXPECT_EQ(form.value().partition_numel, 29);
}

TEST(PartitionTest, PartitionsThatCannotHoldTheGroupAreRefused) {
  const auto form = FindPartitionForm({57, 2, {30, 26}, {30, 30}}, "test");
  ASSERT_FALSE(form.ok());
  EXPECT_EQ(form.error().code, ErrorCode::kInconsistent);
  EXPECT_EQ(FindPartitionForm({57, 2, {31, 27}, {30, 30}}, "test").error().code,
            ErrorCode::kInconsistent);
}

TEST(PartitionTest, UnknownGroupSizeIsWhatTheMastersHold) {
  const auto form = FindPartitionForm({-1, 3, {2288, 2288, 2288}, {2288, 2288, 2288}}, "test");
  ASSERT_TRUE(form.ok());
  EXPECT_EQ(form.value().group_numel, 6864);
  EXPECT_EQ(form.value().partition_numel, 2288);
}

}  // namespace
}  // namespace reshape
