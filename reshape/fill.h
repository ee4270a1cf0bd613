// Fills one window of a target storage from its copies: memory to memory, no files. Used by
// execute.cc. Tested by execute_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "reshape/plan.h"

namespace reshape {

// Elements [begin, end) of a target storage.
struct Window {
  int64_t begin = 0, end = 0;
};

// The content of `window`; `buffer` has exactly its bytes. Elements that no copy fills become zero.
struct FillOutcome {
  int64_t overflowed = 0;  // finite values that became infinite
  int32_t tensor = -1;     // the first copy in which that happened
};
FillOutcome FillWindow(const StoragePlan& plan, const Window& window, std::span<std::byte> buffer);

// The source bytes of `window`, where one copy of the same type fills all of it in one run; empty
// otherwise.
std::span<const std::byte> DirectSource(const StoragePlan& plan, const Window& window);

// Gives back the mapped source bytes that the copies of `window` read.
void ReleaseSources(const StoragePlan& plan, const Window& window);

}  // namespace reshape
