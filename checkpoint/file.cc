#include "checkpoint/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

namespace checkpoint {
namespace {

using Call = FileFault::Call;

// The kernel moves at most 0x7ffff000 bytes per call; smaller pieces keep the arithmetic plain.
constexpr size_t kTransferBytesMax = size_t{1} << 30;

// ---- The seam. Off: one relaxed load per call. ----

std::atomic<bool> fault_set{false};
std::mutex fault_mutex;
FileFault fault_now;      // guarded by fault_mutex
int64_t fault_calls = 0;  // guarded by fault_mutex

struct Injected {
  bool active = false;
  int error_number = 0;
};

Injected NextCall(Call call) {
  if (!fault_set.load(std::memory_order_relaxed)) return {};
  const std::lock_guard<std::mutex> lock(fault_mutex);
  if (fault_now.call != Call::kAny && fault_now.call != call) return {};
  ++fault_calls;
  const bool hit = fault_now.sticky ? fault_calls >= fault_now.nth : fault_calls == fault_now.nth;
  return {hit, fault_now.error_number};
}

// True where the seam says that this call fails; errno is set as the kernel would.
bool Fails(Call call) {
  const Injected injected = NextCall(call);
  if (!injected.active || injected.error_number == 0) return false;
  errno = injected.error_number;
  return true;
}

// The count that a transfer may move: all, half (short), or -1 with errno set.
ssize_t Allowed(Call call, size_t bytes) {
  const Injected injected = NextCall(call);
  if (!injected.active) return static_cast<ssize_t>(bytes);
  if (injected.error_number == 0) return static_cast<ssize_t>(std::max<size_t>(bytes / 2, 1));
  errno = injected.error_number;
  return -1;
}

int OpenFile(const std::filesystem::path& path, int flags) {
  if (Fails(Call::kOpen)) return -1;
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

int CloseFile(int descriptor) {
  const bool fails = Fails(Call::kClose);
  const int injected_errno = errno;
  const int result = ::close(descriptor);  // also where the seam fails: descriptors must not leak
  if (fails) errno = injected_errno;
  // Linux frees the descriptor even when close is interrupted; there is nothing to repeat.
  return fails ? -1 : (result < 0 && errno == EINTR ? 0 : result);
}

int StatDescriptor(int descriptor, struct stat* out) {
  return Fails(Call::kStat) ? -1 : ::fstat(descriptor, out);
}
int StatPath(const std::filesystem::path& path, struct stat* out) {
  return Fails(Call::kStat) ? -1 : ::stat(path.c_str(), out);
}
int Sync(int descriptor) { return Fails(Call::kSync) ? -1 : ::fsync(descriptor); }

int64_t ModifiedNanoseconds(const struct stat& status) {
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

std::string Count(int64_t bytes) { return std::to_string(bytes) + " bytes"; }

// Continues short writes; EINTR is no error. 0 or the errno. A write that moves nothing counts as a
// full disk.
int WriteAll(int descriptor, int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t allowed = Allowed(Call::kWrite, std::min(bytes.size(), kTransferBytesMax));
    const ssize_t moved =
        allowed < 0 ? -1 : ::pwrite(descriptor, bytes.data(), static_cast<size_t>(allowed), offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved == 0) return ENOSPC;
    bytes = bytes.subspan(static_cast<size_t>(moved));
    offset += moved;
  }
  return 0;
}

std::string AdviceFor(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return "The disk or the quota is full: free space, or name a target on another file system.";
    case EACCES:
    case EPERM:
      return "Check owner and permission bits of the file and of all folders above it.";
    case EROFS:
      return "The file system is mounted read-only: name a target elsewhere.";
    case EFBIG:
      return "The file system or the limit `ulimit -f` does not allow files of this size.";
    case EMFILE:
    case ENFILE:
      return "Too many open files: raise `ulimit -n`.";
    case ENOENT:
    case ENOTDIR:
      return "Check the path for a missing folder or a spelling error.";
    case EEXIST:
      return "Nothing that exists is overwritten: name another target, or move this one away.";
    case EISDIR:
      return "A file was expected here, not a folder.";
    case ENOMEM:
      return "The address space or the number of mappings is used up: see `ulimit -v` and "
             "vm.max_map_count.";
    default:
      return "Check the file system and the device (dmesg), then try again.";
  }
}

}  // namespace

Error SystemError(int error_number, const std::string& action, const std::filesystem::path& path) {
  ErrorCode code = ErrorCode::kIo;
  if (error_number == ENOENT || error_number == ENOTDIR) code = ErrorCode::kNotFound;
  if (error_number == EEXIST) code = ErrorCode::kTargetExists;
  return {code, "\"" + std::string(std::strerror(error_number)) + "\"", "to " + action,
          path.string(), AdviceFor(error_number)};
}

void SetFileFault(std::optional<FileFault> fault) {
  const std::lock_guard<std::mutex> lock(fault_mutex);
  fault_now = fault.value_or(FileFault{});
  fault_calls = 0;
  fault_set.store(fault.has_value(), std::memory_order_relaxed);
}

int64_t FileFaultCalls() {
  const std::lock_guard<std::mutex> lock(fault_mutex);
  return fault_calls;
}

// ---- MappedFile ----

Result<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer; regular files ignore it.
  const int descriptor = OpenFile(path, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) return SystemError(errno, "open for reading", path);
  struct stat status {};
  if (StatDescriptor(descriptor, &status) != 0) {
    const int error_number = errno;
    CloseFile(descriptor);
    return SystemError(error_number, "read the size", path);
  }
  if (!S_ISREG(status.st_mode)) {
    CloseFile(descriptor);
    return Error{ErrorCode::kIo, S_ISDIR(status.st_mode) ? "a folder" : "a pipe, socket or device",
                 "a regular file", path.string(), "Name a file that torch.save wrote."};
  }
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  file->modified_nanoseconds_ = ModifiedNanoseconds(status);
  file->device_ = status.st_dev;
  file->inode_ = status.st_ino;
  if (status.st_size > 0) {
    const size_t bytes = static_cast<size_t>(status.st_size);
    void* begin = Fails(Call::kMap) ? MAP_FAILED
                                    : ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    if (begin == MAP_FAILED) {
      const int error_number = errno;
      CloseFile(descriptor);
      return SystemError(error_number, "map into memory", path);
    }
    file->begin_ = static_cast<const std::byte*>(begin);
    file->bytes_ = bytes;
  }
  CloseFile(descriptor);  // the mapping keeps the file; an error of close loses no data on a file
                          // that was read
  return std::shared_ptr<const MappedFile>(std::move(file));
}

