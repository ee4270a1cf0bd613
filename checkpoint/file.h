// Files as the rest of the house sees them: mapped for reading, positioned writes for targets, one
// seam for faults. Tested by file_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/status.h"

namespace checkpoint {

// A file mapped read-only. Shared by all storages read from it.
//
// Does not cover: a file that another process truncates in place while it is mapped. Touching a
// page behind the new end raises SIGBUS, as with every reader that maps; checkpoint files are
// written once and renamed into place, so this needs a writer that breaks that rule during the run.
// CheckUnchanged after reading tells of every change that did not end the program.
class MappedFile {
 public:
  // Errors: kNotFound, kIo (no permission, a folder, a device). An empty file maps to an empty
  // span.
  static Result<std::shared_ptr<const MappedFile>> Open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {begin_, bytes_}; }
  const std::filesystem::path& path() const { return path_; }
  // Tells the kernel that [offset, offset + count) is not needed again soon, so that resident
  // memory stays bounded. Whole pages that the range touches are dropped; reading them again is
  // correct and costs a page fault.
  void Release(int64_t offset, int64_t count) const;
  // How the file is going to be touched. kScattered: the kernel reads the touched pages alone, not
  // the megabytes around them. kInOrder, as after Open: it reads ahead.
  enum class Access { kScattered, kInOrder };
  void Expect(Access access) const;
  // Asks the kernel to read [offset, offset + count), as far as it lies in the file, in one go.
  void Prefetch(int64_t offset, int64_t count) const;
  // Size, modification time or identity of the file at path() changed since Open: kInconsistent.
  // Gone: kNotFound.
  Status CheckUnchanged() const;

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  const std::byte* begin_ = nullptr;
  size_t bytes_ = 0;
  int64_t modified_nanoseconds_ = 0;
  uint64_t device_ = 0, inode_ = 0;
};

// A file being written at given offsets, in any order, from several threads. Made with O_EXCL:
// never overwrites.
class OutputFile {
 public:
  // The file gets its full size at once, as a hole: what is never written reads as zeros. Errors:
  // kTargetExists, kNotFound (no such folder), kIo. On an error no file is left.
  static Result<std::shared_ptr<OutputFile>> Create(const std::filesystem::path& path,
                                                    int64_t bytes_expected);
  // Closes without reporting, where Close was not called.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Whole or kIo; short writes are continued. Safe from several threads.
  // REQUIRES: not closed; 0 <= offset and offset + bytes <= bytes_expected.
  Status Write(int64_t offset, std::span<const std::byte> bytes);
  // fsync where `flush`; errors of close are reported. Once; not while a Write runs.
  Status Close(bool flush);
  const std::filesystem::path& path() const { return path_; }

 private:
  OutputFile() = default;
  std::filesystem::path path_;
  int64_t bytes_expected_ = 0;
  int descriptor_ = -1;
};

// Whole small files (latest, JSON). More than `bytes_max` in the file: kLimitExceeded. Errors:
// kNotFound, kIo.
Result<std::string> ReadSmallFile(const std::filesystem::path& path, int64_t bytes_max);
// Replaces `path` as a whole or not at all: a temporary sibling, then rename. Errors: kNotFound (no
// such folder), kIo.
Status WriteSmallFile(const std::filesystem::path& path, std::string_view text, bool flush);
// The name that WriteSmallFile was to give a file, where `filename` is the temporary sibling that a
// killed call left behind; empty where it is none.
std::string NameOfTemporary(std::string_view filename);
// Makes the names in a folder durable. Errors: kNotFound, kIo.
Status SyncFolder(const std::filesystem::path& path);

// The error for a failed system call: kNotFound, kTargetExists or kIo by `error_number`, with
// advice for a full disk, missing permission, too many open files. `action` is what was tried:
// "open for reading".
Error SystemError(int error_number, const std::string& action, const std::filesystem::path& path);

// The seam through which tests make the n-th system call of this module fail or fall short.
// Process-wide; off by default.
struct FileFault {
  enum class Call { kAny, kOpen, kStat, kMap, kRead, kWrite, kResize, kSync, kClose, kRename };
  Call call = Call::kAny;
  int64_t nth = 1;  // counted from 1 since SetFileFault, over calls of this kind
  // 0: a read or write transfers only half of what was asked for (at least one byte).
  int error_number = 0;
  bool sticky = false;  // every call of this kind from the n-th on
};
void SetFileFault(std::optional<FileFault> fault);
// Calls of the fault's kind since SetFileFault: a loop over n ends when this stays below n. 0 where
// no fault is set.
int64_t FileFaultCalls();

}  // namespace checkpoint
