#include "oracle/order.h"

#include <gtest/gtest.h>

#include "checkpoint/tree.h"
#include "oracle/test_files.h"

namespace oracle {
namespace {

using checkpoint::GroupRule;

// Parameters a (2x2), b.bias (2), c (2x2), d (2): weights in bfloat16; masters are the same values
// in fp32.
class OrderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Add("a", {1, 2, 3, 4}, {2, 2});
    Add("b.bias", {5, 6}, {2});
    Add("c", {7, 8, 9, 10}, {2, 2});
    Add("d", {11, 12}, {2});
  }

  void Add(const std::string& name, const std::vector<float>& values,
           const std::vector<int64_t>& shape) {
    names_.push_back(name);
    shapes_.push_back(shape);
    weights_.push_back(writer_.BFloats(values, shape));
  }

  // Writes weights and masters, maps them, and makes candidates and flat groups.
  void Write(const std::vector<std::vector<float>>& groups) {
    std::vector<checkpoint::Value> all = weights_;
    for (const auto& group : groups) all.push_back(writer_.Flat(group));
    writer_.Write(folder_.path() / "order.pt", checkpoint::MakeList(all));
    file_ = Reopen(folder_.path() / "order.pt");
    std::vector<Stored> mapped;
    for (const checkpoint::Value& value : *checkpoint::SequenceItems(file_.root)) {
      mapped.push_back({checkpoint::DecodeTensor(value, "test").value(), {}});
    }
    for (size_t i = 0; i < names_.size(); ++i) {
      Holder holder;
      holder.whole = mapped[i];
      holder.shape = shapes_[i];
      holders_.push_back(holder);
    }
    for (size_t i = 0; i < names_.size(); ++i)
      candidates_.push_back({names_[i], shapes_[i], &holders_[i]});
    for (size_t g = 0; g < groups.size(); ++g) {
      auto flat = std::make_shared<FlatState>();
      flat->partition_numel = static_cast<int64_t>(groups[g].size());
      flat->partitions.emplace_back(mapped[names_.size() + g]);
      NamelessGroup group;
      group.flat = true;
      group.numel = flat->partition_numel;
      group.states[kMaster] = flat;
      groups_.push_back(group);
    }
  }

  std::vector<std::vector<std::string>> Names(const Order& order) const {
    std::vector<std::vector<std::string>> names;
    for (const auto& group : order.groups) {
      names.emplace_back();
      for (const size_t i : group) names.back().push_back(candidates_[i].name);
    }
    return names;
  }

  TestFolder folder_;
  TreeWriter writer_;
  checkpoint::TorchFile file_;
  std::vector<std::string> names_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<checkpoint::Value> weights_;
  std::vector<Holder> holders_;
  std::vector<Candidate> candidates_;
  std::vector<NamelessGroup> groups_;
};

TEST_F(OrderTest, WeightDecaySplitIsProvedByContent) {
  Write({{1, 2, 3, 4, 7, 8, 9, 10}, {5, 6, 11, 12}});
  const auto order = FindOrder(candidates_, groups_, GroupRule::kMegatron);
  ASSERT_TRUE(order);
  EXPECT_TRUE(order->derived);
  EXPECT_EQ(order->proved, 4);
  EXPECT_EQ(Names(*order), (std::vector<std::vector<std::string>>{{"a", "c"}, {"b.bias", "d"}}));
}

TEST_F(OrderTest, HalvesOfTheDecayingListAreThreeGroups) {
  Write({{1, 2, 3, 4}, {7, 8, 9, 10}, {5, 6, 11, 12}});
  const auto order = FindOrder(candidates_, groups_, GroupRule::kMegatronHalves);
  ASSERT_TRUE(order);
  EXPECT_EQ(Names(*order), (std::vector<std::vector<std::string>>{{"a"}, {"c"}, {"b.bias", "d"}}));
}

TEST_F(OrderTest, OtherOrderIsFoundByContent) {
  Write({{7, 8, 9, 10, 1, 2, 3, 4}, {11, 12, 5, 6}});
  const auto order = FindOrder(candidates_, groups_, GroupRule::kMegatron);
  ASSERT_TRUE(order);
  EXPECT_FALSE(order->derived);
  EXPECT_EQ(order->proved, 4);
  EXPECT_EQ(Names(*order), (std::vector<std::vector<std::string>>{{"c", "a"}, {"d", "b.bias"}}));
}

TEST_F(OrderTest, FrozenParametersArePassedOver) {
  Write({{7, 8, 9, 10}, {5, 6}});
  const auto order = FindOrder(candidates_, groups_, GroupRule::kMegatron);
  ASSERT_TRUE(order);
  EXPECT_EQ(Names(*order), (std::vector<std::vector<std::string>>{{"c"}, {"b.bias"}}));
}

TEST_F(OrderTest, StaleMastersKeepTheDerivedOrderAndAreNamed) {
  Write({{0, 0, 0, 1, 7, 8, 9, 10}, {5, 6, 11, 12}});
  const auto order = FindOrder(candidates_, groups_, GroupRule::kMegatron);
  ASSERT_TRUE(order);
  EXPECT_EQ(order->proved, 3);
  EXPECT_EQ(order->unproved, (std::vector<std::string>{"a"}));
  EXPECT_EQ(Names(*order), (std::vector<std::vector<std::string>>{{"a", "c"}, {"b.bias", "d"}}));
}

TEST_F(OrderTest, SizesThatNoOrderHasAreNoOrder) {
  Write({{1, 2, 3}, {5, 6, 11, 12}});
  EXPECT_FALSE(FindOrder(candidates_, groups_, GroupRule::kMegatron));
}

TEST_F(OrderTest, ParameterWithoutWeightFollowsFromItsNeighbours) {
  Write({{0, 0, 0, 0, 7, 8, 9, 10}, {5, 6, 11, 12}});
  candidates_[0].weight = nullptr;
  const auto order = FindOrder(candidates_, groups_, GroupRule::kMegatron);
  ASSERT_TRUE(order);
  EXPECT_EQ(order->proved, 3);
  EXPECT_EQ(order->provable, 3);
  EXPECT_EQ(order->unprovable, (std::vector<std::string>{"a"}));
}

TEST_F(OrderTest, EqualWeightsOfOneShapeAreAmbiguous) {
  Add("e.bias", {11, 12}, {2});
  Write({{1, 2, 3, 4, 7, 8, 9, 10}, {5, 6, 11, 12, 11, 12}});
  const auto order = FindOrder(candidates_, groups_, GroupRule::kMegatron);
  ASSERT_TRUE(order);
  EXPECT_EQ(AmbiguousNames(candidates_, *order), (std::vector<std::string>{"d", "e.bias"}));
}

TEST_F(OrderTest, SlotsAreMatchedByShapeAndContent) {
  Write({{11, 12}, {7, 8, 9, 10}});
  NamelessGroup group;
  for (const auto& [flat, shape] :
       std::vector<std::pair<size_t, std::vector<int64_t>>>{{0, {2}}, {1, {2, 2}}}) {
    Slot slot;
    slot.shape = shape;
    slot.states[kMaster] = *groups_[flat].states[kMaster]->partitions[0];
    group.slots.push_back(slot);
  }
  const auto order = FindOrder(candidates_, {group}, GroupRule::kFromFiles);
  ASSERT_TRUE(order);
  EXPECT_EQ(Names(*order), (std::vector<std::vector<std::string>>{{"d", "c"}}));
  EXPECT_FALSE(order->derived);
}

}  // namespace
}  // namespace oracle
