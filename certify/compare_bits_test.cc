#include "certify/compare_bits.h"

#include <ATen/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace certify {
namespace {

using checkpoint::DType;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

at::Tensor Floats(std::vector<float> values) {
  return at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kFloat).clone();
}

TEST(UlpTest, NeighboursAreOneApart) {
  EXPECT_EQ(UlpDistance(1.0f, std::nextafterf(1.0f, 2.0f)), 1);
  EXPECT_EQ(UlpDistance(1.0f, 1.0f), 0);
  EXPECT_EQ(UlpDistance(-0.0f, 0.0f), 1);
  // 2 - 1 in units of 2^-23.
  EXPECT_EQ(UlpDistance(1.0f, 2.0f), 1 << 23);
  EXPECT_EQ(UlpDistance(-1.0f, 1.0f), 2 * 0x3f800000LL + 1);
}

TEST(UlpTest, NanHasNoDistance) {
  EXPECT_EQ(UlpDistance(kNan, kNan), kUlpNone);
  EXPECT_EQ(UlpDistance16(0x7fc0, 0x3f80, DType::kBFloat16), kUlpNone);
  // 0x7c00 is infinity in fp16 and a plain number in bf16.
  EXPECT_EQ(UlpDistance16(0x7c00, 0x7bff, DType::kFloat16), 1);
}

