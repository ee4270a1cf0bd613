// libFuzzer's entry point. Compiled once a target, with FUZZ_TARGET its function in fuzz/entry.h.
#include <cstdint>

#include "fuzz/entry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  fuzz::FUZZ_TARGET(std::as_bytes(std::span(bytes, count)));
  return 0;
}
