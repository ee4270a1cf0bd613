#include "reshape/reshape.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <map>

#include "checkpoint/file.h"
#include "reshape/memory_use.h"
#include "reshape/plan_fixture.h"
#include "reshape/source_files.h"

namespace reshape {
namespace {

namespace fs = std::filesystem;
using checkpoint::DType;
using checkpoint::ErrorCode;
using checkpoint::FileFault;

fs::path CorpusRun(const std::string& name) {
  return fs::path(SHARDPROOF_SOURCE_DIR) / "fixtures" / "corpus" / name / "checkpoint";
}
const char* const kZero = "megatron_deepspeed/r2b_tp2pp2dp2_z1_fp16";
const char* const kFused = "megatron_deepspeed/r1b_tp2pp2dp2_z0_fp16";

std::map<std::string, std::string> ContentOf(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().lexically_relative(folder).generic_string()] =
        std::string(std::istreambuf_iterator<char>(in), {});
  }
  return files;
}

class ReshapeTest : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = FreshFolder("reshape"); }
  void TearDown() override { checkpoint::SetFileFault(std::nullopt); }

  static ReshapeOptions Options(int32_t data_ranks, bool flush = false) {
    ReshapeOptions options;
    options.target.data_parallel_size = data_ranks;
    options.flush = flush;
    options.threads = 2;
    return options;
  }

  fs::path folder_;
};

TEST_F(ReshapeTest, IdentityIsByteForByte) {
  for (const char* run : {kZero, kFused, "deepspeed/z1_bf16_legacy_dp2"}) {
    const fs::path out = folder_ / fs::path(run).filename();
    const auto report = Reshape(CorpusRun(run), out, Options(2));
    ASSERT_TRUE(report.ok()) << report.error().ToString();
    const auto made = ContentOf(out);
    for (const auto& [name, bytes] : ContentOf(CorpusRun(run))) {
      ASSERT_TRUE(made.contains(name)) << name;
      EXPECT_EQ(made.at(name), bytes) << name;
    }
  }
}

TEST_F(ReshapeTest, ThereAndBackGivesTheSameFilesByteForByte) {
  ASSERT_TRUE(Reshape(CorpusRun(kZero), folder_ / "first", Options(3)).ok());
  ASSERT_TRUE(Reshape(folder_ / "first", folder_ / "second", Options(2)).ok());
  ASSERT_TRUE(Reshape(folder_ / "second", folder_ / "third", Options(3)).ok());
  EXPECT_EQ(ContentOf(folder_ / "first"), ContentOf(folder_ / "third"));
}

TEST_F(ReshapeTest, ThreadsDoNotChangeTheBytes) {
  ReshapeOptions one = Options(3), many = Options(3);
  one.threads = 1;
  many.threads = 7;
  ASSERT_TRUE(Reshape(CorpusRun(kZero), folder_ / "one", one).ok());
  ASSERT_TRUE(Reshape(CorpusRun(kZero), folder_ / "many", many).ok());
  EXPECT_EQ(ContentOf(folder_ / "one"), ContentOf(folder_ / "many"));
}

TEST_F(ReshapeTest, ReportCountsWhatWasWritten) {
  ReshapeOptions options = Options(3);
  int64_t last = 0, total = 0;
  options.progress = [&](const Progress& progress) {
    last = progress.bytes_done;
    total = progress.bytes_total;
  };
  const auto report = Reshape(CorpusRun(kZero), folder_ / "out", options);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report.value().sums_checked);
  const auto files = ContentOf(folder_ / "out");
  EXPECT_EQ(report.value().files, static_cast<int64_t>(files.size()));
  EXPECT_EQ(report.value().paths.size(), files.size());
  EXPECT_EQ(report.value().target_topology.data_parallel_size, 3);
  EXPECT_EQ(files.at("latest"), "global_step4");
  EXPECT_EQ(total, report.value().bytes);
  EXPECT_GT(last, 0);
  EXPECT_LE(last, total);
  EXPECT_LE(report.value().peak_bytes_estimate, int64_t{64} << 20);
  EXPECT_GT(report.value().anonymous_bytes_peak, 0);
}

