// Files as the rest of the house sees them: mapped for reading, positioned writes for targets, one seam for faults.
// Tested by file_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "checkpoint/status.h"

namespace checkpoint {

// A file mapped read-only. Shared by all storages read from it.
class MappedFile {
 public:
  static Result<std::shared_ptr<const MappedFile>> Open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {begin_, bytes_}; }
  const std::filesystem::path& path() const { return path_; }
  // Tells the kernel that [offset, offset + count) is not needed again soon, so that resident memory stays bounded.
  void Release(int64_t offset, int64_t count) const;
  // Size or modification time changed since Open: kInconsistent.
  Status CheckUnchanged() const;

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  const std::byte* begin_ = nullptr;
  size_t bytes_ = 0;
  int64_t modified_nanoseconds_ = 0;
};

// A file being written at given offsets, in any order, from several threads. Made with O_EXCL: never overwrites.
class OutputFile {
 public:
  static Result<std::shared_ptr<OutputFile>> Create(const std::filesystem::path& path, int64_t bytes_expected);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  Status Write(int64_t offset, std::span<const std::byte> bytes);   // whole or kIo; short writes are continued
  // Whole range zero without writing it, where the file system allows (the file was made sparse to its full size).
  Status Close(bool flush);                                         // fsync where `flush`; errors of close are reported
  const std::filesystem::path& path() const { return path_; }

 private:
  OutputFile() = default;
  std::filesystem::path path_;
  int descriptor_ = -1;
};

// Whole small files (latest, JSON). `bytes_max` bounds what is read.
Result<std::string> ReadSmallFile(const std::filesystem::path& path, int64_t bytes_max);
Status WriteSmallFile(const std::filesystem::path& path, std::string_view text, bool flush);   // temporary sibling, then rename
Status SyncFolder(const std::filesystem::path& path);

}  // namespace checkpoint
