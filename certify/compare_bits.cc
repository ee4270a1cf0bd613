#include "certify/compare_bits.h"

#include <ATen/Tensor.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "certify/format.h"
#include "certify/report.h"
#include "checkpoint/status.h"

namespace certify {
namespace {

using checkpoint::DType;

constexpr int64_t kBlockElements = 1 << 14;

// One differing pair.
void Count(Difference& difference, int64_t index, double expected, double found, int64_t ulp) {
  if (difference.differing++ == 0) {
    difference.first_index = index;
    difference.first_expected = expected;
    difference.first_found = found;
  }
  if (ulp == kUlpNone) {
    ++difference.not_comparable;
  } else {
    difference.ulp_max = std::max(difference.ulp_max, ulp);
  }
  const double largest = std::max(std::fabs(expected), std::fabs(found));
  double relative = largest > 0 ? std::fabs(found - expected) / largest : 0;
  if (!(relative <= 1e300)) relative = std::numeric_limits<double>::infinity();
  if (difference.worst_index < 0 || relative > difference.relative_max) {
    difference.relative_max = relative;
    difference.worst_index = index;
    difference.worst_expected = expected;
    difference.worst_found = found;
  }
}

int64_t UlpAt(const at::Tensor& expected, const at::Tensor& found, int64_t index) {
  switch (DTypeOf(expected)) {
    case DType::kFloat32:
      return UlpDistance(expected.const_data_ptr<float>()[index],
                         found.const_data_ptr<float>()[index]);
    case DType::kFloat16:
    case DType::kBFloat16: {
      const auto* a = static_cast<const uint16_t*>(expected.const_data_ptr());
      const auto* b = static_cast<const uint16_t*>(found.const_data_ptr());
      return UlpDistance16(a[index], b[index], DTypeOf(expected));
    }
    default:
      return kUlpNone;
  }
}

int64_t Ordered16(uint16_t bits) {
  const int64_t magnitude = bits & 0x7fff;
  return (bits & 0x8000) != 0 ? -magnitude - 1 : magnitude;
}

bool IsNan16(uint16_t bits, DType dtype) {
  const uint16_t infinity = dtype == DType::kBFloat16 ? 0x7f80 : 0x7c00;
  return (bits & 0x7fff) > infinity;
}

// Elements of a float tensor of any of the three types as float32.
class Float32Reader {
 public:
  explicit Float32Reader(const at::Tensor& tensor)
      : dtype_(DTypeOf(tensor)), data_(tensor.const_data_ptr()) {
    CHECK(dtype_ == DType::kFloat32 || checkpoint::Is16Bit(dtype_),
          << "dtype=" << checkpoint::DTypeName(dtype_));
  }
  float At(int64_t index) const {
    if (dtype_ == DType::kFloat32) return static_cast<const float*>(data_)[index];
    return WidenTo32(static_cast<const uint16_t*>(data_)[index], dtype_);
  }

 private:
  DType dtype_;
  const void* data_;
};

// Where differing elements are marked; `first` is the index of the block's first element.
struct Marks {
  std::vector<bool>* marked = nullptr;
  int64_t first = 0;
};

// One block of CompareConverted.
Difference CompareOneByOne(const at::Tensor& expected, const at::Tensor& found, bool any_nan,
                           const Marks& marks) {
  Difference difference;
  difference.compared = expected.numel();
  const DType dtype = DTypeOf(found);
  const Float32Reader wide(expected), narrow(found);
  for (int64_t i = 0; i < difference.compared; ++i) {
    const float value = wide.At(i);
    const float read = narrow.At(i);
    int64_t ulp = 0;
    float rounded = value;
    if (dtype == DType::kFloat32) {
      if (std::bit_cast<uint32_t>(value) == std::bit_cast<uint32_t>(read)) continue;
      ulp = UlpDistance(value, read);
    } else {
      const uint16_t bits = RoundTo16Bit(value, dtype);
      const uint16_t other = static_cast<const uint16_t*>(found.const_data_ptr())[i];
      if (bits == other) continue;
      rounded = WidenTo32(bits, dtype);
      ulp = UlpDistance16(bits, other, dtype);
    }
    if (any_nan && std::isnan(value) && std::isnan(read)) continue;
    if (marks.marked != nullptr) (*marks.marked)[static_cast<size_t>(marks.first + i)] = true;
    Count(difference, i, rounded, read, ulp);
  }
  return difference;
}

void CheckSameNumel(const at::Tensor& expected, const at::Tensor& found) {
  CHECK(expected.numel() == found.numel(), << expected.numel() << " and " << found.numel());
  CHECK(expected.is_contiguous(), << "expected");
  CHECK(found.is_contiguous(), << "found");
}

}  // namespace

void Difference::Append(const Difference& next) {
  if (next.differing > 0 && differing == 0) {
    first_index = compared + next.first_index;
    first_expected = next.first_expected;
    first_found = next.first_found;
  }
  if (next.worst_index >= 0 && (worst_index < 0 || next.relative_max > relative_max)) {
    relative_max = next.relative_max;
    worst_index = compared + next.worst_index;
    worst_expected = next.worst_expected;
    worst_found = next.worst_found;
  }
  ulp_max = std::max(ulp_max, next.ulp_max);
  not_comparable += next.not_comparable;
  differing += next.differing;
  compared += next.compared;
}

int64_t OrderedFloat32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto magnitude = static_cast<int64_t>(bits & 0x7fffffffu);
  return (bits & 0x80000000u) != 0 ? -magnitude - 1 : magnitude;
}

