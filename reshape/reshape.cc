#include "reshape/reshape.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "checkpoint/file.h"
#include "reshape/carried_callables.h"
#include "reshape/disk_space.h"
#include "reshape/execute.h"
#include "reshape/memory_use.h"
#include "reshape/partial_folder.h"
#include "reshape/plan.h"
#include "reshape/source_files.h"
#include "reshape/source_sums.h"

namespace reshape {
namespace {

namespace fs = std::filesystem;
using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Result;
using checkpoint::Status;

// Changes with anything that changes the bytes of a target: an interrupted run of another version
// begins anew.
constexpr int kTargetFormat = 1;

// Memory in use is read from /proc, which takes long enough to be seen after each small storage.
constexpr int64_t kMemoryMeasureBytes = 32LL << 20;

// What decides the bytes of the target: the plan, the wishes, and the state of the source files.
std::string KeyOf(const Inventory& source, const Target& target, const Plan& plan,
                  const ReshapeOptions& options) {
  std::string text =
      fmt::format("{} {:08x} {} {} {} {}", kTargetFormat, plan.digest, plan.bytes,
                  static_cast<int>(target.wrapper), static_cast<int>(target.weight_dtype),
                  static_cast<int>(options.target.moments));
  for (const SourceFile* file : SourceFiles(source)) {
    std::error_code error;
    const auto time = fs::last_write_time(file->name.path, error);
    text += fmt::format("|{} {} {}", file->name.path.string(),
                        file->torch.file ? file->torch.file->bytes().size() : 0,
                        error ? 0 : time.time_since_epoch().count());
  }
  const uint32_t digest = checkpoint::Crc32(0, std::as_bytes(std::span(text.data(), text.size())));
  return fmt::format("{:08x}{:08x}", plan.digest, digest);
}

Status CheckSourceUnchanged(const Inventory& source) {
  for (const SourceFile* file : SourceFiles(source)) {
    if (file->torch.file) CK_DO(file->torch.file->CheckUnchanged());
  }
  return checkpoint::Done{};
}

// The target must not grow inside the source, where it would be read as a part of it.
Status CheckDestination(const Inventory& source, const fs::path& destination) {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(destination, error).type();
  if (type == fs::file_type::none) {  // a name too long, a folder that may not be searched
    return Error{ErrorCode::kIo, error.message(), "a path that can be looked up",
                 destination.string(), "Name another target, or check the permissions above it."};
  }
  if (type != fs::file_type::not_found) {
    return Error{ErrorCode::kTargetExists, "a file or folder", "a target that does not exist",
                 destination.string(),
                 "Nothing that exists is overwritten: name another target, or move this one away."};
  }
  // A run folder that was not given, and has no `latest`, is just the folder the step lies in.
  const bool whole_run = !source.folder.run_files.empty();
  const fs::path wanted = fs::weakly_canonical(destination, error);
  const fs::path kept =
      fs::weakly_canonical(whole_run ? source.folder.run_folder : source.folder.step_folder, error);
  const auto [end, rest] = std::mismatch(kept.begin(), kept.end(), wanted.begin(), wanted.end());
  if (end != kept.end()) return checkpoint::Done{};
  return Error{ErrorCode::kUsage, "a target inside the source's folder " + kept.string(),
               "a folder elsewhere: the source is only read", destination.string(),
               "Name another target."};
}

ReshapeReport MakeReport(const Inventory& source, const Target& target, const Plan& plan,
                         const ExecuteOptions& execute) {
  ReshapeReport report;
  report.source_topology = source.topology;
  report.target_topology = target.topology;
  report.step_folder_name = target.step_folder_name;
  report.files = static_cast<int64_t>(plan.files.size() + target.text_files.size());
  report.bytes = plan.bytes;
  report.tensors = static_cast<int64_t>(source.tensors.size());
  report.copies = plan.copies;
  report.peak_bytes_estimate = BufferBytes(execute);
  for (const FilePlan& file : plan.files) report.paths.push_back(file.path);
  for (const auto& [path, text] : target.text_files) report.paths.push_back(path);
  report.notices = source.notices;
  report.notices.insert(report.notices.end(), target.notices.begin(), target.notices.end());
  return report;
}

struct Work {
  const Inventory& source;
  const Target& target;
  const Plan& plan;
  const ReshapeOptions& options;
};

Status FillFolder(const Work& work, const ExecuteOptions& execute, PartialFolder& partial) {
  CK_DO(Execute(work.plan, partial.path(), execute));
  CK_DO(CheckSourceUnchanged(work.source));
  for (const auto& [path, text] : work.target.text_files) {
    CK_DO(checkpoint::WriteSmallFile(partial.path() / path, text, execute.flush));
  }
  return partial.Appear(execute.flush);
}

// An error that leaves a folder behind says so, and what may be done with it.
Status Continued(Status status, const PartialFolder& partial, bool flush) {
  if (status.ok()) return status;
  Error error = std::move(status.error());
  error.advice += fmt::format(
      "{}What was written is in {}: the same command {}; to give up, remove "
      "that folder.",
      error.advice.empty() ? "" : " ", partial.path().string(),
      flush ? "goes on from there" : "begins anew there");
  return error;
}

Status WriteTarget(const Work& work, const fs::path& destination, ExecuteOptions execute,
                   ReshapeReport& report) {
  const std::string key = KeyOf(work.source, work.target, work.plan, work.options);
  std::vector<std::string> text_files;
  for (const auto& [path, text] : work.target.text_files) text_files.push_back(path);
  // Before anything is made; where there is a folder already, it takes a part of the bytes.
  if (std::error_code error; !fs::exists(destination.string() + ".partial", error))
    CK_DO(CheckDiskSpace(destination, work.plan.bytes));
  CK_TRY(const auto partial, PartialFolder::Open(destination, key, work.plan, text_files));
  execute.finished = partial->finished();
  report.files_continued = static_cast<int64_t>(execute.finished.size());
  // Without flushing nobody knows whether a finished file outlives a crash: none is noted then.
  if (execute.flush)
    execute.file_finished = [&](const std::string& path) { partial->NoteFinished(path); };
  execute.progress = [&, measured_at = int64_t{0}](int64_t bytes_done) mutable {
    if (bytes_done - measured_at >= kMemoryMeasureBytes || bytes_done == work.plan.bytes) {
      measured_at = bytes_done;
      report.anonymous_bytes_peak =
          std::max(report.anonymous_bytes_peak, ReadMemoryUse().anonymous_bytes);
    }
    if (work.options.progress) work.options.progress({bytes_done, work.plan.bytes});
  };
  int64_t bytes_left = 0;
  for (const FilePlan& file : work.plan.files) {
    if (!execute.finished.contains(file.path)) bytes_left += file.bytes;
  }
  CK_DO(CheckDiskSpace(partial->path(), bytes_left));
  return Continued(FillFolder(work, execute, *partial), *partial, execute.flush);
}

}  // namespace

Result<ReshapeReport> Reshape(const fs::path& source_path, const fs::path& destination,
                              const ReshapeOptions& options) {
  CK_TRY(const Inventory source, ReadInventory(source_path, options.read));
  fs::path folder = destination.lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "out/" is "out"
  CK_DO(CheckDestination(source, folder));
  std::vector<Notice> carried;
  CK_DO(CheckCallables(source, carried));
  CK_TRY(const Target target, LayOutTarget(source, options.target));
  CK_TRY(const Plan plan, ComposePlan(source, target));
  ExecuteOptions execute;
  execute.threads = options.threads;
  execute.flush = options.flush;
  ReshapeReport report = MakeReport(source, target, plan, execute);
  report.notices.insert(report.notices.end(), carried.begin(), carried.end());
  report.anonymous_bytes_peak = ReadMemoryUse().anonymous_bytes;
  if (options.dry_run) return report;
  if (options.check_sums) CK_DO(CheckSourceSums(source, options.threads));
  report.sums_checked = options.check_sums;
  CK_DO(WriteTarget({source, target, plan, options}, folder, execute, report));
  return report;
}

}  // namespace reshape
