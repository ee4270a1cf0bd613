#include "checkpoint/pickle.h"

#include "checkpoint/storage_id.h"
#include "fuzz/entry.h"

namespace fuzz {
namespace {

using checkpoint::Result;

// Storages without a file: an id is all that a pickle says of one.
Result<checkpoint::PickleResult> Read(Bytes bytes) {
  checkpoint::StorageTable storages;
  const auto resolve = [&](const checkpoint::Value& pid) -> Result<checkpoint::StoragePtr> {
    CK_TRY(const auto id, checkpoint::ParseStorageId(pid, "input"));
    CK_TRY(const auto found, storages.FindOrMake(id, "input"));
    return found.storage;
  };
  return checkpoint::ReadPickle(bytes, resolve, "input");
}

}  // namespace

void Pickle(Bytes input) {
  const auto read = Read(input);
  if (!read.ok()) return;
  CHECK(read.value().bytes_read <= static_cast<int64_t>(input.size()));
  for (const auto memo :
       {checkpoint::StringMemo::kByIdentity, checkpoint::StringMemo::kByContent}) {
    const auto written = checkpoint::WritePickle(read.value().root, memo);
    const auto again = Read(std::as_bytes(std::span(written.bytes)));
    CHECK(again.ok(), << again.error().ToString());
    const auto twice = checkpoint::WritePickle(again.value().root, memo);
    CHECK(twice.bytes == written.bytes, << "another pickle of the same tree");
  }
}

}  // namespace fuzz
