// The worked numbers of FAULTS.md, F11 and F12: alignment padding to the element.
#include <gtest/gtest.h>

#include "checkpoint/tree.h"
#include "oracle/partitions.h"
#include "oracle/test_files.h"

namespace oracle {
namespace {

TEST(PaddingTest, PartitionsAreMultiplesOfTwo) {
  EXPECT_EQ(PartitionNumel(10, 4), 4);          // 16 / 4
  EXPECT_EQ(PartitionNumel(57, 2), 30);         // 60 / 2
  EXPECT_EQ(PartitionNumel(266240, 768), 348);  // 267264 / 768
  EXPECT_EQ(PartitionNumel(1, 3), 2);           // 6 / 3
  EXPECT_EQ(PartitionNumel(0, 3), 0);
}

// One group of `numel` elements on `fp32.size()` ranks: fp32 partitions as given, moments of
// `partition` elements.
class PaddingAccountTest : public ::testing::Test {
 protected:
  std::vector<PaddingAccount> Account(int64_t numel, const std::vector<std::vector<float>>& fp32,
                                      int64_t partition, const std::vector<int64_t>& recorded) {
    std::vector<checkpoint::Value> dictionaries;
    for (size_t i = 0; i < fp32.size(); ++i) {
      const std::vector<float> moments(static_cast<size_t>(partition), 0.0F);
      dictionaries.push_back(Dict({
          {"base_optimizer_state",
           Dict({{"state", Numbered({Dict({{"exp_avg", writer_.Flat(moments)}})})}})},
          {"single_partition_of_fp32_groups", checkpoint::MakeList({writer_.Flat(fp32[i])})},
          {"group_paddings", Ints({recorded[i]})},
      }));
    }
    const auto path = folder_.path() / ("padding" + std::to_string(files_++) + ".pt");
    writer_.Write(path, checkpoint::MakeList(dictionaries));
    Source source;
    source.files.push_back(Reopen(path));
    source.labels.push_back("padding.pt");
    Draft draft(std::move(source));
    RankFiles rank;
    rank.dictionaries = *checkpoint::SequenceItems(draft.source.files[0].root);
    rank.files.assign(fp32.size(), 0);
    GroupLayout layout;
    layout.members.push_back({"a", {numel}, 0});
    layout.numel = numel;
    GroupFacts facts;
    facts.partition_count = static_cast<int64_t>(fp32.size());
    facts.partition_numel = partition;
    facts.keeps_padding = keeps_padding_;
    const auto status = AccountForPadding(draft, rank, facts, layout, 0);
    EXPECT_TRUE(status.ok());
    findings_ = draft.summary.findings;
    return draft.summary.padding;
  }

