#include "reshape/disk_space.h"

#include <fmt/format.h>

namespace reshape {

checkpoint::Status CheckDiskSpace(const std::filesystem::path& folder, int64_t bytes_needed) {
  std::error_code error;
  std::filesystem::path existing = std::filesystem::absolute(folder, error);
  while (!std::filesystem::exists(existing, error) && existing.has_relative_path())
    existing = existing.parent_path();
  const auto space = std::filesystem::space(existing, error);
  if (error || space.available >= static_cast<uintmax_t>(bytes_needed)) return checkpoint::Done{};
  return checkpoint::Error{checkpoint::ErrorCode::kIo,
                           fmt::format("{} bytes free", space.available),
                           fmt::format("{} bytes, the size of the target's files", bytes_needed),
                           folder.string(), "Free space, or name a target on another file system."};
}

}  // namespace reshape
