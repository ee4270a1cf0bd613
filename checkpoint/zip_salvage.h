// The records of a torch.save zip without its directory: for files that were cut or whose directory
// is damaged. Walks the local headers in front of the payloads and the descriptors behind them.
// Claims no more than it proves: a record counts as whole only where the bytes have the CRC-32 that
// its descriptor states. Tested by zip_salvage_test.cc. Format: docs/format/container.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace checkpoint {

struct SalvagedRecord {
  std::string name;            // without the root folder: "data/0"
  int64_t payload_offset = 0;  // in bytes from the start of the file
  int64_t payload_bytes = -1;  // -1: no end was found, the record is cut
  bool whole = false;          // the bytes have the sum of the descriptor
};

// In the order of the file. A record whose end is not found ends the walk, unless a later header is
// found.
std::vector<SalvagedRecord> FindRecordsByHeaders(std::span<const std::byte> bytes);

}  // namespace checkpoint