TEST_F(ReshapeTest, DryRunWritesNothing) {
  ReshapeOptions options = Options(3);
  options.dry_run = true;
  const auto report = Reshape(CorpusRun(kZero), folder_ / "out", options);
  ASSERT_TRUE(report.ok());
  EXPECT_GT(report.value().bytes, 0);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(ReshapeTest, DryRunReadsNoTensorBytes) {
  fs::copy(CorpusRun(kZero), folder_ / "source", fs::copy_options::recursive);
  const auto before = ReadInventory(folder_ / "source", {});
  // Every tensor of every file is overwritten: whoever reads one sees it by its sum.
  for (const SourceFile* file : SourceFiles(before.value())) {
    std::fstream stream(file->name.path, std::ios::in | std::ios::out | std::ios::binary);
    for (const checkpoint::Record& record : file->torch.records) {
      if (!record.name.starts_with("data/")) continue;
      stream.seekp(record.payload_offset);
      stream << std::string(static_cast<size_t>(record.payload_bytes), '\x5a');
    }
  }
  ReshapeOptions options = Options(3);
  options.dry_run = true;
  const auto planned = Reshape(folder_ / "source", folder_ / "out", options);
  ASSERT_TRUE(planned.ok()) << planned.error().ToString();
  EXPECT_FALSE(planned.value().sums_checked);
  options.dry_run = false;
  const auto written = Reshape(folder_ / "source", folder_ / "out", options);
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code, ErrorCode::kChecksumMismatch);
}

TEST_F(ReshapeTest, ExistingTargetsAreRefused) {
  fs::create_directories(folder_ / "out");
  std::ofstream(folder_ / "file").put('x');
  for (const char* name : {"out", "out/", "file"}) {
    const auto report = Reshape(CorpusRun(kZero), folder_ / name, Options(3));
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.error().code, ErrorCode::kTargetExists);
  }
  EXPECT_TRUE(fs::is_empty(folder_ / "out"));
}

TEST_F(ReshapeTest, TargetInsideTheSourceIsRefused) {
  fs::copy(CorpusRun(kZero), folder_ / "source", fs::copy_options::recursive);
  const auto report = Reshape(folder_ / "source", folder_ / "source/global_step4/out", Options(3));
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::kUsage);
  for (const char* target : {"source/out", "source/./sub/out"}) {
    const auto beside = Reshape(folder_ / "source", folder_ / target, Options(3));
    ASSERT_FALSE(beside.ok()) << target;
    EXPECT_EQ(beside.error().code, ErrorCode::kUsage);
  }
  const auto from_step =
      Reshape(folder_ / "source/global_step4", folder_ / "source/global_step9", Options(3));
  ASSERT_FALSE(from_step.ok());
  EXPECT_EQ(from_step.error().code, ErrorCode::kUsage);
}

TEST_F(ReshapeTest, ANameThatIsTooLongIsNoExistingTarget) {
  const auto report = Reshape(CorpusRun(kZero), folder_ / std::string(300, 'a'), Options(3));
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::kIo);
  EXPECT_NE(report.error().found.find("too long"), std::string::npos) << report.error().found;
}

TEST_F(ReshapeTest, ForeignPartialFolderIsLeftAlone) {
  fs::create_directories(folder_ / "out.partial");
  std::ofstream(folder_ / "out.partial/thesis.txt") << "mine";
  const auto report = Reshape(CorpusRun(kZero), folder_ / "out", Options(3));
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::kTargetExists);
  EXPECT_TRUE(fs::exists(folder_ / "out.partial/thesis.txt"));
}

TEST_F(ReshapeTest, SecondProcessIsKeptOut) {
  fs::create_directories(folder_ / "out.partial");
  const int lock = ::open((folder_ / "out.partial").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  const auto report = Reshape(CorpusRun(kZero), folder_ / "out", Options(3));
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::kTargetExists);
  ::close(lock);
  EXPECT_TRUE(Reshape(CorpusRun(kZero), folder_ / "out", Options(3)).ok());
}

