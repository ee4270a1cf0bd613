// A reshape that is stopped from outside: killed at any moment, or failed by any system call. No
// target may be there that could be taken for whole, and the same call again must give the bytes
// that an undisturbed one gives.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <random>
#include <thread>

#include "checkpoint/file.h"
#include "property_tests/case.h"

namespace property_tests {
namespace {

namespace fs = std::filesystem;
using checkpoint::FileFault;
using Clock = std::chrono::steady_clock;

class InterruptionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fixtures::FixtureSpec source;
    source.tensor_parallel = source.pipeline_parallel = 2;
    ASSERT_TRUE(fixtures::WriteFixture(folder_ / "source", source).ok());
    fixtures::FixtureSpec target = source;
    target.tensor_parallel = 1;
    target.data_parallel = 3;
    target.zero_stage = 1;
    target.wrapper = fixtures::OptimizerWrapper::kZero;
    options_ = OptionsFor(target);
    options_.threads = 2;
    options_.flush = true;
    const auto began = Clock::now();
    ASSERT_TRUE(reshape::Reshape(folder_ / "source", folder_ / "whole", options_).ok());
    undisturbed_ = Clock::now() - began;
    files_ = FilesBelow(folder_ / "whole");
    ASSERT_GT(files_.size(), 10U);
  }
  void TearDown() override { checkpoint::SetFileFault(std::nullopt); }

  // Runs the reshape in a process of its own and kills it after `delay`. True where it was killed.
  bool KilledAfter(std::chrono::microseconds delay) {
    const pid_t child = ::fork();
    if (child == 0)
      ::_exit(reshape::Reshape(folder_ / "source", folder_ / "out", options_).ok() ? 0 : 1);
    std::this_thread::sleep_for(delay);
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFSIGNALED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
    }
    return WIFSIGNALED(status);
  }

  void ExpectWhole() {
    EXPECT_EQ(FilesBelow(folder_ / "out"), files_);
    for (const std::string& file : files_)
      EXPECT_TRUE(SameBytes(folder_ / "out" / file, folder_ / "whole" / file)) << file;
    EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
  }

  CaseFolder folder_;
  reshape::ReshapeOptions options_;
  std::vector<std::string> files_;
  Clock::duration undisturbed_{};
};

TEST_F(InterruptionTest, KilledAtTwoHundredMomentsNothingLooksWholeAndRepetitionGivesTheSameBytes) {
  std::mt19937 draw(200);
  const auto longest = std::chrono::duration_cast<std::chrono::microseconds>(undisturbed_).count();
  std::uniform_int_distribution<int64_t> moment(0, longest + longest / 5);
  int killed = 0, left_partial = 0;
  int64_t continued = 0;
  for (int round = 0; round < 200; ++round) {
    const bool was_killed = KilledAfter(std::chrono::microseconds(moment(draw)));
    killed += was_killed;
    left_partial += fs::exists(folder_ / "out.partial");
    if (fs::exists(folder_ / "out")) {
      ExpectWhole();  // killed behind the rename, or not at all
    } else {
      ASSERT_TRUE(was_killed);
      const auto again = reshape::Reshape(folder_ / "source", folder_ / "out", options_);
      ASSERT_TRUE(again.ok()) << again.error().ToString();
      continued += again.value().files_continued;
      ExpectWhole();
    }
    fs::remove_all(folder_ / "out");
    if (HasFailure()) FAIL() << "round " << round;
  }
  EXPECT_GT(killed, 20);
  EXPECT_GT(left_partial, 0);
  printf("killed %d of 200, %d left a partial folder, %lld files were continued\n", killed,
         left_partial, static_cast<long long>(continued));
}

// One disk error or one call cut short, at each call in turn: an error that says what to do, or the
// whole target.
TEST_F(InterruptionTest, AnyFailingCallLeavesNoTargetOrAWholeOne) {
  int64_t failed = 0, calls = 0;
  for (int64_t nth = 1; calls + 1 >= nth; ++nth) {
    checkpoint::SetFileFault(FileFault{FileFault::Call::kAny, nth, EIO, false});
    const auto report = reshape::Reshape(folder_ / "source", folder_ / "out", options_);
    calls = std::max(calls, checkpoint::FileFaultCalls());
    const bool reached = checkpoint::FileFaultCalls() >= nth;
    checkpoint::SetFileFault(std::nullopt);
    if (!reached) break;
    if (!report.ok()) {
      ++failed;
      EXPECT_FALSE(fs::exists(folder_ / "out")) << nth;
      EXPECT_FALSE(report.error().where.empty()) << nth;
      EXPECT_FALSE(report.error().advice.empty()) << nth << " " << report.error().ToString();
      const auto again = reshape::Reshape(folder_ / "source", folder_ / "out", options_);
      ASSERT_TRUE(again.ok()) << nth << " " << again.error().ToString();
    }
    ExpectWhole();
    fs::remove_all(folder_ / "out");
    if (HasFailure()) FAIL() << "call " << nth << " of " << calls;
  }
  EXPECT_GT(failed, 100);
  printf("%lld calls, each failed once; %lld ended in an error\n", static_cast<long long>(calls),
         static_cast<long long>(failed));
}

TEST_F(InterruptionTest, ShortReadsAndWritesAreContinued) {
  for (const auto call : {FileFault::Call::kRead, FileFault::Call::kWrite}) {
    checkpoint::SetFileFault(FileFault{call, 1, 0, true});
    const auto report = reshape::Reshape(folder_ / "source", folder_ / "out", options_);
    checkpoint::SetFileFault(std::nullopt);
    ASSERT_TRUE(report.ok()) << report.error().ToString();
    ExpectWhole();
    fs::remove_all(folder_ / "out");
  }
}

}  // namespace
}  // namespace property_tests
