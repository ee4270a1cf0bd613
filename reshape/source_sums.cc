#include "reshape/source_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "checkpoint/file.h"
#include "reshape/source_files.h"

namespace reshape {
namespace {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Status;

constexpr int64_t kStepBytes = 4LL << 20;

Status CheckRecord(const SourceFile& file, const checkpoint::Record& record) {
  const checkpoint::MappedFile& mapped = *file.torch.file;
  uint32_t crc = 0;
  for (int64_t at = 0; at < record.payload_bytes; at += kStepBytes) {
    const int64_t bytes = std::min(kStepBytes, record.payload_bytes - at);
    crc = checkpoint::Crc32(crc,
                            mapped.bytes().subspan(static_cast<size_t>(record.payload_offset + at),
                                                   static_cast<size_t>(bytes)));
    mapped.Release(record.payload_offset + at, bytes);
  }
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
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::optional<Error> first;
  const auto work = [&] {
    for (size_t i = next++; i < files.size(); i = next++) {
      Status status = CheckFile(*files[i]);
      if (status.ok()) continue;
      const std::lock_guard<std::mutex> lock(mutex);
      // Of several, always the same one: by its path.
      if (!first || status.error().where < first->where) first = std::move(status.error());
    }
  };
  const size_t wanted = threads > 0 ? static_cast<size_t>(threads)
                                    : std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::thread> others;
  try {
    for (size_t i = 1; i < std::min(wanted, files.size()); ++i) others.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads to be had: those there are, and this one, do the work.
  }
  work();
  for (std::thread& other : others) other.join();
  if (first) return std::move(*first);
  return checkpoint::Done{};
}

}  // namespace reshape
