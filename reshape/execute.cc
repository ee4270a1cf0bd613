#include "reshape/execute.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "checkpoint/container.h"
#include "checkpoint/file.h"
#include "checkpoint/tensor.h"
#include "reshape/fill.h"
#include "reshape/threads.h"

namespace reshape {
namespace {

using checkpoint::ElementBytes;
using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Status;

// What is read, summed and written in one go: it stays in the processor's cache in between. A part
// that is one run of a source is written from where it is mapped, without a copy.
constexpr int64_t kHotBytes = 512 << 10;

// Part of a file that one thread does at once: a window of one large storage, several whole small
// ones, or a window of a copied file.
struct Job {
  size_t storage_begin = 0, storage_end = 0;
  Window window;    // elements of the only storage, or bytes of a copied file
  size_t part = 0;  // number of the window within its storage
};

struct FileWork {
  std::vector<Job> jobs;
  std::atomic<size_t> next_job{0};
  std::mutex mutex;
  std::shared_ptr<checkpoint::OutputFile> output;  // guarded by mutex until the first job has begun
  std::shared_ptr<const checkpoint::MappedFile> copied;
  std::atomic<int64_t> jobs_left{0};
  std::vector<std::vector<uint32_t>> part_crcs;  // by storage, then part; each written by one job
};

int32_t ThreadCount(const ExecuteOptions& options) {
  return std::min(reshape::ThreadCount(options.threads), 256);
}

int64_t WindowBytes(const ExecuteOptions& options) {
  return std::min(kWindowBytesMax, kBufferBytesTotalMax / ThreadCount(options));
}

void Populate(std::span<const std::byte> bytes) {
#ifdef MADV_POPULATE_READ
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  // Only a saving of page faults: where the kernel does not know it, nothing is lost.
  (void)::madvise(reinterpret_cast<void*>(begin),
                  reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size() - begin,
                  MADV_POPULATE_READ);
#else
  (void)bytes;
#endif
}

class Executor {
 public:
  Executor(const Plan& plan, const std::filesystem::path& folder, const ExecuteOptions& options)
      : plan_(plan),
        folder_(folder),
        options_(options),
        window_bytes_(WindowBytes(options)),
        hot_bytes_(std::min(kHotBytes, window_bytes_)),
        work_(plan.files.size()) {}

  Status Run() {
    CK_DO(MakeFolders());
    for (size_t i = 0; i < plan_.files.size(); ++i) {
      if (options_.finished.contains(plan_.files[i].path)) {
        bytes_done_ += plan_.files[i].bytes;
      } else {
        AddJobs(i);
      }
    }
    // Largest first, so that no thread is left alone with a large file at the end.
    std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      return plan_.files[a].bytes > plan_.files[b].bytes;
    });
    size_t jobs = 0;
    for (const size_t file : order_) jobs += work_[file].jobs.size();
    RunOnThreads(
        std::min(static_cast<size_t>(ThreadCount(options_)), jobs), [this] { WorkOff(); },
        options_.before_thread);
    if (error_) return std::move(*error_);
    return checkpoint::Done{};
  }

 private:
  Status MakeFolders() {
    for (const FilePlan& file : plan_.files) {
      std::error_code error;
      const std::filesystem::path parent = (folder_ / file.path).parent_path();
      if (parent == made_) continue;
      std::filesystem::create_directories(parent, error);
      if (error) {
        return Error{ErrorCode::kIo, error.message(), "a new folder", parent.string(),
                     "Check permissions and free space."};
      }
      made_ = parent;
    }
    return checkpoint::Done{};
  }

  void AddJobs(size_t index) {
    const FilePlan& file = plan_.files[index];
    std::vector<Job>& jobs = work_[index].jobs;
    order_.push_back(index);
    if (!file.copied_from.empty()) {
      int64_t at = 0;
      do {
        jobs.push_back({0, 0, {at, std::min(file.bytes, at + window_bytes_)}, 0});
        at += window_bytes_;
      } while (at < file.bytes);
    } else {
      AddStorageJobs(index);
    }
    work_[index].jobs_left = static_cast<int64_t>(jobs.size());
  }

