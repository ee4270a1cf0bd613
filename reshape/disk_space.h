// Whether the disk has room for a target, asked before anything is written. Tested by
// disk_space_test.cc.
#pragma once

#include <cstdint>
#include <filesystem>

#include "checkpoint/status.h"

namespace reshape {

// `folder` need not exist: the nearest folder above it that does is asked. Where the file system
// does not say, there is room. Errors: kIo, with both figures.
checkpoint::Status CheckDiskSpace(const std::filesystem::path& folder, int64_t bytes_needed);

}  // namespace reshape
