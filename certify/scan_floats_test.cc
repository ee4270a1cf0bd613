#include "certify/scan_floats.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace certify {
namespace {

using Limits = std::numeric_limits<float>;

TEST(CountFloatsTest, EachKindIsCounted) {
  const std::vector<float> values{0.0F,
                                  -0.0F,
                                  1.0F,
                                  -1.0F,
                                  Limits::denorm_min(),
                                  -Limits::denorm_min(),
                                  Limits::infinity(),
                                  -Limits::infinity(),
                                  Limits::quiet_NaN(),
                                  -Limits::quiet_NaN(),
                                  Limits::max(),
                                  Limits::lowest()};
  const FloatCounts counts = CountFloats(values);
  EXPECT_EQ(counts.zeros, 2);
  EXPECT_EQ(counts.negative, 4);
  EXPECT_EQ(counts.not_finite, 4);
  EXPECT_EQ(CountFloats({}).zeros, 0);
}

TEST(CountFloatsTest, OneElementAtAnyPlaceOfALongTensorIsFound) {
  std::vector<float> values(50001, 1.0F);
  for (const size_t place : {size_t{0}, size_t{16383}, size_t{16384}, size_t{50000}}) {
    values[place] = -2.0F;
    EXPECT_EQ(CountFloats(values).negative, 1) << place;
    values[place] = Limits::infinity();
    EXPECT_EQ(CountFloats(values).not_finite, 1) << place;
    values[place] = 1.0F;
  }
  EXPECT_EQ(CountFloats(values).negative + CountFloats(values).not_finite, 0);
}

}  // namespace
}  // namespace certify
