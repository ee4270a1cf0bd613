#include "certify/file_scan.h"

#include <algorithm>
#include <map>
#include <system_error>
#include <utility>

#include "certify/format.h"
#include "certify/hash.h"
#include "certify/parallel.h"
#include "checkpoint/directory.h"
#include "checkpoint/file.h"
#include "checkpoint/limits.h"
#include "checkpoint/tree.h"

namespace certify {
namespace {

namespace fs = std::filesystem;
using checkpoint::Error;
using checkpoint::ErrorCode;

// Bytes read by both sums while they lie in the cache.
constexpr int64_t kBlockBytes = 1 << 18;
constexpr int64_t kPointerBytesMax = 4096;

Error CannotList(const fs::path& path, const std::error_code& problem) {
  return Error{ErrorCode::kIo, problem.message(), "a readable folder", path.string(),
               "Check the permissions of the folder."};
}

bool IsOurs(const std::string& name) {
  constexpr std::string_view kSuffix = ".shardproof.json";
  return name.size() >= kSuffix.size() &&
         name.compare(name.size() - kSuffix.size(), kSuffix.size(), kSuffix) == 0;
}

checkpoint::Status ListStep(const checkpoint::StepFolder& folder, std::vector<ListedFile>& files) {
  std::error_code problem;
  fs::recursive_directory_iterator entry(folder.step_folder, problem);
  if (problem) return CannotList(folder.step_folder, problem);
  for (const fs::recursive_directory_iterator end; entry != end; entry.increment(problem)) {
    if (problem) return CannotList(folder.step_folder, problem);
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) continue;
    const fs::path relative = entry->path().lexically_relative(folder.step_folder);
    if (IsOurs(relative.filename().string())) continue;
    files.push_back({folder.tag + "/" + relative.generic_string(), entry->path()});
    if (static_cast<int64_t>(files.size()) > checkpoint::kFilesMax)
      return Error{ErrorCode::kLimitExceeded, Format("{} files", files.size()),
                   Format("at most {}", checkpoint::kFilesMax), folder.step_folder.string(),
                   "Name the step folder of one checkpoint."};
  }
  return checkpoint::Done{};
}

// One record of a container and the sum over its bytes read so far.
struct RunningRecord {
  const checkpoint::Record* record = nullptr;
  uint32_t crc32 = 0;
};

// Adds the part of the block that belongs to records from `next` on. Records are sorted by offset
// and do not overlap.
void AddToRecords(std::span<const std::byte> block, int64_t block_offset,
                  std::vector<RunningRecord>& records, size_t& next) {
  const int64_t block_end = block_offset + static_cast<int64_t>(block.size());
  while (next < records.size()) {
    RunningRecord& running = records[next];
    const int64_t begin = running.record->payload_offset;
    const int64_t end = begin + running.record->payload_bytes;
    const int64_t from = std::max(begin, block_offset), to = std::min(end, block_end);
    if (from < to)
      running.crc32 = checkpoint::Crc32(
          running.crc32,
          block.subspan(static_cast<size_t>(from - block_offset), static_cast<size_t>(to - from)));
    if (end > block_end) return;
    ++next;
  }
}

// Digest and record sums in one pass over the mapped file.
checkpoint::Status ReadThrough(const checkpoint::MappedFile& mapped,
                               const checkpoint::TorchFile* torch, ScannedFile& scanned) {
  std::vector<RunningRecord> records;
  if (torch != nullptr)
    for (const checkpoint::Record& record : torch->records) records.push_back({&record, 0});
  std::sort(records.begin(), records.end(), [](const RunningRecord& a, const RunningRecord& b) {
    return a.record->payload_offset < b.record->payload_offset;
  });
  RunningXxh3 hash;
  const std::span<const std::byte> bytes = mapped.bytes();
  const auto total = static_cast<int64_t>(bytes.size());
  size_t next = 0;
  for (int64_t offset = 0; offset < total; offset += kBlockBytes) {
    const auto block = bytes.subspan(static_cast<size_t>(offset),
                                     static_cast<size_t>(std::min(kBlockBytes, total - offset)));
    hash.Add(block);
    AddToRecords(block, offset, records, next);
  }
  scanned.digest.bytes = total;
  scanned.digest.xxh3_128 = hash.Hex();
  for (const RunningRecord& running : records) {
    ++scanned.records_checked;
    if (running.crc32 != running.record->crc32)
      scanned.bad_records.push_back({running.record->name, running.record->crc32, running.crc32});
  }
  return mapped.CheckUnchanged();
}

// A file of a rank holds a dictionary, whatever is in it.
void CheckRoot(const fs::path& path, const checkpoint::Value& root, ScannedFile& scanned) {
  const checkpoint::FileKind kind = checkpoint::ParseFileName(path).kind;
  if (kind == checkpoint::FileKind::kKnownOther || kind == checkpoint::FileKind::kUnknown) return;
  if (checkpoint::MappingItems(root) != nullptr) return;
  scanned.damage = Error{ErrorCode::kMalformedPickle, checkpoint::Render(root, 80),
                         "a dictionary at the root of the pickle", path.filename().string(),
                         "Copy the file anew from where the checkpoint was written."};
}

checkpoint::Status ScanOne(const ListedFile& listed, const checkpoint::TorchFile* opened,
                           const ScanOptions& options, ScannedFile& scanned) {
  scanned.digest.name = listed.name;
  if (opened != nullptr && !options.digests_only) {
    scanned.torch = true;
    scanned.legacy = opened->legacy;
    scanned.callables = checkpoint::FindCallables(opened->root);
    CheckRoot(listed.path, opened->root, scanned);
    return ReadThrough(*opened->file, opened, scanned);
  }
  CK_TRY(const auto mapped, checkpoint::MappedFile::Open(listed.path));
  if (options.digests_only || listed.path.extension() != ".pt")
    return ReadThrough(*mapped, nullptr, scanned);
  scanned.torch = true;
  auto torch = checkpoint::OpenTorchFile(listed.path);
  if (!torch.ok()) {
    scanned.damage = torch.error();
    return ReadThrough(*mapped, nullptr, scanned);
  }
  scanned.legacy = torch.value().legacy;
  scanned.callables = checkpoint::FindCallables(torch.value().root);
  CheckRoot(listed.path, torch.value().root, scanned);
  return ReadThrough(*torch.value().file, &torch.value(), scanned);
}

}  // namespace

