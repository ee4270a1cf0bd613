// Fills one window of a target storage from its copies: memory to memory, no files. Used by
// execute.cc. Tested by execute_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reshape/plan.h"

namespace reshape {

// Elements [begin, end) of a target storage.
struct Window {
  int64_t begin = 0, end = 0;
};

struct FillOutcome {
  int64_t overflowed = 0;  // finite values that became infinite
  int32_t tensor = -1;     // the first copy in which that happened
};

// The copies of a storage that meet one window, looked up once. The functions take that window or
// a part of it.
class WindowCopies {
 public:
  // `plan` must outlive it.
  WindowCopies(const StoragePlan& plan, const Window& window);

  // The content of `part`; `buffer` has exactly its bytes. Elements that no copy fills become zero.
  FillOutcome Fill(const Window& part, std::span<std::byte> buffer) const;
  // The source bytes of `part`, where one copy of the same type fills all of it in one run; empty
  // otherwise.
  std::span<const std::byte> Direct(const Window& part) const;
  // Gives back the mapped source bytes that the copies of the window read.
  void ReleaseSources() const;

 private:
  const StoragePlan& plan_;
  const Window window_;
  std::vector<const CopyRange*> copies_;
};

}  // namespace reshape
