#include "checkpoint/zip_reader.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "checkpoint/limits.h"
#include "checkpoint/zip_format.h"

namespace checkpoint {
namespace {

using zip::Load;
using Bytes = std::span<const std::byte>;

const char kCopyAgain[] =
    "The file is damaged or its copy is incomplete: copy it again from where it was written and "
    "compare sizes.";

Error Malformed(std::string found, std::string expected, std::string where) {
  return {ErrorCode::kMalformedContainer, std::move(found), std::move(expected), std::move(where),
          kCopyAgain};
}

std::string AtOffset(int64_t offset) { return "at byte " + std::to_string(offset); }

// Where the central directory lies, and how many records it has. Bounded: [offset, offset + bytes)
// is inside the file.
struct Directory {
  int64_t offset = 0, bytes = 0, count = 0;
};

// Why the file does not end in an end record: cut, or something behind it.
Error NoEnd(Bytes bytes, const std::string& where) {
  const int64_t file_bytes = static_cast<int64_t>(bytes.size());
  const int64_t lowest = std::max<int64_t>(0, file_bytes - zip::kEndBytes - zip::kSaturated16);
  for (int64_t at = file_bytes - zip::kEndBytes; at >= lowest; --at) {
    if (Load<uint32_t>(bytes.data() + at) != zip::kEndSignature) continue;
    return Malformed(
        std::to_string(file_bytes - at - zip::kEndBytes) + " bytes behind the end record",
        "a file that ends with its end record, without a comment", where);
  }
  return {ErrorCode::kTruncated,
          "no zip end record in the last 22 of " + std::to_string(file_bytes) + " bytes",
          "the end record that torch.save writes last", where, kCopyAgain};
}

struct End {
  int64_t at = 0;  // first byte behind the directory
  uint64_t disk = 0, directory_disk = 0, count_here = 0, count = 0, bytes = 0, offset = 0;
};

End LoadEnd(Bytes bytes, int64_t at) {
  const std::byte* p = bytes.data() + at;
  return {at,
          Load<uint16_t>(p + 4),
          Load<uint16_t>(p + 6),
          Load<uint16_t>(p + 8),
          Load<uint16_t>(p + 10),
          Load<uint32_t>(p + 12),
          Load<uint32_t>(p + 16)};
}

// A 32-bit end record may say less than the 64-bit one only where it says "too large for me".
bool Agrees(uint64_t narrow, uint64_t wide, uint64_t saturated) {
  return narrow == wide || narrow == saturated;
}

// The zip64 end record in front of `narrow`, where there is one.
Result<End> WidenEnd(Bytes bytes, const End& narrow, const std::string& where) {
  const int64_t locator = narrow.at - zip::kLocatorBytes;
  if (locator < 0 || Load<uint32_t>(bytes.data() + locator) != zip::kLocatorSignature) {
    if (narrow.count == zip::kSaturated16 || narrow.bytes == zip::kSaturated32 ||
        narrow.offset == zip::kSaturated32) {
      return Malformed("saturated sizes without a zip64 locator", "a zip64 end record", where);
    }
    return narrow;
  }
  const std::byte* p = bytes.data() + locator;
  if (Load<uint32_t>(p + 4) != 0 || Load<uint32_t>(p + 16) > 1) {
    return Error{ErrorCode::kUnsupported, "an archive on several disks", "one file", where,
                 "Join the parts, or save again with torch.save."};
  }
  const uint64_t at = Load<uint64_t>(p + 8);
  const int64_t expected = locator - zip::kEnd64Bytes;
  if (expected < 0 || at != static_cast<uint64_t>(expected)) {
    return Malformed("a zip64 locator that points to byte " + std::to_string(at),
                     "the 56 bytes in front of the locator", where);
  }
  p = bytes.data() + expected;
  if (Load<uint32_t>(p) != zip::kEnd64Signature || Load<uint64_t>(p + 4) != zip::kEnd64Bytes - 12) {
    return Malformed("no zip64 end record " + AtOffset(expected), "one of 56 bytes", where);
  }
  const End wide{expected,
                 Load<uint32_t>(p + 16),
                 Load<uint32_t>(p + 20),
                 Load<uint64_t>(p + 24),
                 Load<uint64_t>(p + 32),
                 Load<uint64_t>(p + 40),
                 Load<uint64_t>(p + 48)};
  if (!Agrees(narrow.count, wide.count, zip::kSaturated16) ||
      !Agrees(narrow.bytes, wide.bytes, zip::kSaturated32) ||
      !Agrees(narrow.offset, wide.offset, zip::kSaturated32)) {
    return Malformed("two end records that contradict each other", "equal counts and offsets",
                     where);
  }
  return wide;
}

Result<Directory> FindDirectory(Bytes bytes, const std::string& where) {
  const int64_t file_bytes = static_cast<int64_t>(bytes.size());
  if (file_bytes < zip::kEndBytes) {
    return Error{ErrorCode::kTruncated, std::to_string(file_bytes) + " bytes",
                 "at least 22 bytes, for the zip end record", where, kCopyAgain};
  }
  const int64_t at = file_bytes - zip::kEndBytes;
  if (Load<uint32_t>(bytes.data() + at) != zip::kEndSignature ||
      Load<uint16_t>(bytes.data() + at + 20) != 0) {
    return NoEnd(bytes, where);
  }
  const End narrow = LoadEnd(bytes, at);
  if (narrow.disk != narrow.directory_disk ||
      (narrow.disk != 0 && narrow.disk != zip::kSaturated16)) {
    return Error{ErrorCode::kUnsupported, "an archive on several disks", "one file", where,
                 "Join the parts, or save again with torch.save."};
  }
  CK_TRY(const End end, WidenEnd(bytes, narrow, where));
  if (end.disk != 0 || end.directory_disk != 0 || end.count_here != end.count) {
    return Error{ErrorCode::kUnsupported, "an archive on several disks", "one file", where,
                 "Join the parts, or save again with torch.save."};
  }
  if (end.count > static_cast<uint64_t>(kZipRecordsMax)) {
    return Error{ErrorCode::kLimitExceeded, std::to_string(end.count) + " records",
                 "at most " + std::to_string(kZipRecordsMax), where, kCopyAgain};
  }
  if (end.offset > static_cast<uint64_t>(end.at) ||
      end.bytes != static_cast<uint64_t>(end.at) - end.offset) {
    return Malformed(
        "a directory of " + std::to_string(end.bytes) + " bytes at byte " +
            std::to_string(end.offset),
        "one that ends at byte " + std::to_string(end.at) + ", where the end record begins", where);
  }
  if (end.count * zip::kCentralBytes > end.bytes) {
    return Malformed(std::to_string(end.count) + " records in a directory of " +
                         std::to_string(end.bytes) + " bytes",
                     "at least 46 bytes for each", where);
  }
  return Directory{static_cast<int64_t>(end.offset), static_cast<int64_t>(end.bytes),
                   static_cast<int64_t>(end.count)};
}

// One entry of the directory as it stands there, sizes widened by its zip64 field.
struct Entry {
  std::string full_name;
  uint16_t flags = 0;
  uint32_t crc32 = 0;
  uint64_t payload_bytes = 0;
  uint64_t header_offset = 0;
  int64_t entry_bytes = 0;  // in the directory
};

// The content of the field `id` in an extra area, or nothing; no value at all when the area is cut
// inside a field.
std::optional<Bytes> FindExtra(Bytes extra, uint16_t id) {
  while (extra.size() >= 4) {
    const uint16_t field_id = Load<uint16_t>(extra.data());
    const size_t field_bytes = Load<uint16_t>(extra.data() + 2);
    if (extra.size() - 4 < field_bytes) return std::nullopt;
    if (field_id == id) return extra.subspan(4, field_bytes);
    extra = extra.subspan(4 + field_bytes);
  }
  return std::nullopt;
}

// Replaces `number` by the next 64-bit number of a zip64 field where the 32-bit form was saturated.
bool Widen(uint64_t& number, Bytes& field) {
  if (number != zip::kSaturated32) return true;
  if (field.size() < 8) return false;
  number = Load<uint64_t>(field.data());
  field = field.subspan(8);
  return true;
}

Result<Entry> ReadEntry(Bytes directory, int64_t at, const std::string& where) {
  const Bytes rest = directory.subspan(static_cast<size_t>(at));
  if (rest.size() < static_cast<size_t>(zip::kCentralBytes) ||
      Load<uint32_t>(rest.data()) != zip::kCentralSignature) {
    return Malformed("no directory entry " + AtOffset(at) + " of the directory", "one", where);
  }
  const std::byte* p = rest.data();
  const size_t name_bytes = Load<uint16_t>(p + 28);
  const size_t extra_bytes = Load<uint16_t>(p + 30);
  const size_t comment_bytes = Load<uint16_t>(p + 32);
  const size_t entry_bytes = zip::kCentralBytes + name_bytes + extra_bytes + comment_bytes;
  if (rest.size() < entry_bytes) {
    return Malformed("a directory entry of " + std::to_string(entry_bytes) + " bytes",
                     "at most the " + std::to_string(rest.size()) + " bytes that are left", where);
  }
  if (name_bytes > static_cast<size_t>(kRecordNameBytesMax)) {
    return Error{ErrorCode::kLimitExceeded,
                 "a record name of " + std::to_string(name_bytes) + " bytes",
                 "at most " + std::to_string(kRecordNameBytesMax), where, kCopyAgain};
  }
  Entry entry;
  entry.full_name.assign(reinterpret_cast<const char*>(p + zip::kCentralBytes), name_bytes);
  entry.flags = Load<uint16_t>(p + 8);
  entry.crc32 = Load<uint32_t>(p + 16);
  entry.entry_bytes = static_cast<int64_t>(entry_bytes);
  const std::string record = where + ", record " + entry.full_name;
  if ((entry.flags & zip::kFlagEncrypted) != 0) {
    return Malformed("an encrypted record", "plain bytes", record);
  }
  if (Load<uint16_t>(p + 10) != 0) {
    return Malformed("compression method " + std::to_string(Load<uint16_t>(p + 10)),
                     "0 (stored), as torch.save writes", record);
  }
  uint64_t stored_bytes = Load<uint32_t>(p + 20);
  entry.payload_bytes = Load<uint32_t>(p + 24);
  entry.header_offset = Load<uint32_t>(p + 42);
  if (Load<uint16_t>(p + 34) != 0) {
    return Error{ErrorCode::kUnsupported, "a record on another disk", "one file", record,
                 "Join the parts, or save again with torch.save."};
  }
  const Bytes extra = rest.subspan(zip::kCentralBytes + name_bytes, extra_bytes);
  Bytes wide = FindExtra(extra, zip::kExtraZip64).value_or(Bytes{});
  // The order is the format's: size, stored size, offset; each only where its 32-bit form is
  // saturated.
  if (!Widen(entry.payload_bytes, wide) || !Widen(stored_bytes, wide) ||
      !Widen(entry.header_offset, wide)) {
    return Malformed("saturated sizes without their zip64 field", "64-bit sizes", record);
  }
  if (stored_bytes != entry.payload_bytes) {
    return Malformed(std::to_string(stored_bytes) + " stored bytes for a record of " +
                         std::to_string(entry.payload_bytes),
                     "equal numbers for a stored record", record);
  }
  return entry;
}

// Splits root folder and record name; refuses names that would leave the root when taken as a path.
Status CheckName(std::string_view full_name, const std::string& where) {
  const auto bad = [&](const char* what) -> Status {
    return Malformed("a record name with " + std::string(what), "ROOT/NAME with plain folder names",
                     where);
  };
  if (full_name.find('\0') != std::string_view::npos) return bad("a zero byte");
  if (full_name.find('\\') != std::string_view::npos) return bad("a backslash");
  size_t begin = 0;
  int parts = 0;
  while (true) {
    const size_t end = std::min(full_name.find('/', begin), full_name.size());
    const std::string_view part = full_name.substr(begin, end - begin);
    if (part.empty()) return bad("an empty part");
    if (part == "." || part == "..") return bad("a step up (\".\" or \"..\")");
    ++parts;
    if (end == full_name.size()) break;
    begin = end + 1;
  }
  if (parts < 2) return bad("no root folder");
  return Done{};
}

struct Extent {
  int64_t begin = 0, end = 0;
  size_t record = 0;
};

// The end of the descriptor behind the payload. Its sizes must be those of the directory; its CRC
// is not looked at, because the one that counts is in the directory and is compared with the bytes
// by CheckCrc.
Result<int64_t> DescriptorEnd(Bytes bytes, const Record& record, int64_t limit,
                              const std::string& where) {
  const int64_t at = record.payload_offset + record.payload_bytes;
  const uint64_t payload = static_cast<uint64_t>(record.payload_bytes);
  const std::byte* p = bytes.data() + at;
  if (limit - at >= zip::kDescriptorBytes && Load<uint32_t>(p) == zip::kDescriptorSignature) {
    if (limit - at >= zip::kDescriptor64Bytes && Load<uint64_t>(p + 8) == payload &&
        Load<uint64_t>(p + 16) == payload) {
      return at + zip::kDescriptor64Bytes;
    }
    if (Load<uint32_t>(p + 8) == payload && Load<uint32_t>(p + 12) == payload) {
      return at + zip::kDescriptorBytes;
    }
    return Malformed(
        "a data descriptor with other sizes than the directory's " + std::to_string(payload),
        "equal sizes", where);
  }
  return Malformed("no data descriptor behind the payload, " + AtOffset(at),
                   "one, as the record's flags announce", where);
}

// Checks the local header and fills in where the payload lies.
Result<Extent> Locate(Bytes bytes, const Entry& entry, int64_t limit, Record& record,
                      const std::string& where) {
  if (entry.header_offset > static_cast<uint64_t>(limit) ||
      limit - static_cast<int64_t>(entry.header_offset) < zip::kLocalBytes) {
    return Malformed("a local header at byte " + std::to_string(entry.header_offset),
                     "one in front of the directory at byte " + std::to_string(limit), where);
  }
  const int64_t begin = static_cast<int64_t>(entry.header_offset);
  const std::byte* p = bytes.data() + begin;
  if (Load<uint32_t>(p) != zip::kLocalSignature) {
    return Malformed("no local header " + AtOffset(begin), "the one that the directory names",
                     where);
  }
  const int64_t name_bytes = Load<uint16_t>(p + 26);
  const int64_t extra_bytes = Load<uint16_t>(p + 28);
  const int64_t payload = begin + zip::kLocalBytes + name_bytes + extra_bytes;
  if (payload > limit) {
    return Malformed("a local header that reaches byte " + std::to_string(payload),
                     "one in front of the directory at byte " + std::to_string(limit), where);
  }
  const std::string_view name(reinterpret_cast<const char*>(p + zip::kLocalBytes),
                              static_cast<size_t>(name_bytes));
  if (name != entry.full_name || Load<uint16_t>(p + 6) != entry.flags ||
      Load<uint16_t>(p + 8) != 0) {
    return Malformed("a local header with another name, flags or method", "those of the directory",
                     where);
  }
  if (entry.payload_bytes > static_cast<uint64_t>(limit - payload)) {
    return Malformed(
        "a payload of " + std::to_string(entry.payload_bytes) + " bytes " + AtOffset(payload),
        "one in front of the directory at byte " + std::to_string(limit), where);
  }
  record.payload_offset = payload;
  record.payload_bytes = static_cast<int64_t>(entry.payload_bytes);
  record.crc32 = entry.crc32;
  if ((entry.flags & zip::kFlagDescriptor) != 0) {
    CK_TRY(const int64_t end, DescriptorEnd(bytes, record, limit, where));
    return Extent{begin, end, 0};
  }
  const uint64_t local_bytes = Load<uint32_t>(p + 22);
  // torch writes zeros here for an empty record; a saturated number has its value in a zip64 field,
  // which the directory has too.
  if (local_bytes != entry.payload_bytes && local_bytes != zip::kSaturated32) {
    return Malformed("a local header that says " + std::to_string(local_bytes) + " bytes",
                     std::to_string(entry.payload_bytes) + ", as in the directory", where);
  }
  return Extent{begin, payload + record.payload_bytes, 0};
}

Status CheckOverlaps(std::vector<Extent>& extents, const std::vector<Record>& records,
                     const std::string& where) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin >= extents[i - 1].end) continue;
    return Malformed("records " + records[extents[i - 1].record].name + " and " +
                         records[extents[i].record].name + " that overlap " +
                         AtOffset(extents[i].begin),
                     "every byte in at most one record", where);
  }
  return Done{};
}

}  // namespace

