// What law S5 counts in a tensor of float32. Internal to certify/. Tested by scan_floats_test.cc.
#pragma once

#include <cstdint>
#include <span>

namespace certify {

struct FloatCounts {
  int64_t not_finite = 0;  // NaN or infinite
  int64_t negative = 0;    // below zero, minus infinity too; -0 and NaN are not
  int64_t zeros = 0;       // of either sign
};

FloatCounts CountFloats(std::span<const float> values);

}  // namespace certify
