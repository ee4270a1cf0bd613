#include "certify/file_scan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "certify/hash.h"
#include "checkpoint/tensor.h"

namespace certify {
namespace {

namespace fs = std::filesystem;

class FileScanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    run_ = fs::temp_directory_path() / ("file_scan_test_" + name);
    fs::remove_all(run_);
    fs::create_directories(run_ / "global_step1" / "zero" / "a");
    std::ofstream(run_ / "latest") << "global_step1";
    // 100 KiB, so that records cross blocks.
    checkpoint::TensorView view;
    view.storage = checkpoint::MakeStorage(checkpoint::DType::kUInt8, kBytes);
    view.shape = {kBytes};
    view.strides = {1};
    const checkpoint::Value root =
        checkpoint::MakeDict({{checkpoint::MakeString("t"), checkpoint::MakeTensor(view)}});
    const auto fill = [](const checkpoint::Storage&, std::span<std::byte> bytes) {
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
    };
    for (const fs::path& path : {Model(), run_ / "global_step1" / "zero" / "a" / "fp32.pt"})
      ASSERT_TRUE(
          checkpoint::WriteTorchFile(path, root, checkpoint::StringMemo::kByContent, fill).ok());
  }
  void TearDown() override { fs::remove_all(run_); }

  fs::path Model() const { return run_ / "global_step1" / "mp_rank_00_model_states.pt"; }
  std::vector<ScannedFile> Scan(const ScanOptions& options = {}) {
    const auto files = ListFiles(run_, "", false);
    EXPECT_TRUE(files.ok());
    auto scanned = ScanFiles(files.value(), options);
    EXPECT_TRUE(scanned.ok());
    return scanned.value();
  }
  void Flip(const fs::path& path, int64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(offset);
    file.put(byte);
  }

  static constexpr int64_t kBytes = 600 * 1024;
  fs::path run_;
};

TEST_F(FileScanTest, ListsStepAndPointersAndNothingElse) {
  std::ofstream(run_ / "notes.txt") << "x";
  std::ofstream(run_ / "global_step1" / "notes.txt") << "x";
  std::ofstream(run_ / "global_step1" / "certificate.shardproof.json") << "x";
  const auto files = ListFiles(run_, "", false);
  ASSERT_TRUE(files.ok());
  std::vector<std::string> names;
  for (const ListedFile& file : files.value()) names.push_back(file.name);
  EXPECT_EQ(names, (std::vector<std::string>{"global_step1/mp_rank_00_model_states.pt",
                                             "global_step1/notes.txt",
                                             "global_step1/zero/a/fp32.pt", "latest"}));
}

TEST_F(FileScanTest, TheDigestIsThatOfTheWholeFile) {
  std::ifstream file(Model(), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto scanned = Scan();
  EXPECT_EQ(scanned[0].digest.xxh3_128, HashHex(HashAlgorithm::kXxh3_128, bytes));
  EXPECT_EQ(scanned[0].digest.bytes, static_cast<int64_t>(bytes.size()));
  ScanOptions options;
  options.digests_only = true;
  EXPECT_EQ(Scan(options)[0].digest.xxh3_128, scanned[0].digest.xxh3_128);
}

TEST_F(FileScanTest, EveryRecordOfASoundFileFits) {
  const auto torch = checkpoint::OpenTorchFile(Model());
  ASSERT_TRUE(torch.ok());
  const auto scanned = Scan();
  EXPECT_EQ(scanned[0].records_checked, static_cast<int64_t>(torch.value().records.size()));
  EXPECT_GT(scanned[0].records_checked, 3);
  EXPECT_TRUE(scanned[0].bad_records.empty());
}

TEST_F(FileScanTest, OneFlippedBitIsLocatedToItsRecord) {
  for (const int64_t at : {int64_t{5}, kBytes / 2, kBytes - 1}) {
    int64_t offset = 0;
    {
      const auto torch = checkpoint::OpenTorchFile(Model());
      ASSERT_TRUE(torch.ok());
      for (const checkpoint::Record& record : torch.value().records)
        if (record.name == "data/0") offset = record.payload_offset + at;
    }
    Flip(Model(), offset);
    const auto scanned = Scan();
    ASSERT_EQ(scanned[0].bad_records.size(), 1u) << at;
    EXPECT_EQ(scanned[0].bad_records[0].record, "data/0");
    Flip(Model(), offset);
  }
  EXPECT_TRUE(Scan()[0].bad_records.empty());
}

TEST_F(FileScanTest, ATruncatedFileIsDamaged) {
  fs::resize_file(Model(), kBytes);
  const auto scanned = Scan();
  ASSERT_TRUE(scanned[0].damage.has_value());
  EXPECT_TRUE(IsDamage(scanned[0].damage->code));
  EXPECT_EQ(scanned[0].digest.bytes, kBytes);
}

TEST_F(FileScanTest, AMissingFolderIsAnError) {
  const auto files = ListFiles(run_ / "nothing", "", false);
  ASSERT_FALSE(files.ok());
  EXPECT_EQ(files.error().code, checkpoint::ErrorCode::kNotFound);
}

TEST_F(FileScanTest, AFileOfARankThatHoldsNoDictionaryIsDamaged) {
  fs::remove(Model());
  ASSERT_TRUE(checkpoint::WriteTorchFile(Model(), checkpoint::MakeNone(),
                                         checkpoint::StringMemo::kByContent, {})
                  .ok());
  for (const ScannedFile& file : Scan()) {
    const bool model = file.digest.name == "global_step1/mp_rank_00_model_states.pt";
    ASSERT_EQ(file.damage.has_value(), model) << file.digest.name;
    if (!model) continue;
    EXPECT_EQ(file.damage->code, checkpoint::ErrorCode::kMalformedPickle);
    EXPECT_EQ(file.damage->found, "None");
  }
}

}  // namespace
}  // namespace certify