TEST(RoundingTest, TiesGoToEven) {
  // bf16 keeps 8 significant bits: 1 + 2^-8 lies halfway between 1 and 1 + 2^-7.
  EXPECT_EQ(RoundToBFloat16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(RoundToBFloat16(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(RoundToFloat16(1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(RoundToFloat16(1.0f + 3 * 0x1p-11f), 0x3c02);
}

TEST(RoundingTest, EdgesOfFloat16) {
  EXPECT_EQ(RoundToFloat16(65504.0f), 0x7bff);
  EXPECT_EQ(RoundToFloat16(65519.996f), 0x7bff);
  EXPECT_EQ(RoundToFloat16(65520.0f), 0x7c00);
  EXPECT_EQ(RoundToFloat16(-1e30f), 0xfc00);
  EXPECT_EQ(RoundToFloat16(0x1p-24f), 0x0001);
  EXPECT_EQ(RoundToFloat16(0x1p-25f), 0x0000);
  EXPECT_EQ(RoundToFloat16(0x1.8p-25f), 0x0001);
  EXPECT_EQ(RoundToFloat16(0x1p-14f), 0x0400);
  EXPECT_EQ(RoundToFloat16(-0.0f), 0x8000);
}

TEST(RoundingTest, AgreesWithLibtorchOnAllUpperHalves) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const at::ScalarType type = dtype == DType::kBFloat16 ? at::kBFloat16 : at::kHalf;
    std::vector<float> values;
    for (uint32_t upper = 0; upper < 0x10000; ++upper)
      for (const uint32_t lower :
           {0u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
        values.push_back(std::bit_cast<float>(upper << 16 | lower));
    const at::Tensor wide = Floats(values);
    EXPECT_TRUE(CompareConverted(wide, wide.to(type), true).equal());
  }
}

TEST(RoundingTest, WideningIsExact) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      const float wide = WidenTo32(half, dtype);
      if (std::isnan(wide)) continue;
      EXPECT_EQ(RoundTo16Bit(wide, dtype), half);
    }
  }
}

TEST(CompareBitsTest, NegativeZeroIsNotZero) {
  const Difference difference = CompareBits(Floats({1, 0, 2}), Floats({1, -0.0f, 2}));
  EXPECT_EQ(difference.differing, 1);
  EXPECT_EQ(difference.first_index, 1);
  EXPECT_EQ(difference.ulp_max, 1);
}

TEST(CompareBitsTest, OnlyTheSameNanIsEqual) {
  const float other = std::bit_cast<float>(0x7fc00001u);
  EXPECT_TRUE(CompareBits(Floats({kNan}), Floats({kNan})).equal());
  const Difference difference = CompareBits(Floats({kNan}), Floats({other}));
  EXPECT_EQ(difference.differing, 1);
  EXPECT_EQ(difference.not_comparable, 1);
}

TEST(CompareBitsTest, FindsFirstAndWorstBeyondTheFirstBlock) {
  std::vector<float> values(100000, 1.0f);
  const at::Tensor expected = Floats(values);
  values[70000] = std::nextafterf(1.0f, 2.0f);
  values[99999] = 3.0f;
  std::vector<bool> marked;
  const Difference difference = CompareBits(expected, Floats(values), &marked);
  EXPECT_EQ(difference.compared, 100000);
  EXPECT_EQ(difference.differing, 2);
  EXPECT_EQ(difference.first_index, 70000);
  EXPECT_EQ(difference.worst_index, 99999);
  EXPECT_DOUBLE_EQ(difference.relative_max, 2.0 / 3.0);
  EXPECT_TRUE(marked[70000] && marked[99999]);
  EXPECT_FALSE(marked[69999]);
}

TEST(CompareBitsTest, IntegersAndBooleansHaveNoUlp) {
  const at::Tensor a = Floats({1, 2}).to(at::kLong), b = Floats({1, 3}).to(at::kLong);
  const Difference difference = CompareBits(a, b);
  EXPECT_EQ(difference.differing, 1);
  EXPECT_EQ(difference.first_found, 3);
  EXPECT_EQ(difference.not_comparable, 1);
}

TEST(CompareConvertedTest, AnyNanIsAskedForByName) {
  const at::Tensor wide = Floats({kNan});
  at::Tensor narrow = wide.to(at::kBFloat16);
  narrow.view(at::kShort)[0] = static_cast<int16_t>(0xffc1);
  EXPECT_TRUE(CompareConverted(wide, narrow, true).equal());
  EXPECT_EQ(CompareConverted(wide, narrow, false).differing, 1);
}

TEST(CompareConvertedTest, AFiniteMasterBeyondFloat16IsInfinity) {
  EXPECT_TRUE(CompareConverted(Floats({1e6f}), Floats({kInfinity}).to(at::kHalf), true).equal());
}

TEST(CompareConvertedTest, WidensExactly) {
  const at::Tensor narrow = Floats({0.1f, -3.0f}).to(at::kBFloat16);
  EXPECT_TRUE(CompareConverted(narrow, narrow.to(at::kFloat), false).equal());
  EXPECT_EQ(CompareConverted(narrow, Floats({0.1f, -3.0f}), false).differing, 1);
}

TEST(CompareScaledTest, FindsAConstantFactor) {
  const at::Tensor source = Floats({0.5f, -3.0f, 0.0f, 1e-3f});
  const at::Tensor target = source.mul(4096);
  EXPECT_EQ(FactorAtLargest(source, target), 4096);
  EXPECT_TRUE(CompareScaled(source, target, {4096, 0}).equal());
  EXPECT_EQ(CompareScaled(source, target, {4095, 1}).differing, 3);
  EXPECT_TRUE(std::isnan(FactorAtLargest(Floats({0}), Floats({1}))));
}

TEST(DifferenceTest, AppendShiftsIndices) {
  Difference sum = CompareBits(Floats({1, 2}), Floats({1, 2}));
  sum.Append(CompareBits(Floats({1, 2}), Floats({1, 5})));
  EXPECT_EQ(sum.compared, 4);
  EXPECT_EQ(sum.first_index, 3);
  EXPECT_EQ(sum.worst_found, 5);
  EXPECT_EQ(DifferenceText(sum),
            "1 of 4 elements differ, by at most 10485760 ulp; first at 3: expected 2, found 5");
  EXPECT_EQ(DifferenceText(sum, {"the master rounds to", "the weight is"}),
            "1 of 4 elements differ, by at most 10485760 ulp; first at 3: the master rounds to 2, "
            "the weight is 5");
}

}  // namespace
}  // namespace certify
