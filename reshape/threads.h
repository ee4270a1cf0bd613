// Work on several threads. The calling one works too, and where the system gives no more threads,
// fewer do all of it. Tested by execute_test.cc and source_sums_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace reshape {

// 0: one a core.
int32_t ThreadCount(int32_t wanted);

// Calls `work` on up to `count` threads, and returns when all calls have. `before_thread`, where
// given, is called before each further thread is made, and may throw as std::thread does.
void RunOnThreads(size_t count, const std::function<void()>& work,
                  const std::function<void()>& before_thread = {});

// Calls `work` once with every index below `count`. `threads` as for ThreadCount.
void ForEachInParallel(size_t count, int32_t threads, const std::function<void(size_t)>& work);

}  // namespace reshape
