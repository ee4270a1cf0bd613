// Runs a plan: maps sources, fills the records of all target files in any order from several
// threads, computes each CRC-32 while the bytes are hot, and writes the frames last. Decides
// nothing. Memory: one buffer a thread, 64 MiB in all at most; mapped source windows are given back
// after use. Tested by execute_test.cc (also with faults injected through checkpoint/file.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "checkpoint/status.h"
#include "reshape/plan.h"

namespace reshape {

inline constexpr int64_t kBufferBytesTotalMax = 64LL << 20;
inline constexpr int64_t kWindowBytesMax = 8LL << 20;

struct ExecuteOptions {
  int32_t threads = 0;             // 0: one per core
  bool flush = true;               // fsync each file before it counts as finished
  std::set<std::string> finished;  // paths of the plan that are there already and are left alone
  std::function<void(const std::string& path)> file_finished;  // called from one thread at a time
  std::function<void(int64_t bytes_done)>
      progress;  // called from one thread at a time; counts finished files too
  std::function<void()> before_thread;  // for tests: may throw as std::thread does
};

// Bytes of all buffers that Execute() with these options holds at once.
int64_t BufferBytes(const ExecuteOptions& options);

// Writes the files of the plan below `folder`, whose folders it makes. After an error, files that
// were not reported as finished may be there in any state. Errors: kIo, kTargetExists (a file of
// the plan is already there), kLossyConversion (names the first tensor).
checkpoint::Status Execute(const Plan& plan, const std::filesystem::path& folder,
                           const ExecuteOptions& options);

}  // namespace reshape
