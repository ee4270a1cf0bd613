#include "reshape/source_sums.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "reshape/plan_fixture.h"
#include "reshape/reshape.h"

namespace reshape {
namespace {

namespace fs = std::filesystem;

// A real run whose norm weights lie on two tensor ranks; the reshape reads those of the first.
class SourceSumsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = FreshFolder("source_sums");
    fs::copy(fs::path(SHARDPROOF_SOURCE_DIR) /
                 "fixtures/corpus/megatron_deepspeed/r2b_tp2pp2dp2_z1_fp16/checkpoint",
             folder_ / "run", fs::copy_options::recursive);
  }

  // Turns one bit in the middle of the largest record of the second tensor rank's layer file.
  std::string Damage() {
    const auto source = ReadInventory(folder_ / "run", {});
    const SourceFile& file = source.value().layer_files.at({2, 1});
    checkpoint::Record largest;
    for (const checkpoint::Record& record : file.torch.records) {
      if (record.payload_bytes > largest.payload_bytes) largest = record;
    }
    std::fstream stream(file.name.path, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = largest.payload_offset + largest.payload_bytes / 2;
    stream.seekg(at);
    const char byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(at);
    stream.put(byte);
    return file.name.path.string();
  }

  fs::path folder_;
};

TEST_F(SourceSumsTest, SoundSourcePasses) {
  const auto source = ReadInventory(folder_ / "run", {});
  ASSERT_TRUE(source.ok());
  EXPECT_TRUE(CheckSourceSums(source.value(), 0).ok());
  EXPECT_TRUE(CheckSourceSums(source.value(), 1).ok());
}

TEST_F(SourceSumsTest, DamagedRecordIsNamedAndNothingIsWritten) {
  const std::string file = Damage();
  const auto report = Reshape(folder_ / "run", folder_ / "out", {.flush = false});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, checkpoint::ErrorCode::kChecksumMismatch);
  EXPECT_EQ(report.error().where, file);
  EXPECT_NE(report.error().found.find(" of record data/"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
}

TEST_F(SourceSumsTest, SumsAreLeftOutOnRequest) {
  (void)Damage();
  EXPECT_TRUE(
      Reshape(folder_ / "run", folder_ / "out", {.check_sums = false, .flush = false}).ok());
}

}  // namespace
}  // namespace reshape
