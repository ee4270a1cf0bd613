// Law R8 on pairs in memory: what the source contradicts refutes the certificate, and is its root.
#include <gtest/gtest.h>

#include <string>

#include "certify/format.h"
#include "certify/pair_fixture.h"

namespace certify {
namespace {

using SourceIsOneTest = PairLawsTest;

TEST_F(SourceIsOneTest, HoldsOverTheFiveLawsOfASoundSource) {
  source_->State("norm.weight", oracle::kWeight).replicas_compared = 16;
  const LawResult law = Law("R8");
  EXPECT_EQ(law.verdict, Verdict::kHeld) << law.reason;
  EXPECT_EQ(law.compared, 5);
}

// Without replicas S3 is not applicable.
TEST_F(SourceIsOneTest, CountsOnlyTheLawsThatApply) {
  for (auto& [key, state] : source_->states) state.replicas_compared = 0;
  EXPECT_EQ(Law("R8").compared, 4);
}

TEST_F(SourceIsOneTest, ReplicasThatDifferInTheSourceAreTheRoot) {
  source_->State("norm.weight", oracle::kWeight).disagreements.push_back(OneUlp(false));
  const Finding finding = Broken("R8", "S3");
  EXPECT_EQ(finding.tensor, "norm.weight");
  EXPECT_NE(finding.text.find("choose between what its source contradicts"), std::string::npos)
      << finding.text;
}

TEST_F(SourceIsOneTest, AStaleTiedCopyOfTheSourceBreaksNothing) {
  source_->State("norm.weight", oracle::kWeight).disagreements.push_back(OneUlp(true));
  EXPECT_EQ(Law("R8").verdict, Verdict::kHeld);
}

// The target keeps no buffer `count`, so no comparison assembles the source's.
TEST_F(SourceIsOneTest, StatesThatNoComparisonAssembledAreJudgedToo) {
  source_->State("count", oracle::kWeight).disagreements.push_back(OneUlp(false));
  target_->infos.erase(target_->infos.begin() + static_cast<int64_t>(target_->Index("count")));
  const LawResult law = Law("R8");
  EXPECT_EQ(law.verdict, Verdict::kBroken);
  EXPECT_EQ(law.findings.front().tensor, "count");
}

TEST_F(SourceIsOneTest, ElementsThatNoFileHoldsAreTheRoot) {
  source_->State("frozen", oracle::kWeight).covered = 2;
  EXPECT_EQ(Broken("R8", "S2").tensor, "frozen");
}

TEST_F(SourceIsOneTest, StatesThatCannotBePutTogetherAreTheRoot) {
  source_->errors[{source_->Index("frozen"), oracle::kWeight}] = {
      checkpoint::ErrorCode::kInconsistent, "3 rows", "4", "frozen", ""};
  EXPECT_EQ(Broken("R8", "S2").tensor, "frozen");
}

TEST_F(SourceIsOneTest, AMissingFileOfTheSourceIsTheRoot) {
  source_->facts.files.push_back({"mp_rank_01_model_states.pt", "model states", true, false});
  EXPECT_EQ(Broken("R8", "S1").file, "mp_rank_01_model_states.pt");
}

TEST_F(SourceIsOneTest, OptimizerStepsOfTwoStepsAreTheRoot) {
  for (const double step : {4.0, 4.0, 7.0})
    source_->facts.counters.push_back({"optimizer step", step, {"f.pt", "", {}}});
  EXPECT_EQ(Broken("R8", "S6").file, "f.pt");
}

TEST_F(SourceIsOneTest, ADamagedRecordOfTheSourceIsTheRoot) {
  source_scanned_.front().bad_records.push_back({"data/1", 1, 2});
  EXPECT_EQ(Broken("R8", "S8").file, source_scanned_.front().digest.name);
}

// Stale masters are a fault of the training, which a reshape carries and R6 sees in the target.
TEST_F(SourceIsOneTest, StaleMastersOfTheSourceAreNotItsBusiness) {
  source_->Value("norm.weight", oracle::kMaster).fill_(9);
  source_->ShareOut();
  EXPECT_EQ(Law("R8").verdict, Verdict::kHeld);
}

TEST_F(SourceIsOneTest, RulesAgainstTheFilesLeaveAnotherTensorParallelSizeUndecided) {
  source_->Info("dense.weight").rule_in_doubt = "rules mine says column, the file says row";
  EXPECT_EQ(Judge().verdict, Verdict::kHeld);  // joined the same way on both sides
  target_->facts.tensor_parallel = 2;
  for (const char* number : {"R2", "R3", "R4"}) {
    const LawResult law = Law(number);
    EXPECT_EQ(law.verdict, Verdict::kUndecided) << number;
    EXPECT_NE(law.reason.find("the file says row"), std::string::npos) << law.reason;
  }
}

}  // namespace
}  // namespace certify
