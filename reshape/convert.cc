#include "reshape/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "checkpoint/status.h"
#include "reshape/rounding.h"

namespace reshape {
namespace {

using checkpoint::DType;

float Load(const std::byte* at, DType dtype) {
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == DType::kFloat16 ? WidenFloat16(bits) : WidenBFloat16(bits);
}

// Returns whether a finite value became infinite.
bool Store(float value, std::byte* at, DType dtype) {
  if (dtype == DType::kFloat32) {
    std::memcpy(at, &value, sizeof(value));
    return false;
  }
  const bool half = dtype == DType::kFloat16;
  const uint16_t bits = half ? RoundToFloat16(value) : RoundToBFloat16(value);
  std::memcpy(at, &bits, sizeof(bits));
  const uint16_t infinity = half ? 0x7C00 : 0x7F80;
  return (bits & 0x7FFF) == infinity && std::isfinite(value);
}

// Elements that lie one after another on both sides, as they are. No branch and no call in the
// loop, and a 32-bit count: the compiler makes vectors of it.
template <DType kSource, DType kTarget>
int64_t ConvertContiguous(const std::byte* source, std::byte* target, int64_t numel) {
  constexpr int64_t kBlock = 1 << 16;
  constexpr size_t kSourceBytes = kSource == DType::kFloat32 ? 4 : 2;
  constexpr size_t kTargetBytes = kTarget == DType::kFloat32 ? 4 : 2;
  constexpr uint32_t kInfinity = kTarget == DType::kFloat16 ? 0x7C00u : 0x7F80u;
  int64_t overflowed = 0;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const auto count = static_cast<size_t>(std::min(kBlock, numel - begin));
    uint32_t infinite = 0;
    for (size_t i = 0; i < count; ++i) {
      const float value = Load(source + i * kSourceBytes, kSource);
      std::byte* at = target + i * kTargetBytes;
      if constexpr (kTarget == DType::kFloat32) {
        std::memcpy(at, &value, sizeof(value));
      } else {
        const uint16_t bits =
            kTarget == DType::kFloat16 ? RoundToFloat16(value) : RoundToBFloat16(value);
        std::memcpy(at, &bits, sizeof(bits));
        const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
        infinite += static_cast<uint32_t>((bits & 0x7FFFu) == kInfinity) &
                    static_cast<uint32_t>(magnitude < 0x7F800000u);
      }
    }
    overflowed += infinite;
    source += count * kSourceBytes;
    target += count * kTargetBytes;
  }
  return overflowed;
}

template <DType kSource, DType kTarget>
int64_t ConvertRun(const Conversion& conversion, const std::byte* source, std::byte* target,
                   int64_t numel) {
  if (conversion.factor == 1 && conversion.source_stride == 1 && conversion.target_stride == 1)
    return ConvertContiguous<kSource, kTarget>(source, target, numel);
  const int64_t source_step = conversion.source_stride * checkpoint::ElementBytes(kSource);
  const int64_t target_step = conversion.target_stride * checkpoint::ElementBytes(kTarget);
  int64_t overflowed = 0;
  for (int64_t i = 0; i < numel; ++i) {
    const float value = Load(source + i * source_step, kSource);
    const float scaled = conversion.factor == 1 ? value : value * conversion.factor;
    overflowed += Store(scaled, target + i * target_step, kTarget) ||
                  (std::isinf(scaled) && !std::isinf(value));
  }
  return overflowed;
}

template <DType kSource>
int64_t ConvertFrom(const Conversion& conversion, const std::byte* source, std::byte* target,
                    int64_t numel) {
  switch (conversion.target_dtype) {
    case DType::kFloat16:
      return ConvertRun<kSource, DType::kFloat16>(conversion, source, target, numel);
    case DType::kBFloat16:
      return ConvertRun<kSource, DType::kBFloat16>(conversion, source, target, numel);
    default:
      return ConvertRun<kSource, DType::kFloat32>(conversion, source, target, numel);
  }
}

void CopyStrided(const Conversion& conversion, const std::byte* source, std::byte* target,
                 int64_t numel) {
  const auto bytes = static_cast<size_t>(checkpoint::ElementBytes(conversion.source_dtype));
  const auto source_step = static_cast<size_t>(conversion.source_stride) * bytes;
  const auto target_step = static_cast<size_t>(conversion.target_stride) * bytes;
  if (source_step == bytes && target_step == bytes) {
    std::memcpy(target, source, static_cast<size_t>(numel) * bytes);
    return;
  }
  for (int64_t i = 0; i < numel; ++i) {
    std::memcpy(target + static_cast<size_t>(i) * target_step,
                source + static_cast<size_t>(i) * source_step, bytes);
  }
}

bool IsWorkingFloat(DType dtype) { return dtype == DType::kFloat32 || checkpoint::Is16Bit(dtype); }

}  // namespace

bool CanConvert(DType source, DType target) {
  return source == target || (IsWorkingFloat(source) && IsWorkingFloat(target));
}

int64_t Convert(const Conversion& conversion, const void* source, void* target, int64_t numel) {
  CHECK(CanConvert(conversion.source_dtype, conversion.target_dtype),
        << checkpoint::DTypeName(conversion.source_dtype) << " to "
        << checkpoint::DTypeName(conversion.target_dtype));
  const auto* from = static_cast<const std::byte*>(source);
  auto* to = static_cast<std::byte*>(target);
  if (conversion.source_dtype == conversion.target_dtype && conversion.factor == 1) {
    CopyStrided(conversion, from, to, numel);
    return 0;
  }
  CHECK(IsWorkingFloat(conversion.source_dtype), << checkpoint::DTypeName(conversion.source_dtype));
  switch (conversion.source_dtype) {
    case DType::kFloat16:
      return ConvertFrom<DType::kFloat16>(conversion, from, to, numel);
    case DType::kBFloat16:
      return ConvertFrom<DType::kBFloat16>(conversion, from, to, numel);
    default:
      return ConvertFrom<DType::kFloat32>(conversion, from, to, numel);
  }
}

}  // namespace reshape
