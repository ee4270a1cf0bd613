#include "certify/root_cause.h"

#include <gtest/gtest.h>

namespace certify {
namespace {

Judgement With(const std::vector<std::pair<std::string, Verdict>>& laws) {
  Judgement judgement;
  for (const auto& [law, verdict] : laws) {
    LawResult result;
    result.law = law;
    result.verdict = verdict;
    judgement.laws.push_back(result);
  }
  Conclude(judgement);
  return judgement;
}

TEST(RootCauseTest, BrokenComesBeforeUndecidedBeforeHeld) {
  EXPECT_EQ(With({{"S1", Verdict::kHeld}, {"S4", Verdict::kNotApplicable}}).verdict,
            Verdict::kHeld);
  EXPECT_EQ(With({{"S1", Verdict::kHeld}, {"S2", Verdict::kUndecided}}).verdict,
            Verdict::kUndecided);
  EXPECT_EQ(With({{"S1", Verdict::kBroken}, {"S2", Verdict::kUndecided}}).verdict,
            Verdict::kBroken);
}

TEST(RootCauseTest, NoLawHeldIsUndecided) {
  EXPECT_EQ(With({}).verdict, Verdict::kUndecided);
  EXPECT_EQ(With({{"S4", Verdict::kNotApplicable}}).verdict, Verdict::kUndecided);
}

TEST(RootCauseTest, ADamagedFileIsTheRootOfAllElse) {
  const Judgement judgement =
      With({{"S1", Verdict::kBroken}, {"S4", Verdict::kBroken}, {"S8", Verdict::kBroken}});
  EXPECT_EQ(judgement.root, "S8");
  EXPECT_EQ(judgement.consequences, (std::vector<std::string>{"S1", "S4"}));
}

TEST(RootCauseTest, StaleMastersAreTheRootOfWhatTheComparisonSees) {
  const Judgement judgement =
      With({{"R3", Verdict::kBroken}, {"R6", Verdict::kBroken}, {"S4", Verdict::kBroken}});
  EXPECT_EQ(judgement.root, "S4");
  EXPECT_EQ(judgement.consequences, (std::vector<std::string>{"R3", "R6"}));
}

TEST(RootCauseTest, AMissingTensorIsTheRootOfWrongGroups) {
  EXPECT_EQ(With({{"R1", Verdict::kBroken}, {"S7", Verdict::kBroken}}).root, "R1");
}

TEST(RootCauseTest, WeightsMastersAndMomentsMovedTogetherHaveTheirRootInTheWeights) {
  EXPECT_EQ(
      With({{"R4", Verdict::kBroken}, {"R3", Verdict::kBroken}, {"R2", Verdict::kBroken}}).root,
      "R2");
}

}  // namespace
}  // namespace certify