int64_t UlpDistance(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return kUlpNone;
  return std::abs(OrderedFloat32(a) - OrderedFloat32(b));
}

int64_t UlpDistance16(uint16_t a, uint16_t b, DType dtype) {
  CHECK(checkpoint::Is16Bit(dtype), << checkpoint::DTypeName(dtype));
  if (IsNan16(a, dtype) || IsNan16(b, dtype)) return kUlpNone;
  return std::abs(Ordered16(a) - Ordered16(b));
}

uint16_t RoundToBFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  // Half of the dropped 16 bits, and one more where the kept part is odd: ties go to even.
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

uint16_t RoundToFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint32_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00;
  } else if (magnitude >= 0x47800000u) {  // 65536 and above; the rounding below carries 65520
    half = 0x7c00;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: subnormal, units of 2^-24
    // Adding 0.5 aligns the last bit of the sum with 2^-24, so that the addition itself rounds to
    // even.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f);
  } else {
    const uint32_t rebiased = magnitude - (112u << 23);  // exponent bias 127 to 15
    half = (rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

uint16_t RoundTo16Bit(float value, DType dtype) {
  CHECK(checkpoint::Is16Bit(dtype), << checkpoint::DTypeName(dtype));
  return dtype == DType::kBFloat16 ? RoundToBFloat16(value) : RoundToFloat16(value);
}

float WidenTo32(uint16_t bits, DType dtype) {
  CHECK(checkpoint::Is16Bit(dtype), << checkpoint::DTypeName(dtype));
  if (dtype == DType::kBFloat16) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {
    const float value = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

checkpoint::DType DTypeOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kDouble:
      return DType::kFloat64;
    case at::kLong:
      return DType::kInt64;
    case at::kInt:
      return DType::kInt32;
    case at::kShort:
      return DType::kInt16;
    case at::kChar:
      return DType::kInt8;
    case at::kByte:
      return DType::kUInt8;
    case at::kBool:
      return DType::kBool;
    default:
      CHECK(false, << "scalar type " << static_cast<int>(tensor.scalar_type()));
  }
  return DType::kFloat32;
}

ElementBytesView BytesOf(const at::Tensor& tensor) {
  CHECK(tensor.is_contiguous(), << "numel=" << tensor.numel());
  return {static_cast<const std::byte*>(tensor.const_data_ptr()),
          tensor.numel() * static_cast<int64_t>(tensor.element_size())};
}

double ElementAsDouble(const at::Tensor& tensor, int64_t index) {
  CHECK(index >= 0 && index < tensor.numel(), << "index=" << index);
  const void* data = tensor.const_data_ptr();
  switch (DTypeOf(tensor)) {
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16:
      return static_cast<double>(Float32Reader(tensor).At(index));
    case DType::kFloat64:
      return static_cast<const double*>(data)[index];
    case DType::kInt64:
      return static_cast<double>(static_cast<const int64_t*>(data)[index]);
    case DType::kInt32:
      return static_cast<const int32_t*>(data)[index];
    case DType::kInt16:
      return static_cast<const int16_t*>(data)[index];
    case DType::kInt8:
      return static_cast<const int8_t*>(data)[index];
    case DType::kUInt8:
    case DType::kBool:
      return static_cast<const uint8_t*>(data)[index];
  }
  return 0;
}

Difference CompareBits(const at::Tensor& expected, const at::Tensor& found,
                       std::vector<bool>* marked) {
  CheckSameNumel(expected, found);
  CHECK(expected.scalar_type() == found.scalar_type(),
        << "found " << checkpoint::DTypeName(DTypeOf(found)));
  Difference difference;
  difference.compared = expected.numel();
  if (marked != nullptr) marked->assign(static_cast<size_t>(difference.compared), false);
  const std::byte* a = BytesOf(expected).begin;
  const std::byte* b = BytesOf(found).begin;
  const auto element_bytes = static_cast<int64_t>(expected.element_size());
  const auto same = [&](int64_t first, int64_t count) {
    return std::memcmp(a + first * element_bytes, b + first * element_bytes,
                       static_cast<size_t>(count * element_bytes)) == 0;
  };
  for (int64_t begin = 0; begin < difference.compared; begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, difference.compared - begin);
    if (same(begin, count)) continue;
    for (int64_t i = begin; i < begin + count; ++i) {
      if (same(i, 1)) continue;
      if (marked != nullptr) (*marked)[static_cast<size_t>(i)] = true;
      Count(difference, i, ElementAsDouble(expected, i), ElementAsDouble(found, i),
            UlpAt(expected, found, i));
    }
  }
  return difference;
}

Difference CompareConverted(const at::Tensor& expected, const at::Tensor& found, bool any_nan,
                            std::vector<bool>* marked) {
  CheckSameNumel(expected, found);
  const DType dtype = DTypeOf(found);
  CHECK(dtype == DType::kFloat32 || checkpoint::Is16Bit(dtype), << checkpoint::DTypeName(dtype));
  Difference difference;
  if (marked != nullptr) marked->clear();
  const at::Tensor wide = expected.view(-1), narrow = found.view(-1);
  for (int64_t begin = 0; begin < wide.numel(); begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, wide.numel() - begin);
    const at::Tensor from = wide.narrow(0, begin, count), to = narrow.narrow(0, begin, count);
    // libtorch converts many elements at once; what it finds different is looked at one by one.
    Difference block;
    block.compared = count;
    const bool same = CompareBits(from.to(found.scalar_type()), to).equal();
    if (marked != nullptr) marked->resize(static_cast<size_t>(begin + count), false);
    if (!same) block = CompareOneByOne(from, to, any_nan, {marked, begin});
    difference.Append(block);
  }
  return difference;
}

