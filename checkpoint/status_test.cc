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

TEST(StatusTest, PrintableKeepsTextAndEscapesTheRest) {
  EXPECT_EQ(Printable("layer 1, \u00e9\u4e2d\U0001f600"), "layer 1, \u00e9\u4e2d\U0001f600");
  EXPECT_EQ(Printable("a\x1b[2J\n\x7f"), "a\\x1b[2J\\x0a\\x7f");
  EXPECT_EQ(Printable(std::string_view("\0", 1)), "\\x00");
  // Stray continuation, cut character, overlong slash, surrogate, above U+10FFFF.
  EXPECT_EQ(Printable("\x80"), "\\x80");
  EXPECT_EQ(Printable("\xc2\x9b"), "\\xc2\\x9b");
  EXPECT_EQ(Printable("\xe4\xb8"), "\\xe4\\xb8");
  EXPECT_EQ(Printable("\xc0\xaf"), "\\xc0\\xaf");
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(StatusTest, TextsOfAnErrorArePrintable) {
  const Result<int> result = Error{ErrorCode::kIo, "\x1b", "b", "\xff.pt", "d\n"};
  EXPECT_EQ(result.error().ToString(), "Io: found \\x1b, expected b (\\xff.pt). d\\x0a");
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
