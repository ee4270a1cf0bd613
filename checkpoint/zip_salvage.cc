#include "checkpoint/zip_salvage.h"

#include <algorithm>
#include <string_view>

#include "checkpoint/container.h"
#include "checkpoint/limits.h"
#include "checkpoint/zip_format.h"

namespace checkpoint {
namespace {

using zip::Load;
using Bytes = std::span<const std::byte>;

// Where "PK" and two bytes stand next, from `at` on; the size of `bytes` where they do not.
int64_t FindSignature(Bytes bytes, int64_t at, uint32_t signature) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string_view wanted(reinterpret_cast<const char*>(&signature), sizeof signature);
  const size_t found = text.find(wanted, static_cast<size_t>(at));
  return found == std::string_view::npos ? static_cast<int64_t>(bytes.size())
                                         : static_cast<int64_t>(found);
}

// A local header whose name and extra field lie in the file; the name is ROOT/NAME.
bool ReadHeader(Bytes bytes, int64_t at, SalvagedRecord& record) {
  const auto total = static_cast<int64_t>(bytes.size());
  if (total - at < zip::kLocalBytes) return false;
  const std::byte* p = bytes.data() + at;
  const int64_t name_bytes = Load<uint16_t>(p + 26), extra_bytes = Load<uint16_t>(p + 28);
  if (name_bytes > kRecordNameBytesMax || Load<uint16_t>(p + 8) != 0) return false;
  record.payload_offset = at + zip::kLocalBytes + name_bytes + extra_bytes;
  if (record.payload_offset > total) return false;
  const std::string_view name(reinterpret_cast<const char*>(p + zip::kLocalBytes),
                              static_cast<size_t>(name_bytes));
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos || slash + 1 == name.size()) return false;
  record.name = name.substr(slash + 1);
  return true;
}

// A descriptor at `at` that speaks of a payload as long as the way to it. Returns its length, or 0.
int64_t DescriptorBytes(Bytes bytes, int64_t at, int64_t payload_bytes) {
  const auto left = static_cast<int64_t>(bytes.size()) - at;
  const std::byte* p = bytes.data() + at;
  const auto wanted = static_cast<uint64_t>(payload_bytes);
  if (left >= zip::kDescriptor64Bytes && Load<uint64_t>(p + 8) == wanted &&
      Load<uint64_t>(p + 16) == wanted)
    return zip::kDescriptor64Bytes;
  if (left >= zip::kDescriptorBytes && Load<uint32_t>(p + 8) == wanted &&
      Load<uint32_t>(p + 12) == wanted)
    return zip::kDescriptorBytes;
  return 0;
}

// Finds the end of the payload. Returns where to look for the next header.
int64_t FindEnd(Bytes bytes, SalvagedRecord& record) {
  const auto total = static_cast<int64_t>(bytes.size());
  int64_t at = FindSignature(bytes, record.payload_offset, zip::kDescriptorSignature);
  while (at < total) {
    const int64_t payload_bytes = at - record.payload_offset;
    const int64_t descriptor = DescriptorBytes(bytes, at, payload_bytes);
    if (descriptor > 0) {
      record.payload_bytes = payload_bytes;
      const Bytes payload = bytes.subspan(static_cast<size_t>(record.payload_offset),
                                          static_cast<size_t>(payload_bytes));
      record.whole = Crc32(0, payload) == Load<uint32_t>(bytes.data() + at + 4);
      return at + descriptor;
    }
    at = FindSignature(bytes, at + 1, zip::kDescriptorSignature);
  }
  return record.payload_offset;
}

}  // namespace

std::vector<SalvagedRecord> FindRecordsByHeaders(Bytes bytes) {
  std::vector<SalvagedRecord> records;
  const auto total = static_cast<int64_t>(bytes.size());
  int64_t at = FindSignature(bytes, 0, zip::kLocalSignature);
  // A search for an end may run to the end of the file; one that found none is not repeated.
  bool ends_are_left = true;
  while (at < total && static_cast<int64_t>(records.size()) < kZipRecordsMax) {
    SalvagedRecord record;
    int64_t next = at + 1;
    if (ReadHeader(bytes, at, record)) {
      if (ends_are_left) next = std::max(next, FindEnd(bytes, record));
      ends_are_left = ends_are_left && record.payload_bytes >= 0;
      records.push_back(std::move(record));
    }
    at = FindSignature(bytes, next, zip::kLocalSignature);
  }
  return records;
}

}  // namespace checkpoint