Difference CompareScaled(const at::Tensor& expected, const at::Tensor& found,
                         const Scaling& scaling) {
  CheckSameNumel(expected, found);
  Difference difference;
  difference.compared = expected.numel();
  const auto* a = expected.const_data_ptr<float>();
  const auto* b = found.const_data_ptr<float>();
  for (int64_t i = 0; i < difference.compared; ++i) {
    const auto scaled = static_cast<float>(static_cast<double>(a[i]) * scaling.factor);
    if (std::bit_cast<uint32_t>(scaled) == std::bit_cast<uint32_t>(b[i])) continue;
    const int64_t ulp = UlpDistance(scaled, b[i]);
    if (ulp != kUlpNone && ulp <= scaling.ulp_allowed) continue;
    Count(difference, i, scaled, b[i], ulp);
  }
  return difference;
}

double FactorAtLargest(const at::Tensor& expected, const at::Tensor& found) {
  CheckSameNumel(expected, found);
  const auto* a = expected.const_data_ptr<float>();
  const auto* b = found.const_data_ptr<float>();
  int64_t best = -1;
  for (int64_t i = 0; i < expected.numel(); ++i) {
    if (!std::isfinite(a[i]) || a[i] == 0 || !std::isfinite(b[i])) continue;
    if (best < 0 || std::fabs(a[i]) > std::fabs(a[best])) best = i;
  }
  if (best < 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(b[best]) / static_cast<double>(a[best]);
}

std::string DifferenceText(const Difference& difference, const SideWords& words) {
  if (difference.equal()) return Format("all {} elements are equal", difference.compared);
  std::string text = Format("{} of {} elements differ", difference.differing, difference.compared);
  if (difference.differing > difference.not_comparable)
    text += Format(", by at most {} ulp", difference.ulp_max);
  text += Format("; first at {}: {} {}, {} {}", difference.first_index, words.expected,
                 NumberText(difference.first_expected), words.found,
                 NumberText(difference.first_found));
  return text;
}

}  // namespace certify
