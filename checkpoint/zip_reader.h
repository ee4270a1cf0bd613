// The index of a zip container: which records lie where. Reads the central directory and, of each
// record, the header in front of and the descriptor behind the payload; never a payload. Tested by
// zip_reader_test.cc. Format: docs/format/container.md.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/container.h"
#include "checkpoint/status.h"

namespace checkpoint {

struct ZipIndex {
  std::string root_name;
  std::vector<Record> records;  // in the order of the directory
};

// Every record that comes back is stored (not compressed), lies inside the file, overlaps no other,
// and has a plain name below one root folder. Errors: kTruncated (no end record where the file
// ends), kMalformedContainer, kLimitExceeded, kUnsupported (several disks, TorchScript).
Result<ZipIndex> ReadZipIndex(std::span<const std::byte> bytes, const std::string& where);

// The record of this name, or null.
const Record* FindRecord(const std::vector<Record>& records, std::string_view name);

}  // namespace checkpoint
