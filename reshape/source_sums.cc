#include "reshape/source_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "checkpoint/file.h"
#include "reshape/source_files.h"
#include "reshape/threads.h"

namespace reshape {
namespace {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Status;

Status CheckRecord(const SourceFile& file, const checkpoint::Record& record) {
  const uint32_t crc = checkpoint::Crc32OfRecord(*file.torch.file, record);
  if (crc == record.crc32) return checkpoint::Done{};
  return Error{
      ErrorCode::kChecksumMismatch, fmt::format("CRC-32 {:08x} of record {}", crc, record.name),
      fmt::format("{:08x}, as the file's directory says", record.crc32), file.name.path.string(),
      "The source is damaged: restore this file; `shardproof check` lists all that is."};
}

Status CheckFile(const SourceFile& file) {
  if (!file.torch.file || !file.torch.crc_written) return checkpoint::Done{};
  for (const checkpoint::Record& record : file.torch.records) CK_DO(CheckRecord(file, record));
  return checkpoint::Done{};
}

}  // namespace

Status CheckSourceSums(const Inventory& source, int32_t threads) {
  std::vector<const SourceFile*> files = SourceFiles(source);
  const auto bytes = [](const SourceFile* file) {
    return file->torch.file ? file->torch.file->bytes().size() : 0;
  };
  std::stable_sort(files.begin(), files.end(),
                   [&](const SourceFile* a, const SourceFile* b) { return bytes(a) > bytes(b); });
  std::mutex mutex;
  std::optional<Error> first;
  ForEachInParallel(files.size(), threads, [&](size_t i) {
    Status status = CheckFile(*files[i]);
    if (status.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    // Of several, always the same one: by its path.
    if (!first || status.error().where < first->where) first = std::move(status.error());
  });
  if (first) return std::move(*first);
  return checkpoint::Done{};
}

}  // namespace reshape
