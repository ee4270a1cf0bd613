#include <libdeflate.h>
#include <zlib.h>

#include <algorithm>

#include "checkpoint/container.h"

namespace checkpoint {

static_assert(sizeof(z_off_t) == 8, "crc32_combine must take 64-bit lengths");

uint32_t Crc32(uint32_t seed, std::span<const std::byte> bytes) {
  return libdeflate_crc32(seed, bytes.data(), bytes.size());
}

uint32_t Crc32Combine(uint32_t first, uint32_t second, int64_t second_bytes) {
  CHECK(second_bytes >= 0, << "second_bytes=" << second_bytes);
  return static_cast<uint32_t>(crc32_combine(first, second, second_bytes));
}

namespace {

std::string Hex(uint32_t number) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", number);
  return text;
}

}  // namespace

uint32_t Crc32OfRecord(const MappedFile& file, const Record& record) {
  constexpr int64_t kWindowBytes = 4 << 20;
  uint32_t crc = 0;
  for (int64_t done = 0; done < record.payload_bytes; done += kWindowBytes) {
    const int64_t offset = record.payload_offset + done;
    const int64_t count = std::min(kWindowBytes, record.payload_bytes - done);
    crc = Crc32(crc, file.bytes().subspan(static_cast<size_t>(offset), static_cast<size_t>(count)));
    file.Release(offset, count);
  }
  return crc;
}

Result<CrcTally> CheckCrc(const TorchFile& file) {
  CrcTally tally;
  if (!file.crc_written) return tally;
  for (const Record& record : file.records) {
    const uint32_t crc = Crc32OfRecord(*file.file, record);
    if (crc != record.crc32) {
      return Error{
          ErrorCode::kChecksumMismatch, "CRC-32 " + Hex(crc),
          Hex(record.crc32) + ", as the zip directory says",
          file.file->path().string() + ", record " + record.name,
          "At least one byte changed after the file was written: take another copy of it."};
    }
    ++tally.records_checked;
    tally.bytes_checked += record.payload_bytes;
  }
  return tally;
}

}  // namespace checkpoint
