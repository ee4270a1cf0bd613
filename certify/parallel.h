// A small pool for loops over tensors and files, with a bound on the memory that runs at once.
// Internal to certify/. Tested by parallel_test.cc.
#pragma once

#include <cstdint>
#include <functional>

#include "checkpoint/status.h"

namespace certify {

struct ParallelOptions {
  int32_t threads = 0;                            // 0: one per core
  int64_t bytes_at_once = 128LL << 20;            // an item that alone needs more runs alone
  std::function<int64_t(int64_t item)> bytes_of;  // null: items need nothing
};

// Calls body(0) .. body(items - 1), each once, in rising order of start. The first error (by item)
// is returned once all threads have stopped; items that were not started then are left out. An
// exception of a library (out of memory) becomes kLimitExceeded.
checkpoint::Status ParallelFor(int64_t items, const ParallelOptions& options,
                               const std::function<checkpoint::Status(int64_t item)>& body);

}  // namespace certify
