// How much memory this process holds, by the kernel's own count: the peak-memory metric of a
// reshape. Tested by memory_use_test.cc.
#pragma once

#include <cstdint>

namespace reshape {

struct MemoryUse {
  int64_t anonymous_bytes =
      0;                   // RssAnon + RssShmem: what a reshape holds besides mapped source files
  int64_t peak_bytes = 0;  // VmHWM: the most that was ever resident, mapped files included
};

// All 0 where the kernel does not say.
MemoryUse ReadMemoryUse();

}  // namespace reshape