  TestFolder folder_;
  TreeWriter writer_;
  std::vector<Finding> findings_;
  bool keeps_padding_ = false;
  int files_ = 0;
};

TEST_F(PaddingAccountTest, PaddingOnSeveralRanksIsAccountedToTheElement) {
  keeps_padding_ = true;
  std::vector<int64_t> recorded(768, 0);
  recorded[765] = 328;
  recorded[766] = recorded[767] = 348;
  const std::vector<std::vector<float>> fp32(768, std::vector<float>(348, 0.0F));
  const auto accounts = Account(266240, fp32, 348, recorded);
  ASSERT_EQ(accounts.size(), 768u);
  EXPECT_EQ(accounts[764].expected_padding, 0);
  EXPECT_EQ(accounts[765].expected_padding, 328);
  EXPECT_EQ(accounts[766].expected_padding, 348);
  EXPECT_EQ(accounts[767].expected_padding, 348);
  for (const PaddingAccount& account : accounts) EXPECT_EQ(account.problem, "");
  EXPECT_TRUE(findings_.empty());
}

TEST_F(PaddingAccountTest, WholePaddingOnTheLastRankIsTheHistoricRecord) {
  keeps_padding_ = true;
  std::vector<int64_t> recorded(768, 0);
  recorded[767] = 1024;
  const auto accounts = Account(
      266240, std::vector<std::vector<float>>(768, std::vector<float>(348, 0.0F)), 348, recorded);
  for (const PaddingAccount& account : accounts) EXPECT_EQ(account.problem, "");
  ASSERT_EQ(findings_.size(), 1u);
  EXPECT_EQ(findings_[0].kind, "historic-padding-record");
  EXPECT_FALSE(findings_[0].fault);
}

TEST_F(PaddingAccountTest, RealElementsRecordedAsPaddingAreAProblem) {
  keeps_padding_ = true;
  std::vector<int64_t> recorded(768, 0);
  recorded[765] = 20;  // 348 - 328
  recorded[766] = recorded[767] = 348;
  const auto accounts = Account(
      266240, std::vector<std::vector<float>>(768, std::vector<float>(348, 0.0F)), 348, recorded);
  EXPECT_NE(accounts[765].problem, "");
  EXPECT_EQ(accounts[766].problem, "");
}

TEST_F(PaddingAccountTest, StrippedPartitionsOfThirtyAndTwentySevenAreExact) {
  const auto accounts =
      Account(57, {std::vector<float>(30, 1), std::vector<float>(27, 1)}, 30, {0, 3});
  EXPECT_EQ(accounts[0].problem + accounts[1].problem, "");
  EXPECT_TRUE(findings_.empty());
}

TEST_F(PaddingAccountTest, HistoricTwentyNineIsAcceptedOnlyWithZeros) {
  std::vector<float> last(29, 1);
  last[27] = last[28] = 0;
  auto accounts = Account(57, {std::vector<float>(30, 1), last}, 30, {0, 3});
  EXPECT_EQ(accounts[0].problem + accounts[1].problem, "");
  ASSERT_EQ(findings_.size(), 1u);
  EXPECT_EQ(findings_[0].kind, "historic-padding-kept");
  last[28] = 1;
  accounts = Account(57, {std::vector<float>(30, 1), last}, 30, {0, 3});
  EXPECT_NE(accounts[1].problem, "");
  EXPECT_EQ(accounts[1].nonzero, 1);
}

TEST_F(PaddingAccountTest, ShorterPartitionIsAProblem) {
  const auto accounts =
      Account(57, {std::vector<float>(30, 1), std::vector<float>(26, 1)}, 30, {0, 3});
  EXPECT_NE(accounts[1].problem, "");
}

TEST_F(PaddingAccountTest, PartitionsOfAnotherAlignmentAreAProblem) {
  const auto accounts =
      Account(57, {std::vector<float>(40, 1), std::vector<float>(17, 1)}, 40, {0, 23});
  EXPECT_NE(accounts[0].problem, "");
}

TEST(GroupLayoutTest, StartsFollowTheShapesAndTheirAlignmentPads) {
  const auto shapes = Dict({{"a", checkpoint::MakeTorchSize({2, 3})},
                            {"b", checkpoint::MakeTorchSize({})},
                            {"c", checkpoint::MakeTorchSize({4})}});
  const GroupLayout dense = LayoutFromShapes(shapes, {});
  EXPECT_EQ(dense.members[1].start, 6);
  EXPECT_EQ(dense.members[2].start, 7);
  EXPECT_EQ(dense.numel, 11);
  const GroupLayout padded = LayoutFromShapes(shapes, {2, 7, 0});
  EXPECT_EQ(padded.members[1].start, 8);
  EXPECT_EQ(padded.members[2].start, 16);
  EXPECT_EQ(padded.numel, 20);
}

checkpoint::Value Fragment(int64_t start, int64_t numel) {
  return checkpoint::MakeInstance(
      "deepspeed.utils.tensor_fragment", "fragment_address",
      Dict({{"numel", checkpoint::MakeInt(numel)}, {"start", checkpoint::MakeInt(start)}}));
}

checkpoint::Value Maps(const Entries& fragments) {
  return Dict({{"param_slice_mappings", checkpoint::MakeList({Dict(fragments)})}});
}

TEST(GroupLayoutTest, SliceMappingsOfAllRanksGiveTheOrder) {
  RankFiles rank;
  rank.dictionaries = {Maps({{"b", Fragment(0, 3)}, {"a", Fragment(3, 1)}}),
                       Maps({{"a", Fragment(0, 2)}})};
  GroupFacts facts;
  facts.partition_count = 2;
  facts.partition_numel = 4;
  const auto layout = LayoutFromMaps(rank, facts, {{"a", {3, 1}}});
  ASSERT_TRUE(layout);
  ASSERT_EQ(layout->members.size(), 2u);
  EXPECT_EQ(layout->members[0].name, "b");
  EXPECT_EQ(layout->members[1].name, "a");
  EXPECT_EQ(layout->members[1].start, 3);
  EXPECT_EQ(layout->members[1].shape, (std::vector<int64_t>{3, 1}));
  EXPECT_TRUE(MapsAgree(rank, facts, *layout));
}

TEST(GroupLayoutTest, FragmentsThatDoNotJoinAreNoOrder) {
  RankFiles rank;
  rank.dictionaries = {Maps({{"a", Fragment(2, 1)}}), Maps({{"a", Fragment(0, 2)}})};
  GroupFacts facts;
  facts.partition_count = 2;
  facts.partition_numel = 4;
  EXPECT_FALSE(LayoutFromMaps(rank, facts, {}));
  rank.dictionaries = {Maps({{"a", Fragment(2, 9)}})};
  EXPECT_FALSE(LayoutFromMaps(rank, facts, {}));
}

TEST(GroupLayoutTest, MappingsOfAnotherOrderDisagree) {
  RankFiles rank;
  rank.dictionaries = {Maps({{"a", Fragment(0, 2)}, {"b", Fragment(2, 2)}})};
  GroupFacts facts;
  facts.partition_numel = 4;
  GroupLayout layout;
  layout.members = {{"b", {2}, 0}, {"a", {2}, 2}};
  layout.numel = 4;
  EXPECT_FALSE(MapsAgree(rank, facts, layout));
}

}  // namespace
}  // namespace oracle