  void AddStorageJobs(size_t index) {
    const FilePlan& file = plan_.files[index];
    std::vector<Job>& jobs = work_[index].jobs;
    work_[index].part_crcs.resize(file.storages.size());
    size_t begin = 0;
    for (size_t i = 0; i < file.storages.size(); ++i) {
      const checkpoint::Storage& target = *file.storages[i].target;
      if (target.bytes() > hot_bytes_ / 2) {
        if (begin < i) jobs.push_back({begin, i, {}, 0});
        begin = i + 1;
        const int64_t step = window_bytes_ / ElementBytes(target.dtype);
        size_t part = 0;
        for (int64_t at = 0; at < target.numel; at += step) {
          jobs.push_back({i, i + 1, {at, std::min(target.numel, at + step)}, part++});
        }
        work_[index].part_crcs[i].resize(part);
        continue;
      }
      work_[index].part_crcs[i].resize(1);
      const int64_t end = file.layout.StorageOffset(i) + target.bytes();
      if (begin < i && end - file.layout.StorageOffset(begin) > hot_bytes_) {
        jobs.push_back({begin, i, {}, 0});
        begin = i;
      }
    }
    // Also where there is no storage at all: the job makes the file.
    if (begin < file.storages.size() || file.storages.empty())
      jobs.push_back({begin, file.storages.size(), {}, 0});
  }

  void WorkOff() {
    std::unique_ptr<std::byte[]> buffer(new (std::nothrow)
                                            std::byte[static_cast<size_t>(window_bytes_)]);
    if (!buffer) {
      return Fail(Error{ErrorCode::kIo, "no memory for a buffer",
                        std::to_string(window_bytes_) + " bytes", "", "Use fewer threads."});
    }
    const std::span<std::byte> bytes{buffer.get(), static_cast<size_t>(window_bytes_)};
    // A file of one's own first: two threads that write to one file wait for each other in the
    // kernel. When none is left, help with those that are not done yet.
    for (size_t i = next_file_++; i < order_.size(); i = next_file_++)
      WorkOffFile(order_[i], bytes);
    for (const size_t file : order_) WorkOffFile(file, bytes);
  }

  void WorkOffFile(size_t index, std::span<std::byte> buffer) {
    FileWork& work = work_[index];
    for (size_t i = work.next_job++; i < work.jobs.size() && !stop_; i = work.next_job++) {
      Status status = Do(index, work.jobs[i], buffer);
      if (!status.ok()) Fail(std::move(status.error()));
    }
  }

  void Fail(Error error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    if (!error_) error_ = std::move(error);
  }

  Status Do(size_t index, const Job& job, std::span<std::byte> buffer) {
    const FilePlan& file = plan_.files[index];
    FileWork& work = work_[index];
    CK_DO(OpenFiles(file, work));
    int64_t bytes = 0;
    if (!file.copied_from.empty()) {
      CK_DO(CopyWindow(job, work));
      bytes = job.window.end - job.window.begin;
    } else if (job.window.end > job.window.begin) {
      CK_DO(DoWindow(index, job, buffer));
      bytes = (job.window.end - job.window.begin) *
              ElementBytes(file.storages[job.storage_begin].target->dtype);
    } else {
      CK_DO(DoSmallStorages(index, job, buffer));
      for (size_t i = job.storage_begin; i < job.storage_end; ++i)
        bytes += file.storages[i].target->bytes();
    }
    if (--work.jobs_left == 0) CK_DO(Finish(file, work));
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_done_ += bytes;
    if (options_.progress) options_.progress(bytes_done_);
    return checkpoint::Done{};
  }

  Status OpenFiles(const FilePlan& file, FileWork& work) {
    const std::lock_guard<std::mutex> lock(work.mutex);
    if (work.output) return checkpoint::Done{};
    if (!file.copied_from.empty()) {
      CK_TRY(work.copied, checkpoint::MappedFile::Open(file.copied_from));
      const auto found = static_cast<int64_t>(work.copied->bytes().size());
      if (found != file.bytes) {
        return Error{ErrorCode::kInconsistent, std::to_string(found) + " bytes",
                     std::to_string(file.bytes) + " bytes, as planned", file.copied_from.string(),
                     "The source changed while it was read; try again."};
      }
    }
    CK_TRY(work.output, checkpoint::OutputFile::Create(folder_ / file.path, file.bytes));
    return checkpoint::Done{};
  }

  static Status CopyWindow(const Job& job, FileWork& work) {
    const std::span<const std::byte> source =
        work.copied->bytes().subspan(static_cast<size_t>(job.window.begin),
                                     static_cast<size_t>(job.window.end - job.window.begin));
    if (source.empty()) return checkpoint::Done{};
    Populate(source);
    CK_DO(work.output->Write(job.window.begin, source));
    work.copied->Release(job.window.begin, job.window.end - job.window.begin);
    return checkpoint::Done{};
  }

