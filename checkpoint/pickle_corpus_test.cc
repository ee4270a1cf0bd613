// Every torch.save file of the corpus: what was read is written again byte for byte; composed anew,
// its structure stays.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>

#include "checkpoint/container.h"
#include "checkpoint/pickle.h"
#include "checkpoint/tree.h"

namespace checkpoint {
namespace {

std::vector<std::filesystem::path> CorpusFiles() {
  std::vector<std::filesystem::path> files;
  for (const char* family : {"megatron_deepspeed", "deepspeed"}) {
    const std::filesystem::path folder =
        std::filesystem::path(SHARDPROOF_SOURCE_DIR) / "fixtures/corpus" / family;
    if (!std::filesystem::exists(folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.path().extension() == ".pt") files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::span<const std::byte> PickleBytes(const TorchFile& file) {
  for (const Record& record : file.records) {
    if (record.name != "data.pkl") continue;
    return file.file->bytes().subspan(static_cast<size_t>(record.payload_offset),
                                      static_cast<size_t>(record.payload_bytes));
  }
  return {};
}

TEST(PickleCorpusTest, FilesWrittenByTorchAreWrittenAgainByteForByte) {
  int64_t compared = 0;
  for (const auto& path : CorpusFiles()) {
    const Result<TorchFile> file = OpenTorchFile(path);
    ASSERT_TRUE(file.ok()) << path << ": " << file.error().ToString();
    if (file.value().legacy) continue;
    const std::span<const std::byte> read = PickleBytes(file.value());
    const PickleOutput written = WritePickle(file.value().root, StringMemo::kByIdentity);
    ASSERT_EQ(written.bytes.size(), read.size()) << path;
    ASSERT_TRUE(std::equal(read.begin(), read.end(),
                           reinterpret_cast<const std::byte*>(written.bytes.data())))
        << path;
    ASSERT_EQ(written.storages, file.value().storages) << path;
    ++compared;
  }
  EXPECT_GE(compared, 20);
}

TEST(PickleCorpusTest, TreesWrittenByContentReadBackTheSame) {
  int64_t compared = 0;
  for (const auto& path : CorpusFiles()) {
    const Result<TorchFile> file = OpenTorchFile(path);
    ASSERT_TRUE(file.ok()) << path << ": " << file.error().ToString();
    const PickleOutput written = WritePickle(file.value().root, StringMemo::kByContent);
    ASSERT_EQ(written.storages, file.value().storages) << path;
    size_t next = 0;
    const auto resolve = [&](const Value& pid) -> Result<StoragePtr> {
      const std::string key = *AsString((*SequenceItems(pid))[2]);
      EXPECT_LE(std::stoul(key), next);
      next = std::max(next, std::stoul(key) + 1);
      return written.storages.at(std::stoul(key));
    };
    const auto bytes = std::as_bytes(std::span(written.bytes));
    const Result<PickleResult> again = ReadPickle(bytes, resolve, path.string());
    ASSERT_TRUE(again.ok()) << path << ": " << again.error().ToString();
    ASSERT_EQ(next, written.storages.size());
    ASSERT_TRUE(SameStructure(file.value().root, again.value().root)) << path;
    // Written again from what was read: the form is settled.
    EXPECT_EQ(WritePickle(again.value().root, StringMemo::kByContent).bytes, written.bytes);
    EXPECT_EQ(WritePickle(again.value().root, StringMemo::kByIdentity).bytes, written.bytes);
    ++compared;
  }
  EXPECT_GE(compared, 20);
}

TEST(PickleCorpusTest, DamagedPicklesGiveAnErrorOrATree) {
  std::mt19937 random(11);
  const auto storage = std::make_shared<Storage>();
  const auto resolve = [&](const Value&) -> Result<StoragePtr> { return storage; };
  int64_t refused = 0, read = 0;
  const std::vector<std::filesystem::path> files = CorpusFiles();
  for (size_t i = 0; i < files.size(); i += 1 + files.size() / 20) {
    const Result<TorchFile> file = OpenTorchFile(files[i]);
    ASSERT_TRUE(file.ok()) << file.error().ToString();
    if (file.value().legacy) continue;
    const std::span<const std::byte> sound = PickleBytes(file.value());
    for (int round = 0; round < 50; ++round) {
      std::vector<std::byte> bytes(sound.begin(), sound.end());
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      const Result<PickleResult> result = ReadPickle(bytes, resolve, files[i].string());
      ++(result.ok() ? read : refused);
      if (result.ok()) WritePickle(result.value().root, StringMemo::kByContent);
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace checkpoint
