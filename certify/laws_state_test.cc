// Laws S5-S8 on checkpoints in memory, and which of several broken laws is the root.
#include <ATen/Tensor.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "certify/laws_fixture.h"

namespace certify {
namespace {

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

TEST_F(LawsTest, ADangerousCallableBreaksS8AndAForeignClassIsANotice) {
  files_[0].callables.push_back({"lab.Own", "args.own", checkpoint::CallableKind::kForeign});
  const LawResult law = Law("S8");
  EXPECT_EQ(law.verdict, Verdict::kHeld);
  EXPECT_EQ(law.findings.at(0).kind, "foreign-class");
  files_[0].callables.push_back({"posix.system", "args.x", checkpoint::CallableKind::kDangerous});
  EXPECT_NE(Broken("S8", "dangerous-callable").text.find("posix.system at args.x"),
            std::string::npos);
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

// Without its files nothing is known of the optimizer: no law may say that it held, or that there
// was none.
TEST_F(LawsTest, NoOptimizerFileAtAllLeavesItsLawsUndecided) {
  for (oracle::FileFact& fact : fake_->facts.files)
    if (fact.kind == "optimizer states") fact.present = false;
  for (oracle::TensorInfo& info : fake_->infos)
    for (const char* state : {oracle::kMaster, oracle::kExpAvg, oracle::kExpAvgSq})
      info.states.erase(state);
  fake_->facts.groups.clear();
  fake_->facts.no_steps_taken = true;
  for (const char* number : {"S4", "S5", "S7"}) {
    const LawResult law = Law(number);
    EXPECT_EQ(law.verdict, Verdict::kUndecided) << number;
    EXPECT_NE(law.reason.find("every optimizer file is missing"), std::string::npos) << law.reason;
  }
}

}  // namespace
}  // namespace certify