// The n-th write fails, for many n: nothing ever looks whole, and the same call then gives the same
// bytes.
TEST_F(ReshapeTest, InterruptedRunsLeaveNoTargetAndAreContinued) {
  ASSERT_TRUE(Reshape(CorpusRun(kZero), folder_ / "whole", Options(3, true)).ok());
  const auto whole = ContentOf(folder_ / "whole");
  int64_t interrupted = 0, continued = 0;
  for (const auto call : {FileFault::Call::kWrite, FileFault::Call::kOpen, FileFault::Call::kSync,
                          FileFault::Call::kClose, FileFault::Call::kRename}) {
    for (int64_t nth = 1; nth < 400; nth = nth * 2 + 1) {
      const fs::path out = folder_ / "out";
      checkpoint::SetFileFault(FileFault{call, nth, ENOSPC, true});
      const auto report = Reshape(CorpusRun(kZero), out, Options(3, true));
      checkpoint::SetFileFault(std::nullopt);
      if (!report.ok()) {
        ++interrupted;
        EXPECT_FALSE(fs::exists(out / "latest")) << nth;
        EXPECT_FALSE(fs::exists(out)) << nth;
        const auto again = Reshape(CorpusRun(kZero), out, Options(3, true));
        ASSERT_TRUE(again.ok()) << again.error().ToString();
        continued += again.value().files_continued;
      }
      EXPECT_EQ(ContentOf(out), whole) << nth;
      EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
      fs::remove_all(out);
    }
  }
  EXPECT_GE(interrupted, 10);
  EXPECT_GT(continued, 0);
}

TEST_F(ReshapeTest, ErrorsThatLeaveAPartialFolderNameItAndSayHowToGoOn) {
  for (const bool flush : {true, false}) {
    checkpoint::SetFileFault(FileFault{FileFault::Call::kWrite, 60, ENOSPC, true});
    const auto report = Reshape(CorpusRun(kZero), folder_ / "out", Options(3, flush));
    checkpoint::SetFileFault(std::nullopt);
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.error().code, checkpoint::ErrorCode::kIo);
    const std::string& advice = report.error().advice;
    EXPECT_NE(advice.find((folder_ / "out.partial").string()), std::string::npos) << advice;
    EXPECT_NE(advice.find(flush ? "goes on from there" : "begins anew"), std::string::npos);
    EXPECT_NE(advice.find("to give up, remove that folder"), std::string::npos);
  }
}

TEST_F(ReshapeTest, AnotherTargetDoesNotContinueAnOldPartialFolder) {
  checkpoint::SetFileFault(FileFault{FileFault::Call::kWrite, 60, ENOSPC, true});
  ASSERT_FALSE(Reshape(CorpusRun(kZero), folder_ / "out", Options(3, true)).ok());
  checkpoint::SetFileFault(std::nullopt);
  const auto report = Reshape(CorpusRun(kZero), folder_ / "out", Options(4, true));
  ASSERT_TRUE(report.ok()) << report.error().ToString();
  EXPECT_EQ(report.value().files_continued, 0);
  ASSERT_TRUE(Reshape(CorpusRun(kZero), folder_ / "whole", Options(4)).ok());
  EXPECT_EQ(ContentOf(folder_ / "out"), ContentOf(folder_ / "whole"));
}

TEST_F(ReshapeTest, ErrorBeforeWritingLeavesNothing) {
  ReshapeOptions options;
  options.flush = false;
  options.target.zero_stage = 1;
  const auto missing = Reshape(folder_ / "nowhere", folder_ / "out", options);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
}

TEST(MemoryUseTest, CountsThisProcess) {
  const MemoryUse use = ReadMemoryUse();
  EXPECT_GT(use.anonymous_bytes, 0);
  EXPECT_GE(use.peak_bytes, use.anonymous_bytes);
}

}  // namespace
}  // namespace reshape