Result<ZipIndex> ReadZipIndex(Bytes bytes, const std::string& where) {
  CK_TRY(const Directory place, FindDirectory(bytes, where));
  const Bytes directory =
      bytes.subspan(static_cast<size_t>(place.offset), static_cast<size_t>(place.bytes));
  ZipIndex index;
  index.records.reserve(static_cast<size_t>(place.count));
  std::vector<Extent> extents;
  extents.reserve(static_cast<size_t>(place.count));
  std::unordered_set<std::string> names;
  int64_t at = 0;
  for (int64_t i = 0; i < place.count; ++i) {
    CK_TRY(const Entry entry, ReadEntry(directory, at, where));
    at += entry.entry_bytes;
    const std::string record_where = where + ", record " + entry.full_name;
    CK_DO(CheckName(entry.full_name, record_where));
    const size_t slash = entry.full_name.find('/');
    const std::string root = entry.full_name.substr(0, slash);
    if (i == 0) index.root_name = root;
    if (root != index.root_name) {
      return Malformed("a second root folder", "one, \"" + index.root_name + "\"", record_where);
    }
    if (!names.insert(entry.full_name).second) {
      return Malformed("a second record of this name", "one", record_where);
    }
    Record record;
    record.name = entry.full_name.substr(slash + 1);
    CK_TRY(Extent extent, Locate(bytes, entry, place.offset, record, record_where));
    extent.record = index.records.size();
    extents.push_back(extent);
    index.records.push_back(std::move(record));
  }
  if (at != place.bytes) {
    return Malformed(std::to_string(place.bytes - at) + " bytes behind the last directory entry",
                     "none", where);
  }
  CK_DO(CheckOverlaps(extents, index.records, where));
  return index;
}

const Record* FindRecord(const std::vector<Record>& records, std::string_view name) {
  const auto found = std::find_if(records.begin(), records.end(),
                                  [name](const Record& record) { return record.name == name; });
  return found == records.end() ? nullptr : &*found;
}

}  // namespace checkpoint
