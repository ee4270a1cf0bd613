// Rounding against a reference that knows only the definition: the nearest representable number,
// the even one of two.
#include "reshape/rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace reshape {
namespace {

TEST(RoundingTest, EveryBFloat16ComesBack) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    const float wide = WidenBFloat16(narrow);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(WidenBFloat16(RoundToBFloat16(wide))));
    } else {
      EXPECT_EQ(RoundToBFloat16(wide), narrow);
    }
  }
}

TEST(RoundingTest, EveryFloat16ComesBack) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    const float wide = WidenFloat16(narrow);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(WidenFloat16(RoundToFloat16(wide))));
    } else {
      EXPECT_EQ(RoundToFloat16(wide), narrow);
    }
  }
}

// Between each positive number and the next: below the middle down, above it up, on it to the even
// one.
template <typename Widen, typename Round>
void CheckMiddles(uint16_t infinity, Widen widen, Round round) {
  for (uint16_t bits = 0; bits + 1 < infinity; ++bits) {
    const float low = widen(bits), high = widen(static_cast<uint16_t>(bits + 1));
    const auto middle =
        static_cast<float>((static_cast<double>(low) + static_cast<double>(high)) / 2);
    const auto even = static_cast<uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(round(middle), even) << bits;
    ASSERT_EQ(round(std::nextafter(middle, low)), bits) << bits;
    ASSERT_EQ(round(std::nextafter(middle, high)), bits + 1) << bits;
    ASSERT_EQ(round(-middle), even | 0x8000) << bits;
  }
}

TEST(RoundingTest, MiddlesGoToTheEvenFloat16) {
  CheckMiddles(0x7C00, WidenFloat16, RoundToFloat16);
}
TEST(RoundingTest, MiddlesGoToTheEvenBFloat16) {
  // The middles of the smallest subnormals are fp32 subnormals themselves: exact as well.
  CheckMiddles(0x7F80, WidenBFloat16, RoundToBFloat16);
}

TEST(RoundingTest, Float16OverflowsAtItsBoundary) {
  EXPECT_EQ(RoundToFloat16(65519.996F), 0x7BFF);
  EXPECT_EQ(RoundToFloat16(65520.0F), 0x7C00);
  EXPECT_EQ(RoundToFloat16(-65520.0F), 0xFC00);
  EXPECT_EQ(RoundToFloat16(std::numeric_limits<float>::infinity()), 0x7C00);
}

}  // namespace
}  // namespace reshape
