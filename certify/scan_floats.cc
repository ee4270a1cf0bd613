#include "certify/scan_floats.h"

#include <algorithm>
#include <bit>

namespace certify {
namespace {

// Elements counted in 32 bits, so that vectors hold as many counts as elements.
constexpr size_t kBlock = 1 << 14;

struct BlockCounts {
  int32_t not_finite = 0, negative = 0, zeros = 0;
};

// Without branches (& for &&), and on integers only: the compiler makes vectors of it.
BlockCounts CountBlock(const float* block, size_t count) {
  int32_t not_finite = 0, negative = 0, zeros = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<int32_t>(block[i]);
    const int32_t magnitude = bits & 0x7fffffff;
    not_finite += static_cast<int32_t>(magnitude >= 0x7f800000);
    zeros += static_cast<int32_t>(magnitude == 0);
    const bool number = (magnitude != 0) & (magnitude <= 0x7f800000);
    negative += static_cast<int32_t>((bits < 0) & number);
  }
  return {not_finite, negative, zeros};
}

}  // namespace

FloatCounts CountFloats(std::span<const float> values) {
  FloatCounts counts;
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const size_t count = std::min(kBlock, values.size() - begin);
    const BlockCounts block = CountBlock(values.data() + begin, count);
    counts.not_finite += block.not_finite;
    counts.negative += block.negative;
    counts.zeros += block.zeros;
  }
  return counts;
}

}  // namespace certify
