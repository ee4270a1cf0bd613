// Comparison of whole tensors: bits for moves, ulp for words about a difference. Internal to
// certify/. Tested by compare_bits_test.cc.
//
// Moves compare bits: +0 is not -0, a NaN equals only the same NaN. One exception, asked for by
// name: the rounding check of law S4, where any NaN equals any NaN. All comparisons try memcmp on
// blocks first.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/dtype.h"

namespace certify {

// Distance of two values of which one is NaN, or of values of types that have no ulp.
inline constexpr int64_t kUlpNone = -1;

struct Difference {
  int64_t compared = 0;
  int64_t differing = 0;
  int64_t first_index = -1;  // row-major in the compared part; -1: none differs
  double first_expected = 0, first_found = 0;
  int64_t ulp_max = 0;         // over differing pairs of numbers
  int64_t not_comparable = 0;  // differing pairs with a NaN, or of a type without ulp
  int64_t worst_index = -1;    // of relative_max
  double worst_expected = 0, worst_found = 0;
  double relative_max = 0;  // |found - expected| / max(|expected|, |found|)

  bool equal() const { return differing == 0; }
  // Adds the difference of the part behind this one.
  void Append(const Difference& next);
};

// Position of a float on the line of all floats of its type: neighbours differ by one, -0 and +0
// too.
int64_t OrderedFloat32(float value);
int64_t UlpDistance(float a, float b);                                   // kUlpNone with a NaN
int64_t UlpDistance16(uint16_t a, uint16_t b, checkpoint::DType dtype);  // REQUIRES: Is16Bit(dtype)

// Round to nearest even. Finite values beyond the type's range become infinite, NaN stays NaN.
uint16_t RoundToBFloat16(float value);
uint16_t RoundToFloat16(float value);
uint16_t RoundTo16Bit(float value, checkpoint::DType dtype);  // REQUIRES: Is16Bit(dtype)
float WidenTo32(uint16_t bits, checkpoint::DType dtype);      // REQUIRES: Is16Bit(dtype)

// DType of an at::Tensor; REQUIRES: one of checkpoint::DType.
checkpoint::DType DTypeOf(const at::Tensor& tensor);
// Byte count and pointer of a contiguous tensor's elements. REQUIRES: contiguous.
struct ElementBytesView {
  const std::byte* begin = nullptr;
  int64_t bytes = 0;
};
ElementBytesView BytesOf(const at::Tensor& tensor);

// `marked`, where given, gets one entry an element: true where it differs.

// Bits. REQUIRES: same type, same number of elements, both contiguous.
Difference CompareBits(const at::Tensor& expected, const at::Tensor& found,
                       std::vector<bool>* marked = nullptr);

// found == expected converted to found's type (round to nearest even; exact when it widens).
// REQUIRES: same number of elements, both contiguous, both float32 or 16-bit floats. any_nan: any
// NaN equals any NaN.
Difference CompareConverted(const at::Tensor& expected, const at::Tensor& found, bool any_nan,
                            std::vector<bool>* marked = nullptr);

// found == expected * factor, rounded once, in float32. REQUIRES: same number of elements, both
// contiguous float32. `ulp_allowed`: 0 asks for equal bits.
struct Scaling {
  double factor = 1;
  int64_t ulp_allowed = 0;
};
Difference CompareScaled(const at::Tensor& expected, const at::Tensor& found,
                         const Scaling& scaling);

// The factor k such that found is expected * k, judged at the element of largest magnitude of
// `expected`; NaN where all are zero or not finite. REQUIRES: as CompareScaled.
double FactorAtLargest(const at::Tensor& expected, const at::Tensor& found);

// "3 of 512 elements differ, by at most 2 ulp; first at 17: expected 0.5, found 0.25".
// `words`: what to call the two sides.
struct SideWords {
  const char* expected = "expected";
  const char* found = "found";
};
std::string DifferenceText(const Difference& difference, const SideWords& words = {});

// Number of an element as double, for messages. REQUIRES: contiguous, index in range.
double ElementAsDouble(const at::Tensor& tensor, int64_t index);

}  // namespace certify
