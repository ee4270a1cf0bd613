#include "reshape/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace reshape {
namespace {

using checkpoint::DType;

// What a 16-bit pattern is worth, by its definition: sign, exponent, fraction.
struct Format {
  int exponent_bits, fraction_bits;
};
constexpr Format kHalf{5, 10}, kBrain{8, 7};

double ValueOf(uint16_t bits, const Format& format) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = (bits >> format.fraction_bits) & ((1 << format.exponent_bits) - 1);
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << format.exponent_bits) - 1)
    return fraction == 0 ? sign * HUGE_VAL : std::nan("");
  const double scale =
      std::ldexp(1.0, (exponent == 0 ? 1 : exponent) - bias - format.fraction_bits);
  return sign * scale * ((exponent == 0 ? 0 : 1 << format.fraction_bits) + fraction);
}

// The nearest pattern, ties to the even one, by looking at both neighbours.
uint16_t NearestOf(float value, const Format& format, uint16_t below) {
  const double low = ValueOf(below, format),
               high = ValueOf(static_cast<uint16_t>(below + 1), format);
  const double magnitude = std::fabs(static_cast<double>(value));
  const double step =
      std::isinf(high) ? low - ValueOf(static_cast<uint16_t>(below - 1), format) : high - low;
  const double middle = low + step / 2;
  const bool up = magnitude > middle || (magnitude == middle && (below & 1) != 0);
  return static_cast<uint16_t>(below + (up ? 1 : 0));
}

template <typename From, typename To>
To One(DType source, DType target, From value, int64_t* overflowed = nullptr) {
  To out{};
  const int64_t count = Convert({source, target}, &value, &out, 1);
  if (overflowed != nullptr) *overflowed = count;
  return out;
}

void CheckAllPatterns(DType dtype, const Format& format) {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    const double expected = ValueOf(bits, format);
    const auto wide = One<uint16_t, float>(dtype, DType::kFloat32, bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << pattern;
      ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << pattern;
      const auto back = One<float, uint16_t>(DType::kFloat32, dtype, wide);
      ASSERT_TRUE(std::isnan(ValueOf(back, format))) << pattern;
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), expected) << pattern;
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << pattern;
    ASSERT_EQ((One<float, uint16_t>(DType::kFloat32, dtype, wide)), bits) << pattern;
  }
}

TEST(ConvertTest, EveryHalfPatternWidensExactlyAndComesBack) {
  CheckAllPatterns(DType::kFloat16, kHalf);
}
TEST(ConvertTest, EveryBrainPatternWidensExactlyAndComesBack) {
  CheckAllPatterns(DType::kBFloat16, kBrain);
}

// Between each two neighbours: just below, at and just above the middle.
void CheckRounding(DType dtype, const Format& format) {
  const auto infinity =
      static_cast<uint16_t>(((1 << format.exponent_bits) - 1) << format.fraction_bits);
  for (uint16_t below = 0; below < infinity; ++below) {
    const double low = ValueOf(below, format);
    const double step = below + 1 < infinity
                            ? ValueOf(static_cast<uint16_t>(below + 1), format) - low
                            : low - ValueOf(static_cast<uint16_t>(below - 1), format);
    const auto middle = static_cast<float>(low + step / 2);
    for (const float value :
         {std::nextafterf(middle, 0.0F), middle, std::nextafterf(middle, INFINITY)}) {
      if (static_cast<double>(value) < low) continue;
      const uint16_t expected = NearestOf(value, format, below);
      ASSERT_EQ((One<float, uint16_t>(DType::kFloat32, dtype, value)), expected) << value;
      ASSERT_EQ((One<float, uint16_t>(DType::kFloat32, dtype, -value)), expected | 0x8000)
          << -value;
    }
  }
}

TEST(ConvertTest, RoundsToTheNearestHalfTiesToEven) { CheckRounding(DType::kFloat16, kHalf); }
TEST(ConvertTest, RoundsToTheNearestBrainTiesToEven) { CheckRounding(DType::kBFloat16, kBrain); }

TEST(ConvertTest, CountsFiniteValuesThatBecomeInfinite) {
  int64_t overflowed = 0;
  EXPECT_EQ((One<float, uint16_t>(DType::kFloat32, DType::kFloat16, 65519.0F, &overflowed)),
            0x7BFF);
  EXPECT_EQ(overflowed, 0);
  EXPECT_EQ((One<float, uint16_t>(DType::kFloat32, DType::kFloat16, 65520.0F, &overflowed)),
            0x7C00);
  EXPECT_EQ(overflowed, 1);
  EXPECT_EQ((One<float, uint16_t>(DType::kFloat32, DType::kFloat16, -INFINITY, &overflowed)),
            0xFC00);
  EXPECT_EQ(overflowed, 0);
  EXPECT_EQ((One<float, uint16_t>(DType::kFloat32, DType::kBFloat16,
                                  std::numeric_limits<float>::max(), &overflowed)),
            0x7F80);
  EXPECT_EQ(overflowed, 1);
}

TEST(ConvertTest, GoesFromBrainToHalfThroughFp32) {
  // 1.0078125 is 0x3F81 in bf16 and 0x3C08 in fp16.
  EXPECT_EQ((One<uint16_t, uint16_t>(DType::kBFloat16, DType::kFloat16, 0x3F81)), 0x3C08);
  EXPECT_EQ((One<uint16_t, uint16_t>(DType::kFloat16, DType::kBFloat16, 0x3C08)), 0x3F81);
}

TEST(ConvertTest, MovesBitsWhereTypesAreEqual) {
  const uint32_t signalling = 0x7F800001;
  EXPECT_EQ((One<uint32_t, uint32_t>(DType::kFloat32, DType::kFloat32, signalling)), signalling);
  EXPECT_EQ((One<int64_t, int64_t>(DType::kInt64, DType::kInt64, -7)), -7);
}

TEST(ConvertTest, ObeysStridesAndFactor) {
  const std::vector<float> source{1, 2, 3, 4, 5, 6};
  std::vector<float> target(4, -1);
  Conversion conversion{DType::kFloat32, DType::kFloat32, 3, 2, 4096};
  EXPECT_EQ(Convert(conversion, source.data(), target.data(), 2), 0);
  EXPECT_EQ(target, (std::vector<float>{4096, -1, 16384, -1}));
}

TEST(ConvertTest, CountsValuesThatTheFactorMakesInfinite) {
  float out = 0;
  const float large = 1e38F;
  EXPECT_EQ(Convert({DType::kFloat32, DType::kFloat32, 1, 1, 4096}, &large, &out, 1), 1);
}

TEST(ConvertTest, KnowsWhatItCanConvert) {
  EXPECT_TRUE(CanConvert(DType::kInt64, DType::kInt64));
  EXPECT_TRUE(CanConvert(DType::kFloat32, DType::kBFloat16));
  EXPECT_FALSE(CanConvert(DType::kInt64, DType::kFloat32));
  EXPECT_FALSE(CanConvert(DType::kFloat64, DType::kFloat32));
}

}  // namespace
}  // namespace reshape
