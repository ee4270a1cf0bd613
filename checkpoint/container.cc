// Opening: which container it is, the small records, the pickle, and where each storage lies.
#include "checkpoint/container.h"

#include <string_view>
#include <unordered_map>

#include "checkpoint/legacy_reader.h"
#include "checkpoint/limits.h"
#include "checkpoint/storage_id.h"
#include "checkpoint/zip_format.h"
#include "checkpoint/zip_reader.h"

namespace checkpoint {
namespace {

const char kCopyAgain[] =
    "The file is damaged or its copy is incomplete: copy it again from where it was written and "
    "compare sizes.";

Error Malformed(std::string found, std::string expected, std::string where) {
  return {ErrorCode::kMalformedContainer, std::move(found), std::move(expected), std::move(where),
          kCopyAgain};
}

using RecordMap = std::unordered_map<std::string_view, const Record*>;

class ZipFile {
 public:
  ZipFile(const std::shared_ptr<const MappedFile>& file, ZipIndex index)
      : file_(file), where_(file->path().string()), index_(std::move(index)) {
    for (const Record& record : index_.records) {
      by_name_.emplace(record.name, &record);
      crc_written_ = crc_written_ || record.crc32 != 0;
    }
  }

  Result<TorchFile> Read() {
    CK_DO(CheckSmallRecords());
    TorchFile out;
    CK_TRY(out.serialization_id, SmallRecord(".data/serialization_id"));
    CK_TRY(out.root, ReadRoot());
    out.file = file_;
    out.crc_written = crc_written_;
    out.root_name = std::move(index_.root_name);
    out.storages = std::move(storages_.in_order());
    by_name_.clear();  // its names live in the records
    out.records = std::move(index_.records);
    return out;
  }

 private:
  std::string WhereOf(std::string_view name) const {
    return where_ + ", record " + std::string(name);
  }

  const Record* Find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

  // The bytes of a record that is read while opening: compared with its CRC, because they are
  // touched anyway.
  Result<std::span<const std::byte>> Checked(const Record& record) const {
    const auto bytes = file_->bytes().subspan(static_cast<size_t>(record.payload_offset),
                                              static_cast<size_t>(record.payload_bytes));
    if (!crc_written_ || Crc32(0, bytes) == record.crc32) return bytes;
    return Error{ErrorCode::kChecksumMismatch, "other bytes than those that were written",
                 "the CRC-32 that the zip directory says", WhereOf(record.name),
                 "At least one byte changed after the file was written: take another copy of it."};
  }

