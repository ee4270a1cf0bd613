// fp32 to the 16-bit types and back, bit for bit as the framework does it (round to nearest even).
// Used to prove the order of nameless flat groups and to change the type of weights. Tested by
// rounding_test.cc.
#pragma once

#include <bit>
#include <cstdint>

namespace reshape {

// Bits of the bfloat16 nearest to `value`, ties to even. A NaN stays one (with its sign, quiet).
inline uint16_t RoundToBFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto rounded = static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
  const auto quiet = static_cast<uint16_t>((bits >> 16) | 0x40u);
  const auto is_nan =
      static_cast<uint16_t>(0u - static_cast<uint32_t>((bits & 0x7FFFFFFFu) > 0x7F800000u));
  return static_cast<uint16_t>((quiet & is_nan) | (rounded & ~is_nan));
}

// Bits of the float16 nearest to `value`, ties to even; from 65520 on infinity. A NaN stays one.
inline uint16_t RoundToFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  // Normal result: rebias the exponent by 112 and round away 13 bits. 65520 and above carries into
  // the exponent of infinity.
  const uint32_t normal = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // Below 2^-14 the result is a multiple of 2^-24: adding 0.5, whose last bit is worth 2^-24, makes
  // the hardware round there.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  // Chosen by masks, not branches: loops over this function are vectorised.
  const uint32_t is_subnormal = 0u - static_cast<uint32_t>(magnitude < 0x38800000u);
  const uint32_t overflows = 0u - static_cast<uint32_t>(magnitude >= 0x477FF000u);
  const uint32_t is_nan = 0u - static_cast<uint32_t>(magnitude > 0x7F800000u);
  uint32_t result = (subnormal & is_subnormal) | (normal & ~is_subnormal);
  result = (result & ~overflows) | (0x7C00u & overflows) | (0x7E00u & is_nan);
  return static_cast<uint16_t>(sign | result);
}

inline float WidenBFloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline float WidenFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu, mantissa = bits & 0x3FFu;
  if (exponent == 0x1Fu) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(tiny));
}

}  // namespace reshape
