// Laws S1-S8 on checkpoints in memory: each held, broken, undecided and not applicable. A check
// that cannot fail is worthless, so every way to break a law is tried on a model on which all laws
// hold.
#include <ATen/Tensor.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "certify/fake_oracle.h"
#include "certify/root_cause.h"
#include "certify/single_laws.h"

namespace certify {
namespace {

// 48 + 16 + 32 + 16 trainable elements in four states, 3 frozen, 2 of a buffer.
constexpr int64_t kTrainable = 112;

std::vector<ScannedFile> WholeFiles() {
  ScannedFile file;
  file.digest.name = "global_step4/mp_rank_00_model_states.pt";
  file.torch = true;
  file.records_checked = 5;
  return {file};
}

class LawsTest : public ::testing::Test {
 protected:
  Judgement Judge(const std::string& only = "") {
    const Subject subject = SubjectOf(fake_, only);
    auto laws = JudgeSingle(subject, files_, {});
    EXPECT_TRUE(laws.ok());
    Judgement judgement;
    judgement.laws = std::move(laws).value();
    Conclude(judgement);
    return judgement;
  }
  LawResult Law(const std::string& number, const std::string& only = "") {
    for (const LawResult& law : Judge(only).laws)
      if (law.law == number) return law;
    ADD_FAILURE() << "no law " << number;
    return {};
  }
  // The first finding of the law, which must be a fault of this kind and make this law the root.
  Finding Broken(const std::string& number, const std::string& kind) {
    const Judgement judgement = Judge();
    EXPECT_EQ(judgement.verdict, Verdict::kBroken);
    EXPECT_EQ(judgement.root, number);
    for (const LawResult& law : judgement.laws) {
      if (law.law != number) continue;
      EXPECT_EQ(law.verdict, Verdict::kBroken);
      for (const Finding& finding : law.findings)
        if (finding.fault && finding.kind == kind) return finding;
    }
    ADD_FAILURE() << number << " has no fault of kind " << kind;
    return {};
  }
  // The law holds, with a notice of this kind.
  Finding Notice(const std::string& number, const std::string& kind) {
    const LawResult law = Law(number);
    EXPECT_EQ(law.verdict, Verdict::kHeld) << law.reason;
    for (const Finding& finding : law.findings) {
      EXPECT_FALSE(finding.fault) << finding.text;
      if (finding.kind == kind) return finding;
    }
    ADD_FAILURE() << number << " has no notice of kind " << kind;
    return {};
  }

  std::shared_ptr<FakeOracle> fake_ = SoundModel();
  std::vector<ScannedFile> files_ = WholeFiles();
};

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
    const LawResult law = Law(number, "norm");
    EXPECT_EQ(law.verdict, Verdict::kUndecided) << number;
    EXPECT_NE(law.reason.find("5 of 6 tensors"), std::string::npos) << law.reason;
  }
  EXPECT_EQ(Law("S2", "norm").compared, 4 * 16);
}