  // Text of an optional record; empty where it is absent.
  Result<std::string> SmallRecord(std::string_view name) const {
    constexpr int64_t kSmallBytesMax = 256;
    const Record* record = Find(name);
    if (record == nullptr) return std::string();
    if (record->payload_bytes > kSmallBytesMax) {
      return Malformed(std::to_string(record->payload_bytes) + " bytes",
                       "at most " + std::to_string(kSmallBytesMax), WhereOf(name));
    }
    CK_TRY(const auto bytes, Checked(*record));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  Status CheckSmallRecords() const {
    if (Find("constants.pkl") != nullptr) {
      return Error{ErrorCode::kUnsupported, "a TorchScript archive", "a file that torch.save wrote",
                   where_, "Save the state dict with torch.save."};
    }
    if (Find("version") == nullptr) {
      return Malformed("no record \"version\"", "one, as in every file of torch.save", where_);
    }
    CK_TRY(const std::string byteorder, SmallRecord("byteorder"));
    if (byteorder == "big") {
      return Error{ErrorCode::kUnsupported, "byteorder \"big\"", "\"little\"", WhereOf("byteorder"),
                   "Load the file with torch on a little-endian machine and save it again."};
    }
    if (Find("byteorder") != nullptr && byteorder != "little") {
      return Malformed("byteorder of another kind", "\"little\"", WhereOf("byteorder"));
    }
    CK_TRY(const std::string version, SmallRecord("version"));
    // 1 to 10 is what torch itself accepts; torch.save has written "3" since zip files exist.
    if (version.find_first_not_of("0123456789\n") != std::string::npos || version.empty() ||
        version.size() > 3) {
      return Malformed("a version that is no number", "\"3\"", WhereOf("version"));
    }
    CK_TRY(const std::string format_version, SmallRecord(".format_version"));
    if (Find(".format_version") != nullptr && format_version != "1") {
      return Error{ErrorCode::kUnsupported, "another .format_version", "\"1\"",
                   WhereOf(".format_version"),
                   "This file is of a later format: use a later version of this program."};
    }
    return Done{};
  }

  Result<Value> ReadRoot() {
    const Record* record = Find("data.pkl");
    if (record == nullptr) return Malformed("no record \"data.pkl\"", "one", where_);
    const std::string where = WhereOf("data.pkl");
    if (record->payload_bytes > kPickleBytesMax) {
      return Error{ErrorCode::kLimitExceeded,
                   std::to_string(record->payload_bytes) + " bytes of pickle",
                   "at most " + std::to_string(kPickleBytesMax), where,
                   "Checkpoints have far smaller object trees."};
    }
    file_->Prefetch(record->payload_offset, record->payload_bytes);
    CK_TRY(const auto bytes, Checked(*record));
    const StorageResolver resolve = [this](const Value& pid) { return Resolve(pid); };
    CK_TRY(PickleResult result, ReadPickle(bytes, resolve, where));
    if (result.bytes_read != record->payload_bytes) {
      return Error{ErrorCode::kMalformedPickle,
                   std::to_string(record->payload_bytes - result.bytes_read) + " bytes behind STOP",
                   "none", where, kCopyAgain};
    }
    return std::move(result.root);
  }

  Result<StoragePtr> Resolve(const Value& pid) {
    CK_TRY(const StorageId id, ParseStorageId(pid, WhereOf("data.pkl")));
    const std::string name = "data/" + id.key;
    const Record* record = Find(name);
    if (record == nullptr) {
      return Malformed("no record \"" + name + "\"", "one, because data.pkl names it", where_);
    }
    CK_TRY(auto found, storages_.FindOrMake(id, WhereOf("data.pkl")));
    if (id.view) return Malformed("a storage view", "none in a zip container", WhereOf("data.pkl"));
    if (!found.made) return std::move(found.storage);
    const std::string expected =
        std::to_string(found.storage->bytes()) + " bytes, as data.pkl says";
    if (record->payload_bytes < found.storage->bytes()) {
      return Error{ErrorCode::kTruncated, std::to_string(record->payload_bytes) + " bytes",
                   expected, WhereOf(name), kCopyAgain};
    }
    if (record->payload_bytes > found.storage->bytes()) {
      return Malformed(std::to_string(record->payload_bytes) + " bytes", expected, WhereOf(name));
    }
    found.storage->file = file_;
    found.storage->file_offset = record->payload_offset;
    return std::move(found.storage);
  }

  std::shared_ptr<const MappedFile> file_;
  std::string where_;
  ZipIndex index_;
  RecordMap by_name_;  // never iterated
  bool crc_written_ = false;
  StorageTable storages_;
};

bool StartsWith(std::span<const std::byte> bytes, std::string_view text) {
  return bytes.size() >= text.size() &&
         std::string_view(reinterpret_cast<const char*>(bytes.data()), text.size()) == text;
}

Result<TorchFile> ReadContainer(const std::shared_ptr<const MappedFile>& file) {
  const auto bytes = file->bytes();
  const std::filesystem::path& path = file->path();
  const std::string_view kZip("PK\x03\x04", 4);
  if (StartsWith(bytes, kZip)) {
    CK_TRY(ZipIndex index, ReadZipIndex(bytes, path.string()));
    return ZipFile(file, std::move(index)).Read();
  }
  // PROTO opens every pickle of protocol 2 and later.
  if (StartsWith(bytes, "\x80")) return ReadLegacyFile(file);
  if (bytes.size() < kZip.size()) {
    return Error{ErrorCode::kTruncated, std::to_string(bytes.size()) + " bytes",
                 "a file that torch.save wrote", path.string(), kCopyAgain};
  }
  return Error{ErrorCode::kMalformedContainer, "neither a zip nor a pickle at the start",
               "a file that torch.save wrote", path.string(),
               "Check that this is a checkpoint file, and that its transfer did not replace it by "
               "an error page."};
}

}  // namespace

Result<TorchFile> OpenTorchFile(const std::filesystem::path& path) {
  CK_TRY(const std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  // What is read here lies in small places all over the file. Reading ahead around each of them
  // would fetch more tensor bytes than all metadata, and most of a checkpoint of small tensors.
  constexpr int64_t kEndsBytes = 64 << 10;  // where most directories and pickles lie
  file->Expect(MappedFile::Access::kScattered);
  file->Prefetch(0, kEndsBytes);
  file->Prefetch(std::max<int64_t>(0, static_cast<int64_t>(file->bytes().size()) - kEndsBytes),
                 kEndsBytes);
  Result<TorchFile> read = ReadContainer(file);
  file->Expect(MappedFile::Access::kInOrder);
  return read;
}

}  // namespace checkpoint
