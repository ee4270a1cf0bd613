// CRC-32 of every record of the source, before anything is written: a damaged source is refused,
// also where the damage is in a replica that no copy reads. Tested by source_sums_test.cc.
#pragma once

#include <cstdint>

#include "checkpoint/status.h"
#include "reshape/inventory.h"

namespace reshape {

// Files without sums (legacy containers, sums switched off) pass. `threads` 0: one a core. Errors:
// kChecksumMismatch, with file, record and both sums.
checkpoint::Status CheckSourceSums(const Inventory& source, int32_t threads);

}  // namespace reshape
