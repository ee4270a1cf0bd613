// Memory of whole tensors, kept from one tensor to the next. Internal to certify/. Tested by
// tensor_memory_test.cc.
//
// A sweep puts thousands of tensors together and drops each after a look. Given back to the system,
// their pages would be mapped and cleared anew for each, which takes longer than the comparison.
#pragma once

#include <cstdint>

namespace certify {

// While one lives, libtorch's large CPU blocks are kept and reused: in use and kept together stay
// within the largest `bytes_max` of those that live. What is kept is freed with the last one.
class KeptTensorMemory {
 public:
  explicit KeptTensorMemory(int64_t bytes_max);
  ~KeptTensorMemory();
  KeptTensorMemory(const KeptTensorMemory&) = delete;
  KeptTensorMemory& operator=(const KeptTensorMemory&) = delete;

  static int64_t BytesKept();  // not in use now

 private:
  int64_t bytes_max_;
};

}  // namespace certify
