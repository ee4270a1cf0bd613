#include "checkpoint/status.h"

#include <gtest/gtest.h>

#include <set>

namespace checkpoint {
namespace {

Error Sample() { return {ErrorCode::kTruncated, "12 bytes", "22 bytes", "a.pt", "Copy it again."}; }

Result<int> Half(int number) {
  if (number % 2 != 0) return Sample();
  return number / 2;
}

Result<int> Quarter(int number) {
  CK_TRY(const int half, Half(number));
  CK_TRY(const int quarter, Half(half));
  return quarter;
}

Status Check(int number) {
  CK_DO(Half(number));
  return Done{};
}

TEST(StatusTest, ErrorIsOneLineWithFoundExpectedWhereAdvice) {
  EXPECT_EQ(Sample().ToString(),
            "Truncated: found 12 bytes, expected 22 bytes (a.pt). Copy it again.");
  const Error bare{ErrorCode::kUsage, "a", "b", "", ""};
  EXPECT_EQ(bare.ToString(), "Usage: found a, expected b.");
}

TEST(StatusTest, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::kLossyConversion); ++code) {
    EXPECT_TRUE(names.insert(ErrorCodeName(static_cast<ErrorCode>(code))).second) << code;
  }
  EXPECT_EQ(names.size(), 20u);
  EXPECT_TRUE(names.contains("TargetExists"));
}

TEST(StatusTest, TryReturnsTheFirstError) {
  EXPECT_EQ(Quarter(8).value(), 2);
  ASSERT_FALSE(Quarter(6).ok());
  EXPECT_EQ(Quarter(6).error().code, ErrorCode::kTruncated);
  EXPECT_TRUE(Check(2).ok());
  EXPECT_FALSE(Check(3).ok());
}

TEST(StatusDeathTest, CheckPrintsConditionAndValues) {
  const int end = 5, numel = 4;
  EXPECT_DEATH(CHECK(end <= numel, << "end=" << end << " numel=" << numel),
               "CHECK failed: end <= numel .end=5 numel=4.");
  EXPECT_DEATH(CHECK(end == numel), "CHECK failed: end == numel");
}

TEST(StatusDeathTest, ValueOfAnErrorStopsWithTheError) {
  const Result<int> result = Half(3);
  EXPECT_DEATH((void)result.value(), "Truncated: found 12 bytes");
}

}  // namespace
}  // namespace checkpoint
