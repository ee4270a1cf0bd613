#include "certify/report.h"

#include <gtest/gtest.h>

#include <limits>

namespace certify {
namespace {

Finding Of(bool fault, const std::string& kind, const std::string& tensor = "") {
  Finding finding;
  finding.fault = fault;
  finding.kind = kind;
  finding.tensor = tensor;
  return finding;
}

TEST(ReportTest, NothingComparedIsNeverHeld) {
  const LawResult result = Report("S4").Finish();
  EXPECT_EQ(result.verdict, Verdict::kUndecided);
  EXPECT_EQ(result.reason, "nothing was compared");
}

TEST(ReportTest, ComparedWithoutFaultIsHeld) {
  Report report("S4");
  report.Compared(3);
  report.Compared(4);
  report.Add(Of(false, "notice"));
  const LawResult result = report.Finish();
  EXPECT_EQ(result.verdict, Verdict::kHeld);
  EXPECT_EQ(result.compared, 7);
  EXPECT_EQ(result.title, "masters are fresh");
}

TEST(ReportTest, AFaultOutweighsWhatIsIncomplete) {
  Report report("S4");
  report.Incomplete("x");
  report.Add(Of(true, "fault"));
  EXPECT_EQ(report.Finish().verdict, Verdict::kBroken);
}

TEST(ReportTest, IncompleteOutweighsNotApplicable) {
  Report report("S4");
  report.NotApplicable("no masters");
  report.Incomplete("b");
  report.Incomplete("a");
  report.Incomplete("a");
  const LawResult result = report.Finish();
  EXPECT_EQ(result.verdict, Verdict::kUndecided);
  EXPECT_EQ(result.reason, "a (and 1 more)");
}

TEST(ReportTest, NotApplicableKeepsItsReason) {
  Report report("S4");
  report.NotApplicable("no masters");
  const LawResult result = report.Finish();
  EXPECT_EQ(result.verdict, Verdict::kNotApplicable);
  EXPECT_EQ(result.reason, "no masters");
}

TEST(ReportTest, FindingsComeFaultsFirstInTensorOrderWhateverTheOrderOfArrival) {
  Report report("S2");
  report.Add(Of(false, "n", "z"), 0);
  report.Add(Of(true, "f", "b"), 7);
  report.Add(Of(true, "f", "a"), 2);
  const LawResult result = report.Finish();
  ASSERT_EQ(result.findings.size(), 3u);
  EXPECT_EQ(result.findings[0].tensor, "a");
  EXPECT_EQ(result.findings[1].tensor, "b");
  EXPECT_FALSE(result.findings[2].fault);
}

TEST(ReportTest, KeepsSomeOfEachKindAndCountsAll) {
  Report report("S2");
  report.KeepPerKind(2);
  for (int64_t i = 0; i < 5; ++i) report.Add(Of(true, "f"), i);
  report.Add(Of(true, "g"));
  const LawResult result = report.Finish();
  EXPECT_EQ(result.findings.size(), 3u);
  EXPECT_EQ(result.findings_total, 6);
}

TEST(LawTextTest, EveryLawHasWords) {
  EXPECT_EQ(LawNumbers('S').size(), 8u);
  EXPECT_EQ(LawNumbers('R').size(), 8u);
  for (const char letter : {'S', 'R', 'V'})
    for (const std::string_view law : LawNumbers(letter)) {
      EXPECT_FALSE(TextOf(law).covers.empty()) << law;
      EXPECT_FALSE(TextOf(law).does_not_cover.empty()) << law;
    }
}

TEST(LawTextTest, EveryKindOfTheOracleHasALaw) {
  EXPECT_EQ(LawOfKind("surplus-ranks"), "S1");
  EXPECT_EQ(LawOfKind("false-slice-maps"), "S2");
  EXPECT_EQ(LawOfKind("unproved-stale-tied-copy"), "S3");
  EXPECT_EQ(LawOfKind("universal-copy-differs"), "S3");
  EXPECT_EQ(LawOfKind("hyper-parameters-differ"), "S7");
}

TEST(NumberTextTest, IsTheShortestThatNamesTheFloat) {
  EXPECT_EQ(NumberText(static_cast<double>(0.1f)), "0.1");
  EXPECT_EQ(NumberText(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(NumberText(4), "4");
}

}  // namespace
}  // namespace certify