TEST_F(LawsTest, AFaultInWhatIsLookedAtStaysAFaultBesideWhatIsLeftOut) {
  fake_->Value("norm.weight", oracle::kMaster)[3] = 7.0f;
  EXPECT_EQ(Law("S4", "norm").verdict, Verdict::kBroken);
  EXPECT_EQ(Law("S4", "dense").verdict, Verdict::kUndecided);
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

oracle::Disagreement OneUlp(bool stale) {
  oracle::Disagreement disagreement;
  disagreement.first = {"layer_03-model_00-model_states.pt", "data/1", {0, 0, 0}};
  disagreement.second = {"layer_03-model_01-model_states.pt", "data/1", {1, 0, 0}};
  disagreement.differing = 1;
  disagreement.compared = 16;
  disagreement.first_index = 5;
  disagreement.max_ulp = 1;
  disagreement.known_stale = stale;
  return disagreement;
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

TEST_F(LawsTest, S4IsNotApplicableWhereMastersAreTheWeights) {
  fake_->SetWeightType(checkpoint::DType::kFloat32);
  fake_->facts.master_is_weight = true;
  EXPECT_EQ(Law("S4").verdict, Verdict::kNotApplicable);
  EXPECT_EQ(Judge().verdict, Verdict::kHeld);
}

void DropOptimizer(FakeOracle& fake) {
  fake.facts.groups.clear();
  for (size_t i = 0; i < fake.infos.size(); ++i)
    for (const char* state : {oracle::kMaster, oracle::kExpAvg, oracle::kExpAvgSq}) {
      fake.infos[i].states.erase(state);
      fake.states.erase({i, state});
    }
}

TEST_F(LawsTest, WeightsAloneAreUndecidedNotHeld) {
  DropOptimizer(*fake_);
  fake_->facts.wrapper = "none";
  EXPECT_EQ(Law("S4").verdict, Verdict::kUndecided);
  EXPECT_EQ(Law("S5").verdict, Verdict::kUndecided);
  EXPECT_EQ(Law("S7").verdict, Verdict::kNotApplicable);
  EXPECT_EQ(Judge().verdict, Verdict::kUndecided);
}

TEST_F(LawsTest, ANanMomentBreaksS5) {
  fake_->Value("dense.bias", oracle::kExpAvg)[4] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Broken("S5", "not-finite").first_index, 4);
}

TEST_F(LawsTest, SwappedMomentsBreakS5) {
  std::swap(fake_->Value("dense.bias", oracle::kExpAvg),
            fake_->Value("dense.bias", oracle::kExpAvgSq));
  EXPECT_EQ(Broken("S5", "negative").first_index, 0);
}

TEST_F(LawsTest, AMinusZeroIsNotNegative) {
  fake_->Value("dense.bias", oracle::kExpAvgSq)[0] = -0.0f;
  EXPECT_EQ(Law("S5").verdict, Verdict::kHeld);
}

TEST_F(LawsTest, AParameterNeverTrainedIsANotice) {
  fake_->Value("dense.bias", oracle::kExpAvg).zero_();
  fake_->Value("dense.bias", oracle::kExpAvgSq).zero_();
  fake_->ShareOut();
  EXPECT_EQ(Notice("S5", "never-trained").tensor, "dense.bias");
}

TEST_F(LawsTest, AZeroPartOfATrainedTensorBreaksS5) {
  fake_->Value("dense.weight", oracle::kExpAvg).narrow(0, 4, 4).zero_();
  fake_->ShareOut();
  const Finding finding = Broken("S5", "zero-part");
  EXPECT_EQ(finding.rank, "tp0-pp0-dp1");
  EXPECT_EQ(finding.count, 16);
}

TEST_F(LawsTest, ScatteredZerosAreNoFault) {
  // Dead units: every second row of the whole tensor, in both parts.
  at::Tensor& value = fake_->Value("dense.weight", oracle::kExpAvg);
  for (int64_t row = 0; row < 8; row += 2) value[row].zero_();
  fake_->ShareOut();
  EXPECT_EQ(Law("S5").verdict, Verdict::kHeld);
  EXPECT_EQ(Law("S5").findings_total, 0);
}

TEST_F(LawsTest, UnusedRowsOfAnEmbeddingAreNoFault) {
  fake_->Info("dense.weight").name = "tokens.embed.weight";
  fake_->facts.groups[0].members[1] = "tokens.embed.weight";
  fake_->Value("tokens.embed.weight", oracle::kExpAvg).narrow(0, 4, 4).zero_();
  fake_->Value("tokens.embed.weight", oracle::kExpAvgSq).narrow(0, 4, 4).zero_();
  fake_->ShareOut();
  EXPECT_FALSE(Notice("S5", "zero-part").fault);
}

TEST_F(LawsTest, RowsOfATiedTableAreAllTrainedSoAZeroPartBreaksS5) {
  fake_->Value("word_embeddings", oracle::kExpAvg).narrow(0, 6, 6).zero_();
  fake_->ShareOut();
  Broken("S5", "zero-part");
}

TEST_F(LawsTest, ATableWithAnAliasIsTiedToAnOutput) {
  fake_->Info("dense.weight").name = "tokens.embed.weight";
  fake_->facts.groups[0].members[1] = "tokens.embed.weight";
  oracle::TensorInfo head;
  head.name = head.canonical = "head.weight";
  head.alias_of = "tokens.embed.weight";
  fake_->infos.push_back(head);
  fake_->Value("tokens.embed.weight", oracle::kExpAvg).narrow(0, 4, 4).zero_();
  fake_->ShareOut();
  Broken("S5", "zero-part");
}

TEST_F(LawsTest, AnOrderThatStaleMastersCannotProveIsAConsequence) {
  fake_->Value("norm.weight", oracle::kMaster)[3] = 7.0f;
  fake_->facts.findings.push_back({"order-unproved", "no order fits", {}, true, {}});
  fake_->facts.padding[1].nonzero = 1;
  const Judgement judgement = Judge();
  EXPECT_EQ(judgement.root, "S4");
  EXPECT_EQ(judgement.consequences, std::vector<std::string>{"S2"});
}

TEST_F(LawsTest, ZeroVocabularyPaddingIsNoFault) {
  fake_->Value("word_embeddings", oracle::kExpAvg).narrow(0, 10, 2).zero_();
  const at::Tensor flat = fake_->Value("word_embeddings", oracle::kExpAvg).flatten();
  fake_->parts[{fake_->Index("word_embeddings"), oracle::kExpAvg}] = {
      {{"a", "", {0, 0, 0}}, flat.narrow(0, 0, 40)}, {{"b", "", {1, 0, 0}}, flat.narrow(0, 40, 8)}};
  EXPECT_EQ(Law("S5").verdict, Verdict::kHeld);
}

TEST_F(LawsTest, ARankWithNothingButZerosBreaksS5EvenIfPartsAreSmall) {
  // Four ranks; two of them lost everything, so that the rest of a tensor is half zero as well.
  const std::string names[] = {"word_embeddings", "norm.weight", "dense.weight", "dense.bias"};
  for (const std::string& name : names) {
    at::Tensor flat = fake_->Value(name, oracle::kExpAvgSq).view(-1);
    const int64_t quarter = flat.numel() / 4;
    flat.narrow(0, 2 * quarter, 2 * quarter).zero_();
    auto& parts = fake_->parts[{fake_->Index(name), oracle::kExpAvgSq}];
    parts.clear();
    for (int32_t rank = 0; rank < 4; ++rank)
      parts.push_back({{"rank" + std::to_string(rank), "", {0, 0, rank}},
                       flat.narrow(0, rank * quarter, quarter)});
  }
  const Finding finding = Broken("S5", "zero-holder");
  EXPECT_EQ(finding.file, "rank2");
}

TEST_F(LawsTest, AllMomentsZeroAfterStepsBreaksS5) {
  for (auto& [key, assembled] : fake_->states)
    if (key.second == oracle::kExpAvg || key.second == oracle::kExpAvgSq) assembled.value.zero_();
  fake_->ShareOut();
  EXPECT_EQ(Broken("S5", "all-moments-zero").count, 4);
}

TEST_F(LawsTest, MissingMomentsOfOneParameterBreakS5) {
  for (const char* state : {oracle::kExpAvg, oracle::kExpAvgSq}) {
    fake_->Info("dense.bias").states.erase(state);
    fake_->states.erase({fake_->Index("dense.bias"), state});
  }
  EXPECT_EQ(Broken("S5", "moments-missing").tensor, "dense.bias");
}

TEST_F(LawsTest, NoStateIsRightBeforeTheFirstStep) {
  for (size_t i = 0; i < fake_->infos.size(); ++i)
    for (const char* state : {oracle::kExpAvg, oracle::kExpAvgSq}) {
      fake_->infos[i].states.erase(state);
      fake_->states.erase({i, state});
    }
  Broken("S5", "moments-missing");
  fake_->facts.no_steps_taken = true;
  EXPECT_EQ(Law("S5").verdict, Verdict::kNotApplicable);
  EXPECT_EQ(Judge().verdict, Verdict::kHeld);
}

TEST_F(LawsTest, ALostStepBreaksS6) {
  for (oracle::TensorInfo& info : fake_->infos)
    if (info.step) info.step = 1;
  for (oracle::Counter& counter : fake_->facts.counters)
    if (counter.name == "optimizer step") counter.value = 1;
  EXPECT_NE(Broken("S6", "optimizer-step").text.find("expected 4"), std::string::npos);
}

TEST_F(LawsTest, AStepOfOneRankBreaksS6) {
  fake_->facts.counters[2].value = 3;
  EXPECT_EQ(Broken("S6", "counter-differs").rank, "tp0-pp0-dp1");
}

TEST_F(LawsTest, TheDummyStepOfZero0IsKnown) {
  fake_->facts.dummy_step = true;
  for (oracle::TensorInfo& info : fake_->infos)
    if (info.step) info.step = 5;
  for (oracle::Counter& counter : fake_->facts.counters)
    if (counter.name == "optimizer step") counter.value = 5;
  EXPECT_EQ(Law("S6").verdict, Verdict::kHeld);
  EXPECT_EQ(Law("S6").findings_total, 0);
  // The same counts after a reshape to ZeRO-1, which carries the step as it is.
  fake_->facts.dummy_step = false;
  EXPECT_EQ(Notice("S6", "step-of-another-wrapper").count, 4);
}

TEST_F(LawsTest, SkippedStepsAreNotCounted) {
  fake_->facts.global_steps = 14;
  fake_->facts.iteration = 14;
  fake_->facts.skipped_steps = 10;
  fake_->facts.tag = "global_step14";
  fake_->facts.counters.back().value = 14;
  EXPECT_EQ(Law("S6").verdict, Verdict::kHeld);
}

TEST_F(LawsTest, ATagOfAnotherStepBreaksS6) {
  fake_->facts.tag = "global_step5";
  Broken("S6", "tag-and-step");
}

TEST_F(LawsTest, ATagWithoutANumberIsTheUsersOwn) {
  fake_->facts.tag = "best-so-far";
  EXPECT_EQ(Law("S6").verdict, Verdict::kHeld);
}

TEST_F(LawsTest, SchedulersThatDifferBreakS6) {
  const auto scheduler = [](int64_t steps) {
    return checkpoint::MakeDict(
        {{checkpoint::MakeString("num_steps"), checkpoint::MakeInt(steps)}});
  };
  fake_->facts.carried["lr_scheduler"] = {{{"a", "", {}}, scheduler(48)},
                                          {{"b", "", {1, 0, 0}}, scheduler(36)}};
  EXPECT_EQ(Broken("S6", "entry-differs").file, "b");
}

TEST_F(LawsTest, CountersOfNothingAreUndecided) {
  fake_->facts.counters.clear();
  fake_->facts.tag = "x";
  for (oracle::TensorInfo& info : fake_->infos) info.step.reset();
  EXPECT_EQ(Law("S6").verdict, Verdict::kUndecided);
}

TEST_F(LawsTest, AParameterInNoGroupBreaksS7) {
  fake_->facts.groups[1].members.pop_back();
  EXPECT_EQ(Broken("S7", "in-no-group").tensor, "dense.bias");
}

TEST_F(LawsTest, AParameterInTwoGroupsBreaksS7) {
  fake_->facts.groups[0].members.push_back("norm.weight");
  EXPECT_EQ(Broken("S7", "in-several-groups").tensor, "norm.weight");
}

TEST_F(LawsTest, AFrozenOrUnknownMemberBreaksS7) {
  fake_->facts.groups[0].members.push_back("frozen");
  EXPECT_EQ(Broken("S7", "not-trainable").tensor, "frozen");
  fake_->facts.groups[0].members.back() = "nobody";
  EXPECT_EQ(Broken("S7", "unknown-member").tensor, "nobody");
}

TEST_F(LawsTest, DecayOfANormBreaksS7WhereThereIsARule) {
  fake_->facts.groups[1].hyper_parameters["weight_decay"] = "0.01";
  EXPECT_EQ(Broken("S7", "weight-decay").tensor, "norm.weight");
  fake_->facts.group_rule_known = false;
  EXPECT_EQ(Law("S7").verdict, Verdict::kHeld);
}

TEST_F(LawsTest, ABadRecordBreaksS8) {
  files_[0].bad_records.push_back({"data/3", 0x1234, 0x5678});
  EXPECT_NE(Broken("S8", "ChecksumMismatch").text.find("data/3"), std::string::npos);
}

TEST_F(LawsTest, LegacyContainersHaveNoChecksums) {
  files_[0].legacy = true;
  files_[0].records_checked = 0;
  const LawResult law = Law("S8");
  EXPECT_EQ(law.verdict, Verdict::kNotApplicable);
  EXPECT_EQ(law.findings.at(0).kind, "no-checksums");
}

TEST_F(LawsTest, NoFileIsUndecidedS8) {
  files_.clear();
  EXPECT_EQ(Law("S8").verdict, Verdict::kUndecided);
}

TEST_F(LawsTest, MastersStaleOnOneRankAreTheRootOfReplicasThatDiffer) {
  fake_->Value("norm.weight", oracle::kMaster)[3] = 7.0f;
  fake_->State("norm.weight", oracle::kMaster).disagreements = {OneUlp(false)};
  const Judgement judgement = Judge();
  EXPECT_EQ(judgement.root, "S4");
  EXPECT_EQ(judgement.consequences, std::vector<std::string>{"S3"});
}

TEST_F(LawsTest, DriftedReplicasAreTheRootWhereTheirWeightsDiffer) {
  fake_->Value("norm.weight", oracle::kMaster)[3] = 7.0f;
  fake_->State("norm.weight", oracle::kWeight).disagreements = {OneUlp(false)};
  EXPECT_EQ(Judge().root, "S3");
}

}  // namespace
}  // namespace certify
