#include "reshape/memory_use.h"

#include <charconv>
#include <fstream>
#include <string>

namespace reshape {
namespace {

// "RssAnon:\t   12345 kB"
int64_t Kilobytes(const std::string& line) {
  const size_t digit = line.find_first_of("0123456789");
  int64_t value = 0;
  if (digit != std::string::npos)
    std::from_chars(line.data() + digit, line.data() + line.size(), value);
  return value;
}

}  // namespace

MemoryUse ReadMemoryUse() {
  MemoryUse use;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:") || line.starts_with("RssShmem:"))
      use.anonymous_bytes += Kilobytes(line) * 1024;
    if (line.starts_with("VmHWM:")) use.peak_bytes = Kilobytes(line) * 1024;
  }
  return use;
}

}  // namespace reshape