checkpoint::Result<std::vector<ListedFile>> ListFiles(const fs::path& path, const std::string& tag,
                                                      bool universal) {
  std::string wanted = tag;
  if (universal && tag.empty()) {
    CK_TRY(wanted, checkpoint::ReadSmallFile(path / "latest_universal", kPointerBytesMax));
    while (!wanted.empty() && (wanted.back() == '\n' || wanted.back() == '\r')) wanted.pop_back();
  }
  CK_TRY(const checkpoint::StepFolder folder, checkpoint::OpenStepFolder(path, wanted));
  std::vector<ListedFile> files;
  CK_DO(ListStep(folder, files));
  for (const std::string& name : folder.run_files) {
    std::error_code ignored;
    const fs::path beside = folder.run_folder / name;
    if (IsOurs(name) || checkpoint::ParseFileName(name).kind != checkpoint::FileKind::kKnownOther)
      continue;
    if (fs::is_regular_file(beside, ignored)) files.push_back({name, beside});
  }
  std::sort(files.begin(), files.end(),
            [](const ListedFile& a, const ListedFile& b) { return a.name < b.name; });
  return files;
}

checkpoint::Result<std::vector<ScannedFile>> ScanFiles(const std::vector<ListedFile>& files,
                                                       const ScanOptions& options) {
  std::map<fs::path, const checkpoint::TorchFile*> opened;
  if (options.opened != nullptr)
    for (const checkpoint::TorchFile& file : *options.opened)
      opened[file.file->path().lexically_normal()] = &file;
  std::vector<ScannedFile> scanned(files.size());
  ParallelOptions parallel;
  parallel.threads = options.threads;
  CK_DO(ParallelFor(static_cast<int64_t>(files.size()), parallel,
                    [&](int64_t item) -> checkpoint::Status {
                      const auto i = static_cast<size_t>(item);
                      const auto found = opened.find(files[i].path.lexically_normal());
                      return ScanOne(files[i], found == opened.end() ? nullptr : found->second,
                                     options, scanned[i]);
                    }));
  return scanned;
}

bool IsDamage(ErrorCode code) {
  switch (code) {
    case ErrorCode::kTruncated:
    case ErrorCode::kMalformedContainer:
    case ErrorCode::kChecksumMismatch:
    case ErrorCode::kMalformedPickle:
    case ErrorCode::kMalformedTensor:
    case ErrorCode::kLimitExceeded:
      return true;
    default:
      return false;
  }
}

}  // namespace certify