MappedFile::~MappedFile() {
  if (begin_ != nullptr) ::munmap(const_cast<std::byte*>(begin_), bytes_);
}

void MappedFile::Release(int64_t offset, int64_t count) const {
  CHECK(offset >= 0, << "offset=" << offset);
  CHECK(count >= 0, << "count=" << count);
  CHECK(static_cast<uint64_t>(offset) + static_cast<uint64_t>(count) <= bytes_,
        << "offset=" << offset << " count=" << count << " bytes=" << bytes_);
  if (count == 0) return;
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t begin = offset / page * page;
  const int64_t end = offset + count;
  // Advice only: where the kernel refuses, memory is merely released later.
  (void)::madvise(const_cast<std::byte*>(begin_) + begin, static_cast<size_t>(end - begin),
                  MADV_DONTNEED);
}

void MappedFile::Expect(Access access) const {
  if (begin_ == nullptr) return;
  (void)::madvise(const_cast<std::byte*>(begin_), bytes_,
                  access == Access::kScattered ? MADV_RANDOM : MADV_NORMAL);
}

void MappedFile::Prefetch(int64_t offset, int64_t count) const {
  CHECK(offset >= 0, << "offset=" << offset);
  CHECK(count >= 0, << "count=" << count);
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t begin = offset / page * page;
  const int64_t end = std::min(offset + count, static_cast<int64_t>(bytes_));
  if (begin >= end) return;
  (void)::madvise(const_cast<std::byte*>(begin_) + begin, static_cast<size_t>(end - begin),
                  MADV_WILLNEED);
}

Status MappedFile::CheckUnchanged() const {
  struct stat status {};
  if (StatPath(path_, &status) != 0) return SystemError(errno, "read the size again", path_);
  const std::string advice =
      "Another process writes here: wait until the checkpoint is complete, then start again.";
  if (static_cast<uint64_t>(status.st_size) != bytes_) {
    return Error{ErrorCode::kInconsistent, Count(status.st_size) + " now",
                 Count(static_cast<int64_t>(bytes_)) + ", as when the file was opened",
                 path_.string(), advice};
  }
  if (status.st_ino != inode_ || status.st_dev != device_) {
    return Error{ErrorCode::kInconsistent, "another file under this name",
                 "the file that was opened", path_.string(), advice};
  }
  if (ModifiedNanoseconds(status) != modified_nanoseconds_) {
    return Error{ErrorCode::kInconsistent, "a later modification time",
                 "the time when the file was opened", path_.string(), advice};
  }
  return Done{};
}

// ---- OutputFile ----

Result<std::shared_ptr<OutputFile>> OutputFile::Create(const std::filesystem::path& path,
                                                       int64_t bytes_expected) {
  CHECK(bytes_expected >= 0, << "bytes_expected=" << bytes_expected);
  const int descriptor = OpenFile(path, O_WRONLY | O_CREAT | O_EXCL);
  if (descriptor < 0) return SystemError(errno, "create the file", path);
  int result = -1;
  do {
    result = Fails(Call::kResize) ? -1 : ::ftruncate(descriptor, bytes_expected);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    const int error_number = errno;
    CloseFile(descriptor);
    ::unlink(path.c_str());
    return SystemError(error_number, "give the file its size of " + Count(bytes_expected), path);
  }
  std::shared_ptr<OutputFile> file(new OutputFile);
  file->path_ = path;
  file->bytes_expected_ = bytes_expected;
  file->descriptor_ = descriptor;
  return file;
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) CloseFile(descriptor_);
}

