// torch.save files: zip containers both ways, the legacy (non-zip) container for reading. Format:
// docs/format/container.md. Tested by container_test.cc; what torch.load reads from files made here
// equals what was meant (container_torch_test.py).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file.h"
#include "checkpoint/pickle.h"
#include "checkpoint/status.h"
#include "checkpoint/value.h"

namespace checkpoint {

// One record of a zip container, from the central directory (local headers are only used to find
// the payload).
struct Record {
  std::string name;            // without the root folder: "data.pkl", "data/0"
  int64_t payload_offset = 0;  // in bytes from the start of the file
  int64_t payload_bytes = 0;
  uint32_t crc32 = 0;
};

struct TorchFile {
  std::shared_ptr<const MappedFile> file;
  bool legacy = false;  // non-zip container
  // False for legacy files, and for zips saved with torch.serialization.set_crc32_options(False):
  // all sums are 0 there.
  bool crc_written = false;
  std::string root_name;         // root folder of the zip: "mp_rank_00_model_states"
  std::vector<Record> records;   // empty for legacy
  std::string serialization_id;  // empty where absent
  Value root;
  std::vector<StoragePtr> storages;  // in order of first appearance in the pickle
};

// Maps and parses the file; tensor bytes are not touched. The records that are read (data.pkl,
// byteorder, version, ...) are compared with their CRC-32. Errors: kNotFound, kIo, kTruncated,
// kMalformedContainer, kChecksumMismatch, kMalformedPickle, kMalformedTensor, kLimitExceeded,
// kUnsupported (big-endian, TorchScript, several disks).
Result<TorchFile> OpenTorchFile(const std::filesystem::path& path);
// CRC-32 of every record against the central directory: kChecksumMismatch names file, record, both
// sums. Where none were written (crc_written), nothing is compared, and `records_checked` stays 0.
struct CrcTally {
  int64_t records_checked = 0;
  int64_t bytes_checked = 0;
};
Result<CrcTally> CheckCrc(const TorchFile& file);
// CRC-32 of a record's payload as it is in the file, whatever the directory says. In windows that
// are released again, so that resident memory does not grow with the file.
uint32_t Crc32OfRecord(const MappedFile& file, const Record& record);
uint32_t Crc32(uint32_t seed, std::span<const std::byte> bytes);
// CRC of a concatenation from the CRCs of its parts; `second_bytes` is the length of the second.
uint32_t Crc32Combine(uint32_t first, uint32_t second, int64_t second_bytes);

// Where everything of a torch.save zip will lie, computed before any tensor byte exists. Storages
// may then be filled in any order.
class TorchFileLayout {
 public:
  // `root_name` is the file stem. Records: data.pkl, .format_version, .storage_alignment,
  // byteorder, data/N..., version, .data/serialization_id; payloads 64-aligned; zip64 fields
  // exactly where torch writes them.
  static TorchFileLayout Plan(const Value& root, StringMemo memo, std::string root_name);

  int64_t file_bytes() const { return file_bytes_; }
  const std::vector<StoragePtr>& storages() const { return storages_; }
  // File offset of the payload of storages()[index].
  int64_t StorageOffset(size_t index) const { return storage_offsets_[index]; }
  // Writes all headers, small records, data descriptors and the directory. `storage_crc32[i]`
  // belongs to storages()[i]. May be called before or after the payloads are written.
  Status WriteFrame(OutputFile& file, std::span<const uint32_t> storage_crc32) const;

 private:
  std::string root_name_, pickle_;
  std::vector<StoragePtr> storages_;
  std::vector<int64_t> storage_offsets_;
  int64_t file_bytes_ = 0;
};

// The root folder that torch.save gives a file saved under this path: its name without the last
// extension.
std::string TorchRootName(const std::filesystem::path& path);

// A whole file at once, for small files and fixtures: `fill` writes the content of one storage into
// the span, which is zero before. Errors: kTargetExists, kNotFound, kIo; then no file is left.
Status WriteTorchFile(const std::filesystem::path& path, const Value& root, StringMemo memo,
                      const std::function<void(const Storage&, std::span<std::byte>)>& fill);

}  // namespace checkpoint
