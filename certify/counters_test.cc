#include "certify/counters.h"

#include <gtest/gtest.h>

namespace certify {
namespace {

oracle::Counter At(const char* name, double value, int32_t data) {
  return {name, value, {"f", "", {0, 0, data}}};
}

TEST(CountersTest, TheMajorityIsTheValueAndTheRestAreNamed) {
  const auto tallies =
      TallyCounters({At("step", 3, 0), At("scale", 1, 0), At("step", 4, 1), At("step", 4, 2)});
  ASSERT_EQ(tallies.size(), 2u);
  const CounterTally* step = FindTally(tallies, "step");
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->value, 4);
  EXPECT_EQ(step->places, 3);
  ASSERT_EQ(step->others.size(), 1u);
  EXPECT_EQ(step->others[0].place.rank.data, 0);
  EXPECT_EQ(FindTally(tallies, "none"), nullptr);
}

TEST(CountersTest, AmongEqualsTheFirstIsTheValue) {
  EXPECT_EQ(TallyCounters({At("a", 7, 0), At("a", 8, 1)})[0].value, 7);
}

}  // namespace
}  // namespace certify
