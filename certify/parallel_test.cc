#include "certify/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <string>
#include <vector>

namespace certify {
namespace {

using checkpoint::Done;
using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Status;

TEST(ParallelTest, CallsEachItemOnce) {
  std::vector<std::atomic<int>> calls(1000);
  ParallelOptions options;
  options.threads = 4;
  ASSERT_TRUE(ParallelFor(1000, options, [&](int64_t item) -> Status {
                ++calls[static_cast<size_t>(item)];
                return Done{};
              }).ok());
  for (const auto& count : calls) EXPECT_EQ(count, 1);
}

TEST(ParallelTest, NothingToDoIsDone) {
  EXPECT_TRUE(ParallelFor(0, {}, [](int64_t) -> Status { return Done{}; }).ok());
}

TEST(ParallelTest, ReturnsTheErrorOfTheFirstItem) {
  ParallelOptions options;
  options.threads = 1;
  const auto status = ParallelFor(10, options, [](int64_t item) -> Status {
    if (item < 3) return Done{};
    return Error{ErrorCode::kIo, std::to_string(item), "", "", ""};
  });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().found, "3");
}

TEST(ParallelTest, AnExceptionOfALibraryBecomesAnError) {
  const auto status = ParallelFor(2, {}, [](int64_t) -> Status { throw std::bad_alloc(); });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kLimitExceeded);
}

TEST(ParallelTest, ItemsThatNeedMemoryDoNotRunTogether) {
  ParallelOptions options;
  options.threads = 4;
  options.bytes_at_once = 10;
  options.bytes_of = [](int64_t item) { return item % 2 == 0 ? 6 : 100; };
  std::atomic<int> running = 0, most = 0;
  ASSERT_TRUE(ParallelFor(50, options, [&](int64_t) -> Status {
                const int now = ++running;
                if (now > most) most = now;
                --running;
                return Done{};
              }).ok());
  EXPECT_EQ(most, 1);
}

}  // namespace
}  // namespace certify
