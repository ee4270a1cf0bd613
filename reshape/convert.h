// Changes of element type: fp32, fp16 and bf16 into one another, round to nearest, ties to even.
// Used by execute.cc; the only arithmetic in reshape/. Tested by convert_test.cc against a slow
// reference, for every 16-bit pattern.
//
// NaN: stays a NaN of the same sign, and becomes quiet where bits are dropped (rounding.h).
// Infinity stays infinity. A finite value that becomes infinite is counted, never passed over in
// silence.
#pragma once

#include <cstdint>

#include "checkpoint/dtype.h"

namespace reshape {

// True where Convert() can go from one type to the other: equal types, or both of fp32, fp16, bf16.
bool CanConvert(checkpoint::DType source, checkpoint::DType target);

// `numel` elements from `source` on, every `source_stride` elements, to `target` on, every
// `target_stride` elements; multiplied by `factor` (in fp32) on the way where it is not 1. Strides
// are in elements.
struct Conversion {
  checkpoint::DType source_dtype = checkpoint::DType::kFloat32;
  checkpoint::DType target_dtype = checkpoint::DType::kFloat32;
  int64_t source_stride = 1, target_stride = 1;
  float factor = 1;
};

// Returns how many finite values became infinite. REQUIRES: CanConvert(); memory that does not
// overlap.
int64_t Convert(const Conversion& conversion, const void* source, void* target, int64_t numel);

}  // namespace reshape
