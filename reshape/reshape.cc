#include "reshape/reshape.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "checkpoint/file.h"
#include "reshape/execute.h"
#include "reshape/memory_use.h"
#include "reshape/partial_folder.h"
#include "reshape/plan.h"

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

template <typename Visit>
Status ForEachSourceFile(const Inventory& source, Visit visit) {
  for (const SourceFile& file : source.model_files) CK_DO(visit(file));
  for (const auto& rank : source.optim_files) {
    for (const SourceFile& file : rank) CK_DO(visit(file));
  }
  for (const auto& [position, file] : source.layer_files) CK_DO(visit(file));
  for (const auto& [name, file] : source.universal_files) CK_DO(visit(file));
  return checkpoint::Done{};
}

// What decides the bytes of the target: the plan, the wishes, and the state of the source files.
std::string KeyOf(const Inventory& source, const Target& target, const Plan& plan,
                  const ReshapeOptions& options) {
  std::string text =
      fmt::format("{} {:08x} {} {} {} {}", kTargetFormat, plan.digest, plan.bytes,
                  static_cast<int>(target.wrapper), static_cast<int>(target.weight_dtype),
                  static_cast<int>(options.target.moments));
  (void)ForEachSourceFile(source, [&](const SourceFile& file) -> Status {
    std::error_code error;
    const auto time = fs::last_write_time(file.name.path, error);
    text += fmt::format("|{} {} {}", file.name.path.string(),
                        file.torch.file ? file.torch.file->bytes().size() : 0,
                        error ? 0 : time.time_since_epoch().count());
    return checkpoint::Done{};
  });
  const uint32_t digest = checkpoint::Crc32(0, std::as_bytes(std::span(text.data(), text.size())));
  return fmt::format("{:08x}{:08x}", plan.digest, digest);
}

Status CheckSourceUnchanged(const Inventory& source) {
  return ForEachSourceFile(source, [](const SourceFile& file) -> Status {
    return file.torch.file ? file.torch.file->CheckUnchanged() : Status(checkpoint::Done{});
  });
}

// The target must not grow inside the source, where it would be read as a part of it.
Status CheckDestination(const Inventory& source, const fs::path& destination) {
  std::error_code error;
  if (fs::symlink_status(destination, error).type() != fs::file_type::not_found) {
    return Error{ErrorCode::kTargetExists, "a file or folder", "a target that does not exist",
                 destination.string(),
                 "Nothing that exists is overwritten: name another target, or move this one away."};
  }
  const fs::path parent = fs::weakly_canonical(destination, error);
  const fs::path step = fs::weakly_canonical(source.folder.step_folder, error);
  const auto [end, rest] = std::mismatch(step.begin(), step.end(), parent.begin(), parent.end());
  if (end != step.end()) return checkpoint::Done{};
  return Error{ErrorCode::kUsage, "a target inside the source's step folder", "a folder elsewhere",
               destination.string(), "Name another target."};
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

Status WriteTarget(const Work& work, const fs::path& destination, ExecuteOptions execute,
                   ReshapeReport& report) {
  const std::string key = KeyOf(work.source, work.target, work.plan, work.options);
  std::vector<std::string> text_files;
  for (const auto& [path, text] : work.target.text_files) text_files.push_back(path);
  CK_TRY(const auto partial, PartialFolder::Open(destination, key, work.plan, text_files));
  execute.finished = partial->finished();
  report.files_continued = static_cast<int64_t>(execute.finished.size());
  // Without flushing nobody knows whether a finished file outlives a crash: none is noted then.
  if (execute.flush)
    execute.file_finished = [&](const std::string& path) { partial->NoteFinished(path); };
  execute.progress = [&](int64_t bytes_done) {
    report.anonymous_bytes_peak =
        std::max(report.anonymous_bytes_peak, ReadMemoryUse().anonymous_bytes);
    if (work.options.progress) work.options.progress({bytes_done, work.plan.bytes});
  };
  CK_DO(Execute(work.plan, partial->path(), execute));
  CK_DO(CheckSourceUnchanged(work.source));
  for (const auto& [path, text] : work.target.text_files) {
    CK_DO(checkpoint::WriteSmallFile(partial->path() / path, text, execute.flush));
  }
  return partial->Appear(execute.flush);
}

}  // namespace

Result<ReshapeReport> Reshape(const fs::path& source_path, const fs::path& destination,
                              const ReshapeOptions& options) {
  CK_TRY(const Inventory source, ReadInventory(source_path, options.read));
  fs::path folder = destination.lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "out/" is "out"
  CK_DO(CheckDestination(source, folder));
  CK_TRY(const Target target, LayOutTarget(source, options.target));
  CK_TRY(const Plan plan, ComposePlan(source, target));
  ExecuteOptions execute;
  execute.threads = options.threads;
  execute.flush = options.flush;
  ReshapeReport report = MakeReport(source, target, plan, execute);
  report.anonymous_bytes_peak = ReadMemoryUse().anonymous_bytes;
  if (!options.dry_run)
    CK_DO(WriteTarget({source, target, plan, options}, folder, execute, report));
  return report;
}

}  // namespace reshape
