#include "reshape/other_targets.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "reshape/target_fixture.h"

namespace reshape {
namespace {

using Values = std::vector<std::string>;

const LockedTargets* Locked(const OtherTargets& other, const std::string& flag,
                            const std::string& value) {
  for (const LockedTargets& locked : other.locked) {
    const auto& values = locked.values;
    if (locked.flag == flag && std::find(values.begin(), values.end(), value) != values.end())
      return &locked;
  }
  return nullptr;
}

TEST(OtherTargetsTest, UndeclaredQkvOrderIsNamedWithWhatUnlocksIt) {
  Inventory source = MakeGpt({});
  const OtherTargets before = FindOtherTargets(source, {}, 4);
  // Two heads: TP 3 and 4 do not divide them, TP 2 wants the order of the rows.
  const LockedTargets* order = Locked(before, "--tp", "2");
  ASSERT_NE(order, nullptr);
  EXPECT_EQ(order->values, Values{"2"});
  EXPECT_NE(order->unlock.find("--qkv-layout"), std::string::npos);
  const LockedTargets* heads = Locked(before, "--tp", "3");
  ASSERT_NE(heads, nullptr);
  EXPECT_EQ(heads->values, (Values{"3", "4"}));
  EXPECT_NE(heads->why.find("2 attention heads"), std::string::npos);
  source.qkv_layout = checkpoint::QkvLayout::kPerHeadGroup;
  EXPECT_EQ(Locked(FindOtherTargets(source, {}, 4), "--tp", "2"), nullptr);
}

TEST(OtherTargetsTest, StagesThatNeedCutsSayso) {
  Inventory source = MakePlain({8, 8, 8}, Wrapper::kZero, checkpoint::DType::kBFloat16);
  source.layout = NameLayout::kPipeline;
  source.cuts = {0, 3};
  for (int64_t i = 0; i < 3; ++i) {
    source.tensors[static_cast<size_t>(i)].name = std::to_string(i) + ".weight";
    source.tensors[static_cast<size_t>(i)].layers = {i};
  }
  const OtherTargets other = FindOtherTargets(source, {}, 3);
  const LockedTargets* stages = Locked(other, "--pp", "2");
  ASSERT_NE(stages, nullptr);
  EXPECT_EQ(stages->values, (Values{"2", "3"}));
  EXPECT_NE(stages->unlock.find("--cuts"), std::string::npos);
}

TEST(OtherTargetsTest, ListsReachableFormsAndLeavesOutWhatIsFixed) {
  const Inventory source = MakeGpt({});
  const OtherTargets other = FindOtherTargets(source, {}, 2);
  EXPECT_EQ(other.reachable,
            (Values{"--layout plain", "--format universal", "--dtype bf16", "--dtype fp32"}));
  EXPECT_NE(Locked(other, "--zero", "2"), nullptr);
  EXPECT_NE(Locked(other, "--zero", "3"), nullptr);
  const OtherTargets fixed =
      FindOtherTargets(source, {.zero_stage = 1, .layout = NameLayout::kPlain}, 2);
  EXPECT_EQ(Locked(fixed, "--zero", "3"), nullptr);
  EXPECT_EQ(std::count(fixed.reachable.begin(), fixed.reachable.end(), "--layout pipeline"), 0);
}

}  // namespace
}  // namespace reshape