Status OutputFile::Write(int64_t offset, std::span<const std::byte> bytes) {
  CHECK(descriptor_ >= 0, << path_);
  CHECK(offset >= 0, << "offset=" << offset);
  CHECK(bytes.size() <= static_cast<uint64_t>(bytes_expected_) &&
            offset <= bytes_expected_ - static_cast<int64_t>(bytes.size()),
        << "offset=" << offset << " bytes=" << bytes.size() << " of " << bytes_expected_);
  const int error_number = WriteAll(descriptor_, offset, bytes);
  if (error_number != 0) {
    return SystemError(
        error_number,
        "write " + std::to_string(bytes.size()) + " bytes at " + std::to_string(offset), path_);
  }
  return Done{};
}

Status OutputFile::Close(bool flush) {
  CHECK(descriptor_ >= 0, << path_);
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (flush && Sync(descriptor) != 0) {
    const int error_number = errno;
    CloseFile(descriptor);
    return SystemError(error_number, "flush to the device", path_);
  }
  if (CloseFile(descriptor) != 0) return SystemError(errno, "close", path_);
  return Done{};
}

// ---- Small files and folders ----

Result<std::string> ReadSmallFile(const std::filesystem::path& path, int64_t bytes_max) {
  CHECK(bytes_max >= 0, << "bytes_max=" << bytes_max);
  const int descriptor = OpenFile(path, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) return SystemError(errno, "open for reading", path);
  std::string text;
  char buffer[4096];
  while (static_cast<int64_t>(text.size()) <= bytes_max) {
    const ssize_t allowed = Allowed(Call::kRead, sizeof buffer);
    const ssize_t moved =
        allowed < 0 ? -1 : ::read(descriptor, buffer, static_cast<size_t>(allowed));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) {
      const int error_number = errno;
      CloseFile(descriptor);
      return SystemError(error_number, "read", path);
    }
    if (moved == 0) break;
    text.append(buffer, static_cast<size_t>(moved));
  }
  CloseFile(descriptor);
  if (static_cast<int64_t>(text.size()) > bytes_max) {
    return Error{ErrorCode::kLimitExceeded, "more than " + Count(bytes_max),
                 "at most " + Count(bytes_max), path.string(),
                 "This is not the small text file that belongs here."};
  }
  return text;
}

constexpr std::string_view kTemporaryMark = ".partial-";

std::string NameOfTemporary(std::string_view filename) {
  const size_t mark = filename.rfind(kTemporaryMark);
  if (mark == std::string_view::npos || mark < 2 || filename.front() != '.') return {};
  const std::string_view process = filename.substr(mark + kTemporaryMark.size());
  if (process.empty() || process.find_first_not_of("0123456789") != std::string_view::npos)
    return {};
  return std::string(filename.substr(1, mark - 1));
}

Status WriteSmallFile(const std::filesystem::path& path, std::string_view text, bool flush) {
  // The process id keeps two writers apart; a leftover of a killed process with the same id is ours
  // to remove.
  const std::filesystem::path sibling =
      path.parent_path() /
      ("." + path.filename().string() + std::string(kTemporaryMark) + std::to_string(::getpid()));
  ::unlink(sibling.c_str());
  const auto abandon = [&sibling](Error error) -> Status {
    ::unlink(sibling.c_str());
    return error;
  };
  auto file = OutputFile::Create(sibling, static_cast<int64_t>(text.size()));
  if (!file.ok()) return file.error();
  Status written = file.value()->Write(0, std::as_bytes(std::span(text.data(), text.size())));
  if (!written.ok()) return abandon(written.error());
  Status closed = file.value()->Close(flush);
  if (!closed.ok()) return abandon(closed.error());
  if (Fails(Call::kRename) || ::rename(sibling.c_str(), path.c_str()) != 0) {
    return abandon(SystemError(errno, "rename the finished file to its name", path));
  }
  if (!flush) return Done{};
  return SyncFolder(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

Status SyncFolder(const std::filesystem::path& path) {
  const int descriptor = OpenFile(path, O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) return SystemError(errno, "open the folder", path);
  if (Sync(descriptor) != 0) {
    const int error_number = errno;
    CloseFile(descriptor);
    // Some network file systems cannot sync a folder and say so; their renames are durable by
    // themselves.
    if (error_number == EINVAL) return Done{};
    return SystemError(error_number, "flush the folder to the device", path);
  }
  CloseFile(descriptor);
  return Done{};
}

}  // namespace checkpoint
