// Laws S1-S4 on checkpoints in memory: each held, broken, undecided and not applicable. A check
// that cannot fail is worthless, so every way to break a law is tried on a model on which all laws
// hold.
#include <ATen/Tensor.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "certify/laws_fixture.h"

namespace certify {
namespace {

// 48 + 16 + 32 + 16 trainable elements in four states, 3 frozen, 2 of a buffer.
constexpr int64_t kTrainable = 112;

TEST_F(LawsTest, ASoundModelHoldsWithExactCounts) {
  const Judgement judgement = Judge();
  EXPECT_EQ(judgement.verdict, Verdict::kHeld);
  EXPECT_EQ(judgement.root, "");
  for (const LawResult& law : judgement.laws) {
    EXPECT_EQ(law.verdict, Verdict::kHeld) << law.law << " " << law.reason;
    EXPECT_EQ(law.findings_total, 0) << law.law << " " << law.findings.front().text;
  }
  EXPECT_EQ(Law("S1").compared, 3);
  EXPECT_EQ(Law("S2").compared, 4 * kTrainable + 3 + 2);
  EXPECT_EQ(Law("S3").compared, kTrainable + 3 + 2);
  EXPECT_EQ(Law("S4").compared, kTrainable);
  EXPECT_EQ(Law("S5").compared, 2 * kTrainable);
  EXPECT_EQ(Law("S7").compared, 4);
  EXPECT_EQ(Law("S8").compared, 5);
}

TEST_F(LawsTest, WhatOnlyLeavesOutMakesElementLawsUndecided) {
  for (const char* number : {"S2", "S3", "S4", "S5"}) {
    const LawResult law = Law(number, "norm.*");
    EXPECT_EQ(law.verdict, Verdict::kUndecided) << number;
    EXPECT_NE(law.reason.find("5 of 6 tensors"), std::string::npos) << law.reason;
  }
  EXPECT_EQ(Law("S2", "norm.*").compared, 4 * 16);
}

TEST_F(LawsTest, AFaultInWhatIsLookedAtStaysAFaultBesideWhatIsLeftOut) {
  fake_->Value("norm.weight", oracle::kMaster)[3] = 7.0f;
  EXPECT_EQ(Law("S4", "norm.*").verdict, Verdict::kBroken);
  EXPECT_EQ(Law("S4", "dense.*").verdict, Verdict::kUndecided);
}

TEST_F(LawsTest, AMissingFileBreaksS1) {
  fake_->facts.files[1].present = false;
  EXPECT_EQ(Broken("S1", "missing-file").file, fake_->facts.files[1].name);
}

TEST_F(LawsTest, AFileOfNoRankBreaksS1) {
  fake_->facts.files.push_back({"mp_rank_07_model_states.pt", "model states", false, true});
  EXPECT_EQ(Broken("S1", "extra-file").file, "mp_rank_07_model_states.pt");
}

TEST_F(LawsTest, AnUnknownFileIsANotice) {
  fake_->facts.files.push_back({"notes.txt", "unknown", false, true});
  fake_->facts.files.push_back({"zero_to_fp32.py", "known companion", false, true});
  fake_->facts.files.push_back({"../global_step2", "unknown", false, true});
  EXPECT_EQ(Notice("S1", "unknown-file").file, "notes.txt");
  EXPECT_EQ(Law("S1").findings_total, 1);
}

TEST_F(LawsTest, AFileOfAnotherStepBreaksS1) {
  fake_->facts.counters.push_back({"global_steps", 4, {"a", "", {}}});
  fake_->facts.counters.push_back({"global_steps", 3, {"b", "", {1, 0, 0}}});
  EXPECT_EQ(Broken("S1", "two-steps").file, "b");
}

TEST_F(LawsTest, NothingExpectedIsUndecidedS1) {
  fake_->facts.files.clear();
  EXPECT_EQ(Law("S1").verdict, Verdict::kUndecided);
}

TEST_F(LawsTest, AnUncoveredElementBreaksS2AndLeavesItsComparisonsUndecided) {
  fake_->State("dense.weight", oracle::kMaster).covered = 31;
  const Finding finding = Broken("S2", "not-covered");
  EXPECT_EQ(finding.count, 1);
  EXPECT_EQ(finding.tensor, "dense.weight");
  EXPECT_EQ(Law("S4").verdict, Verdict::kUndecided);
}

TEST_F(LawsTest, AnElementHeldTwiceBreaksS2) {
  fake_->State("dense.weight", oracle::kExpAvg).held_twice = 2;
  EXPECT_EQ(Broken("S2", "held-twice").count, 2);
}

TEST_F(LawsTest, ATensorThatCannotBeAssembledBreaksS2) {
  fake_->errors.emplace(
      FakeOracle::Key{fake_->Index("norm.weight"), oracle::kExpAvgSq},
      checkpoint::Error{checkpoint::ErrorCode::kMissingFile, "3 partitions", "4", "x", ""});
  EXPECT_EQ(Broken("S2", "cannot-assemble").state, oracle::kExpAvgSq);
  EXPECT_EQ(Law("S5").verdict, Verdict::kUndecided);
  EXPECT_EQ(Law("S3").verdict, Verdict::kUndecided);
}

TEST_F(LawsTest, AWrongShapeBreaksS2) {
  at::Tensor& value = fake_->Value("dense.weight", oracle::kExpAvg);
  value = value.t().contiguous();
  Broken("S2", "wrong-shape");
}

TEST_F(LawsTest, PaddingThatDoesNotAddUpBreaksS2) {
  fake_->facts.padding[0].problem = "2 elements too few";
  Broken("S2", "padding-account");
}

TEST_F(LawsTest, PaddingThatIsNotZeroBreaksS2) {
  fake_->facts.padding[1].nonzero = 1;
  EXPECT_EQ(Broken("S2", "padding-not-zero").rank, "tp0-pp0-dp1");
}

TEST_F(LawsTest, WhatTheOracleMetIsListed) {
  fake_->facts.findings.push_back(
      {"false-slice-maps", "slice maps overruled", {"a", "b"}, false, {}});
  EXPECT_EQ(Notice("S2", "false-slice-maps").tensor, "a, b");
  fake_->facts.findings.push_back(
      {"surplus-ranks", "files of 3 ranks, topology of 2", {}, true, {}});
  Broken("S1", "surplus-ranks");
}

TEST_F(LawsTest, ReplicasThatDifferBreakS3AndSayWhichRanksAgree) {
  fake_->Info("norm.weight").canonical = "layers.3.norm.weight";
  fake_->State("norm.weight", oracle::kWeight).disagreements = {OneUlp(false)};
  const at::Tensor right = fake_->Value("norm.weight", oracle::kWeight);
  at::Tensor wrong = right.clone();
  wrong[5] = 1.0f;
  auto& parts = fake_->parts[{fake_->Index("norm.weight"), oracle::kWeight}];
  parts = {
      {{"a", "", {0, 0, 0}}, right}, {{"b", "", {1, 0, 0}}, wrong}, {{"c", "", {2, 0, 0}}, right}};
  const Finding finding = Broken("S3", "replicas-differ");
  EXPECT_EQ(finding.rank, "tp1-pp0-dp0");
  EXPECT_EQ(finding.first_index, 5);
  EXPECT_NE(finding.text.find("1 ulp"), std::string::npos) << finding.text;
  std::string all;
  for (const Finding& each : Law("S3").findings) all += each.text + "\n";
  EXPECT_NE(all.find("{tp0-pp0 tp2-pp0} {tp1-pp0}"), std::string::npos) << all;
  EXPECT_NE(all.find("from layer 3 on"), std::string::npos) << all;
}

TEST_F(LawsTest, TheStaleTiedCopyIsANotice) {
  fake_->State("norm.weight", oracle::kWeight).disagreements = {OneUlp(true)};
  fake_->State("norm.weight", oracle::kMaster).disagreements = {OneUlp(true)};
  const Finding finding = Notice("S3", "stale-tied-copy");
  EXPECT_NE(finding.text.find("fp32_master, weight"), std::string::npos) << finding.text;
  EXPECT_EQ(Law("S3").findings_total, 1);
}

TEST_F(LawsTest, S3IsNotApplicableWhereNothingIsHeldTwice) {
  for (auto& [key, assembled] : fake_->states) assembled.replicas_compared = 0;
  EXPECT_EQ(Law("S3").verdict, Verdict::kNotApplicable);
  EXPECT_EQ(Judge().verdict, Verdict::kHeld);
}

TEST_F(LawsTest, OneMasterOffBreaksS4AndNamesElementAndHolder) {
  // 0.3 + 20 x 0.003 = 0.36: element 20 of 32 is in the second partition.
  fake_->Value("dense.weight", oracle::kMaster)[5][0] = 0.5f;
  fake_->ShareOut();
  const Finding finding = Broken("S4", "master-differs");
  EXPECT_EQ(finding.tensor, "dense.weight");
  EXPECT_EQ(finding.first_index, 20);
  EXPECT_EQ(finding.count, 1);
  EXPECT_EQ(finding.rank, "tp0-pp0-dp1");
  EXPECT_NE(finding.text.find("1 of 16"), std::string::npos) << finding.text;
  EXPECT_NE(finding.text.find("the master rounds to 0.5, the weight is 0.36"), std::string::npos)
      << finding.text;
  const std::string summary = Broken("S4", "stale-masters").text;
  EXPECT_NE(summary.find("too few to be of another step"), std::string::npos) << summary;
}

TEST_F(LawsTest, OneUlpOfAWeightBreaksS4) {
  at::Tensor& weight = fake_->Value("norm.weight", oracle::kWeight);
  weight.view(at::kShort)[7] += 1;
  EXPECT_EQ(Broken("S4", "master-differs").first_index, 7);
  EXPECT_NE(Broken("S4", "stale-masters").text.find("one ulp"), std::string::npos);
}

TEST_F(LawsTest, RandomMastersAreCalledNeverRefreshed) {
  for (const char* name : {"word_embeddings", "norm.weight", "dense.weight", "dense.bias"}) {
    at::Tensor& master = fake_->Value(name, oracle::kMaster);
    // A fixed sequence without relation to the weights' rising one.
    float* data = master.data_ptr<float>();
    uint32_t state = 12345;
    for (int64_t i = 0; i < master.numel(); ++i) {
      state = state * 1664525u + 1013904223u;
      const float sign = i % 4 == 0 || i % 4 == 3 ? 1.0f : -1.0f;
      data[i] = sign * (0.01f + static_cast<float>(state >> 20) * 1e-6f);
    }
  }
  const Finding finding = Broken("S4", "stale-masters");
  EXPECT_NE(finding.text.find("never refreshed"), std::string::npos) << finding.text;
  EXPECT_EQ(finding.count, kTrainable);
}

TEST_F(LawsTest, ShiftedMastersAreNamedWithTheirOffset) {
  at::Tensor& master = fake_->Value("dense.bias", oracle::kMaster);
  master = master.roll(2, 0);
  EXPECT_NE(Broken("S4", "master-differs").text.find("2 elements late"), std::string::npos);
}

TEST_F(LawsTest, AnyNanMasterEqualsAnyNanWeight) {
  fake_->Value("norm.weight", oracle::kMaster)[2] = std::numeric_limits<float>::quiet_NaN();
  fake_->Value("norm.weight", oracle::kWeight).view(at::kShort)[2] = static_cast<int16_t>(0xfe01);
  EXPECT_EQ(Law("S4").verdict, Verdict::kHeld);
}

TEST_F(LawsTest, ANanMasterBesideANumberBreaksS4) {
  fake_->Value("norm.weight", oracle::kMaster)[2] = std::numeric_limits<float>::quiet_NaN();
  Broken("S4", "master-differs");
}

TEST_F(LawsTest, AParameterWithoutMasterBesideOthersLeavesS4Undecided) {
  fake_->states.erase({fake_->Index("dense.bias"), oracle::kMaster});
  fake_->Info("dense.bias").states.erase(oracle::kMaster);
  const LawResult law = Law("S4");
  EXPECT_EQ(law.verdict, Verdict::kUndecided);
  EXPECT_NE(law.reason.find("dense.bias"), std::string::npos) << law.reason;
}

TEST_F(LawsTest, S4IsNotApplicableWhereALayoutKeepsMastersAlone) {
  for (const char* name : {"word_embeddings", "norm.weight", "dense.weight", "dense.bias"}) {
    fake_->Info(name).states.erase(oracle::kWeight);
    fake_->states.erase({fake_->Index(name), oracle::kWeight});
  }
  EXPECT_EQ(Law("S4").verdict, Verdict::kNotApplicable);
}

TEST_F(LawsTest, S4IsNotApplicableWhereMastersAreTheWeights) {
  fake_->SetWeightType(checkpoint::DType::kFloat32);
  fake_->facts.master_is_weight = true;
  EXPECT_EQ(Law("S4").verdict, Verdict::kNotApplicable);
  EXPECT_EQ(Judge().verdict, Verdict::kHeld);
}

}  // namespace
}  // namespace certify