  Status DoWindow(size_t index, const Job& job, std::span<std::byte> buffer) {
    const FilePlan& file = plan_.files[index];
    FileWork& work = work_[index];
    const StoragePlan& storage = file.storages[job.storage_begin];
    const int64_t element_bytes = ElementBytes(storage.target->dtype);
    const int64_t offset =
        file.layout.StorageOffset(job.storage_begin) + job.window.begin * element_bytes;
    uint32_t& crc = work.part_crcs[job.storage_begin][job.part];
    const WindowCopies copies(storage, job.window);
    const int64_t step = hot_bytes_ / element_bytes;
    crc = 0;
    for (int64_t at = job.window.begin; at < job.window.end; at += step) {
      const Window part{at, std::min(job.window.end, at + step)};
      std::span<const std::byte> hot = copies.Direct(part);
      if (hot.empty()) {
        const auto made =
            buffer.first(static_cast<size_t>((part.end - part.begin) * element_bytes));
        CK_DO(Checked(storage, copies.Fill(part, made)));
        hot = made;
      } else {
        Populate(hot);
      }
      crc = checkpoint::Crc32(crc, hot);
      CK_DO(work.output->Write(offset + (at - job.window.begin) * element_bytes, hot));
    }
    copies.ReleaseSources();
    return checkpoint::Done{};
  }

  // Consecutive storages go out in one write; what lies between them (headers) is written over by
  // the frame.
  Status DoSmallStorages(size_t index, const Job& job, std::span<std::byte> buffer) {
    const FilePlan& file = plan_.files[index];
    FileWork& work = work_[index];
    if (job.storage_begin == job.storage_end) return checkpoint::Done{};
    const int64_t begin = file.layout.StorageOffset(job.storage_begin);
    int64_t end = begin;
    for (size_t i = job.storage_begin; i < job.storage_end; ++i) {
      const StoragePlan& storage = file.storages[i];
      const int64_t at = file.layout.StorageOffset(i) - begin;
      std::fill(buffer.begin() + (end - begin), buffer.begin() + at, std::byte{0});
      const auto bytes =
          buffer.subspan(static_cast<size_t>(at), static_cast<size_t>(storage.target->bytes()));
      end = begin + at + storage.target->bytes();
      const WindowCopies copies(storage, {0, storage.target->numel});
      if (!bytes.empty()) CK_DO(Checked(storage, copies.Fill({0, storage.target->numel}, bytes)));
      copies.ReleaseSources();
      work.part_crcs[i][0] = checkpoint::Crc32(0, bytes);
    }
    return work.output->Write(begin, buffer.first(static_cast<size_t>(end - begin)));
  }

  Status Checked(const StoragePlan& storage, const FillOutcome& outcome) const {
    if (outcome.overflowed == 0) return checkpoint::Done{};
    const std::string name =
        outcome.tensor < 0 ? "" : plan_.tensor_names[static_cast<size_t>(outcome.tensor)];
    return Error{
        ErrorCode::kLossyConversion,
        std::to_string(outcome.overflowed) + " finite values that become infinite",
        "values inside the range of " + std::string(checkpoint::DTypeName(storage.target->dtype)),
        name, "Choose bf16 or fp32 with --dtype; for moments, leave --moments as-is."};
  }

  Status Finish(const FilePlan& file, FileWork& work) {
    if (file.copied_from.empty()) {
      std::vector<uint32_t> crcs;
      for (size_t i = 0; i < file.storages.size(); ++i)
        crcs.push_back(CrcOf(file.storages[i], work.part_crcs[i]));
      CK_DO(file.layout.WriteFrame(*work.output, crcs));
    }
    CK_DO(work.output->Close(options_.flush));
    work.output.reset();
    work.copied.reset();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (options_.file_finished) options_.file_finished(file.path);
    return checkpoint::Done{};
  }

  uint32_t CrcOf(const StoragePlan& storage, const std::vector<uint32_t>& parts) const {
    if (parts.empty()) return 0;
    uint32_t crc = parts.front();
    const int64_t step = window_bytes_ / ElementBytes(storage.target->dtype);
    for (size_t i = 1; i < parts.size(); ++i) {
      const int64_t numel = std::min(step, storage.target->numel - static_cast<int64_t>(i) * step);
      crc = checkpoint::Crc32Combine(crc, parts[i], numel * ElementBytes(storage.target->dtype));
    }
    return crc;
  }

  const Plan& plan_;
  const std::filesystem::path folder_;
  const ExecuteOptions& options_;
  const int64_t window_bytes_, hot_bytes_;
  std::filesystem::path made_;
  std::vector<FileWork> work_;
  std::vector<size_t> order_;  // files to write, in the order in which they are begun
  std::atomic<size_t> next_file_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::optional<Error> error_;  // guarded by mutex_
  int64_t bytes_done_ = 0;      // guarded by mutex_
};

}  // namespace

int64_t BufferBytes(const ExecuteOptions& options) {
  return WindowBytes(options) * ThreadCount(options);
}

Status Execute(const Plan& plan, const std::filesystem::path& folder,
               const ExecuteOptions& options) {
  return Executor(plan, folder, options).Run();
}

}  // namespace reshape
