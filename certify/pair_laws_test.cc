// Laws R1-R8 on pairs of checkpoints in memory: each held, broken, undecided and not applicable.
#include "certify/pair_laws.h"

#include <ATen/Tensor.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "certify/pair_fixture.h"
#include "checkpoint/value.h"

namespace certify {
namespace {

constexpr int64_t kTrainable = 112;

TEST_F(PairLawsTest, EqualCheckpointsHoldWithExactCounts) {
  const Judgement judgement = Judge();
  EXPECT_EQ(judgement.verdict, Verdict::kHeld);
  EXPECT_EQ(Law("R1").compared, 6);
  EXPECT_EQ(Law("R2").compared, kTrainable + 3 + 2);
  EXPECT_EQ(Law("R3").compared, kTrainable);
  EXPECT_EQ(Law("R4").compared, 2 * kTrainable);
  EXPECT_EQ(Law("R6").compared, 8);
  EXPECT_GT(Law("R5").compared, 0);
  // Tensors in memory come without files that hold anything else.
  EXPECT_EQ(Law("R7").verdict, Verdict::kNotApplicable);
}

TEST_F(PairLawsTest, WhatOnlyLeavesOutIsUndecided) {
  for (const char* number : {"R2", "R3", "R4"})
    EXPECT_EQ(Law(number, "norm.*").verdict, Verdict::kUndecided) << number;
  EXPECT_EQ(Judge("norm.*").verdict, Verdict::kUndecided);
}

TEST_F(PairLawsTest, AMissingTensorBreaksR1) {
  source_->Add("extra", {4}, oracle::Role::kFrozen);
  EXPECT_EQ(Broken("R1", "missing").tensor, "extra");
}

TEST_F(PairLawsTest, ASurplusTensorBreaksR1) {
  target_->Add("extra", {4}, oracle::Role::kFrozen);
  EXPECT_EQ(Broken("R1", "surplus").tensor, "extra");
}

TEST_F(PairLawsTest, AnotherShapeOrRoleBreaksR1) {
  source_->Info("frozen").role = oracle::Role::kBuffer;
  EXPECT_EQ(Broken("R1", "role-differs").tensor, "frozen");
  source_->Info("frozen").role = oracle::Role::kFrozen;
  source_->Info("frozen").shape = {1, 3};
  at::Tensor& value = source_->Value("frozen", oracle::kWeight);
  value = value.view({1, 3});
  Broken("R1", "shape-differs");
}

TEST_F(PairLawsTest, AnAliasMustStayTheSameTensor) {
  oracle::TensorInfo alias;
  alias.name = alias.canonical = "head";
  alias.alias_of = "word_embeddings";
  source_->infos.push_back(alias);
  // A layout that keeps the tensor once needs no second name.
  EXPECT_EQ(Law("R1").verdict, Verdict::kHeld);
  target_->Add("head", {12, 4}, oracle::Role::kTrainable);
  EXPECT_EQ(Broken("R1", "no-longer-tied").tensor, "head");
}

TEST_F(PairLawsTest, OneFrozenBitBreaksR2) {
  target_->Value("frozen", oracle::kWeight).view(at::kShort)[2] += 1;
  const Finding finding = Broken("R2", "weight-differs");
  EXPECT_EQ(finding.tensor, "frozen");
  EXPECT_EQ(finding.first_index, 2);
}

TEST_F(PairLawsTest, AChangedBufferBreaksR2) {
  target_->Value("count", oracle::kWeight)[1] = 1;
  EXPECT_EQ(Broken("R2", "weight-differs").tensor, "count");
}

TEST_F(PairLawsTest, AWeightAndItsMasterChangedTogetherHaveTheirRootInR2) {
  SetMaster("dense.weight", 5, 9.0f);
  EXPECT_EQ(Broken("R2", "weight-differs").first_index, 5);
  EXPECT_EQ(Law("R3").verdict, Verdict::kBroken);
}

TEST_F(PairLawsTest, FusedQkvOfUndeclaredOrderIsNotComparedAcrossTp) {
  source_->Info("dense.weight").fused_qkv = target_->Info("dense.weight").fused_qkv = true;
  EXPECT_EQ(Judge().verdict, Verdict::kHeld) << "the same TP on both sides";
  source_->facts.tensor_parallel = 2;
  EXPECT_EQ(Judge().verdict, Verdict::kUndecided);
  for (const char* number : {"R2", "R3", "R4"}) {
    const LawResult law = Law(number);
    EXPECT_EQ(law.verdict, Verdict::kUndecided) << number;
    EXPECT_NE(law.reason.find("TP changes from 2 to 1"), std::string::npos) << law.reason;
    EXPECT_EQ(Listed(number, "qkv-order-undeclared").entries,
              std::vector<std::string>{"dense.weight"});
  }
  EXPECT_EQ(Law("R2").compared, kTrainable - 32 + 3 + 2) << "the others are compared";
  source_->facts.qkv_layout = target_->facts.qkv_layout = checkpoint::QkvLayout::kPerShard;
  EXPECT_EQ(Judge().verdict, Verdict::kHeld);
}

TEST_F(PairLawsTest, AFaultElsewhereOverrulesTheUndeclaredOrder) {
  source_->Info("dense.weight").fused_qkv = true;
  source_->facts.tensor_parallel = 2;
  target_->Value("count", oracle::kWeight)[1] = 1;
  EXPECT_EQ(Judge().verdict, Verdict::kBroken);
}

TEST_F(PairLawsTest, R2IsNotApplicableWhereNeitherSideKeepsWeights) {
  for (const auto& fake : {source_, target_}) {
    for (size_t i = 0; i < fake->infos.size(); ++i) {
      fake->infos[i].states.erase(oracle::kWeight);
      fake->states.erase({i, oracle::kWeight});
    }
  }
  EXPECT_EQ(Law("R2").verdict, Verdict::kNotApplicable);
  EXPECT_EQ(Law("R2").reason, "neither side keeps weights");
}

TEST_F(PairLawsTest, SwappedShardsAreNamed) {
  target_->facts.tensor_parallel = 2;
  oracle::TensorInfo& info = target_->Info("dense.weight");
  info.partition_dim = 0;
  for (const char* state : {oracle::kWeight, oracle::kMaster, oracle::kExpAvg, oracle::kExpAvgSq}) {
    at::Tensor& value = target_->Value("dense.weight", state);
    value = value.roll(4, 0);
  }
  EXPECT_NE(Broken("R2", "weight-differs").text.find("tp0 holds what tp1 should"),
            std::string::npos);
}

TEST_F(PairLawsTest, ALostLowBitOfAMasterBreaksR3) {
  at::Tensor master = target_->Value("norm.weight", oracle::kMaster).view(at::kInt);
  master[4] += 1;
  EXPECT_EQ(Broken("R3", "fp32_master-differs").first_index, 4);
}

TEST_F(PairLawsTest, OneMomentBreaksR4) {
  target_->Value("norm.weight", oracle::kExpAvgSq)[4] = 0.5f;
  target_->ShareOut();
  const Finding finding = Broken("R4", "exp_avg_sq-differs");
  EXPECT_EQ(finding.first_index, 4);
  EXPECT_EQ(finding.rank, "tp0-pp0-dp0");
}

TEST_F(PairLawsTest, MissingMomentsBreakR4) {
  for (const char* state : {oracle::kExpAvg, oracle::kExpAvgSq}) {
    target_->Info("dense.bias").states.erase(state);
    target_->states.erase({target_->Index("dense.bias"), state});
  }
  EXPECT_EQ(Law("R4").verdict, Verdict::kBroken);
  EXPECT_EQ(Listed("R4", "state-missing", true).tensor, "dense.bias");
}

void Scale(FakeOracle& fake, double factor) {
  for (auto& [key, assembled] : fake.states) {
    if (key.second == oracle::kExpAvg) assembled.value = assembled.value.mul(factor);
    if (key.second == oracle::kExpAvgSq) assembled.value = assembled.value.mul(factor).mul(factor);
  }
  fake.ShareOut();
}

TEST_F(PairLawsTest, AConstantFactorIsNamedAndBreaksR4) {
  Scale(*target_, 4);
  EXPECT_NE(Broken("R4", "constant-factor").text.find("exp_avg times 4, exp_avg_sq times 16"),
            std::string::npos);
}

TEST_F(PairLawsTest, ADeclaredFactorHolds) {
  Scale(*target_, 4);
  factor_ = 4;
  EXPECT_EQ(Law("R4").verdict, Verdict::kHeld);
  EXPECT_EQ(Law("R4").compared, 2 * kTrainable);
  EXPECT_EQ(Listed("R4", "rescaled").count, 8);
}

TEST_F(PairLawsTest, AFactorThatOnlySomeMomentsHaveBreaksR4) {
  factor_ = 4;
  Scale(*target_, 4);
  at::Tensor& value = target_->Value("dense.bias", oracle::kExpAvg);
  value = value.mul(0.25);
  target_->ShareOut();
  Broken("R4", "rescaled");
}

TEST_F(PairLawsTest, TheLossScaleBetweenStagesNeedsNoDeclaration) {
  source_->facts.zero_stage = 0;
  Scale(*target_, 4096);
  EXPECT_EQ(Law("R4").verdict, Verdict::kHeld);
  EXPECT_EQ(Listed("R4", "rescaled").count, 8);
  // Between two stages that scale, the same factor is a fault.
  source_->facts.zero_stage = 2;
  EXPECT_EQ(Law("R4").verdict, Verdict::kBroken);
}

TEST_F(PairLawsTest, CarriedMomentsOfAnotherScaleAreToldLoudly) {
  source_->facts.zero_stage = 0;
  EXPECT_NE(Listed("R4", "another-scale").text.find("4096"), std::string::npos);
}

TEST_F(PairLawsTest, AChangeOfTypeComparesWithTheRoundedMasters) {
  target_->SetWeightType(checkpoint::DType::kBFloat16);
  // Frozen parameters have no masters: their weights are converted.
  EXPECT_EQ(Law("R2").verdict, Verdict::kHeld) << Law("R2").reason;
  EXPECT_EQ(Law("R2").compared, kTrainable + 3 + 2);
  // 16-bit weights converted directly are rounded twice, and differ from the masters rounded once.
  target_->Value("norm.weight", oracle::kWeight).view(at::kShort)[3] += 1;
  EXPECT_EQ(Law("R2").verdict, Verdict::kBroken);
}

TEST_F(PairLawsTest, WeightsInFp32AreTheMasters) {
  target_->SetWeightType(checkpoint::DType::kFloat32);
  for (size_t i = 0; i < target_->infos.size(); ++i) {
    target_->infos[i].states.erase(oracle::kMaster);
    target_->states.erase({i, oracle::kMaster});
  }
  EXPECT_EQ(Law("R2").verdict, Verdict::kHeld);
  EXPECT_EQ(Law("R3").verdict, Verdict::kNotApplicable);
  target_->Value("norm.weight", oracle::kWeight).view(at::kInt)[0] += 1;
  EXPECT_EQ(Law("R2").verdict, Verdict::kBroken);
}

TEST_F(PairLawsTest, ATargetWithoutWeightsIsJudgedByItsMasters) {
  for (const char* name : {"word_embeddings", "norm.weight", "dense.weight", "dense.bias"}) {
    target_->Info(name).states.erase(oracle::kWeight);
    target_->states.erase({target_->Index(name), oracle::kWeight});
  }
  EXPECT_EQ(Law("R2").verdict, Verdict::kHeld);
  EXPECT_EQ(Law("R2").compared, kTrainable + 3 + 2);
  target_->Value("norm.weight", oracle::kMaster)[1] = 3.0f;
  EXPECT_EQ(Law("R2").verdict, Verdict::kBroken);
}

void GrowVocabulary(FakeOracle& fake, int64_t rows) {
  const size_t index = fake.Index("word_embeddings");
  for (auto& [key, assembled] : fake.states) {
    if (key.first != index) continue;
    at::Tensor grown = assembled.value.new_zeros({rows, 4});
    const int64_t common = std::min<int64_t>(rows, 12);
    grown.narrow(0, 0, common).copy_(assembled.value.narrow(0, 0, common));
    assembled.value = grown;
    assembled.covered = grown.numel();
  }
  fake.infos[index].shape[0] = rows;
  fake.ShareOut();
}

TEST_F(PairLawsTest, VocabularyPaddingIsComparedWhereBothHaveItAndListedWhereNot) {
  GrowVocabulary(*target_, 16);
  EXPECT_EQ(Law("R1").verdict, Verdict::kHeld);
  EXPECT_EQ(Law("R2").verdict, Verdict::kHeld);
  EXPECT_EQ(Law("R2").compared, kTrainable + 3 + 2);
  EXPECT_NE(Listed("R7", "made-up").text.find("rows 12 to 15 are made up (zeros)"),
            std::string::npos);
  // Row 11 is padding on both sides.
  target_->Value("word_embeddings", oracle::kMaster)[11][0] = 2.0f;
  target_->SetWeightType(checkpoint::DType::kFloat16);
  EXPECT_EQ(Law("R2").verdict, Verdict::kBroken);
}

TEST_F(PairLawsTest, DroppedPaddingRowsAreListedButLostVocabularyIsNot) {
  GrowVocabulary(*target_, 10);
  EXPECT_EQ(Law("R2").verdict, Verdict::kHeld);
  EXPECT_NE(Listed("R7", "dropped").text.find("rows 10 to 11"), std::string::npos);
  GrowVocabulary(*target_, 9);
  EXPECT_NE(Law("R2").verdict, Verdict::kHeld);
  EXPECT_NE(Judge().verdict, Verdict::kHeld);
}

TEST_F(PairLawsTest, ALostStepIsBrokenInBothLaws) {
  for (oracle::TensorInfo& info : target_->infos)
    if (info.step) info.step = 1;
  const Judgement judgement = Judge();
  EXPECT_EQ(judgement.root, "S6");
  EXPECT_EQ(Listed("R5", "step-differs", true).count, 1);
}

TEST_F(PairLawsTest, AChangedHyperParameterBreaksR5) {
  for (oracle::GroupInfo& group : target_->facts.groups) group.hyper_parameters["lr"] = "0.004";
  EXPECT_NE(Broken("R5", "hyper-parameter-differs").text.find("0.003"), std::string::npos);
}

TEST_F(PairLawsTest, HyperParametersOfOneSideAreListed) {
  for (oracle::GroupInfo& group : target_->facts.groups)
    group.hyper_parameters["amsgrad"] = "False";
  source_->facts.groups[0].hyper_parameters["bias_correction"] = "True";
  EXPECT_EQ(Law("R5").verdict, Verdict::kHeld);
  EXPECT_NE(Listed("R5", "hyper-parameters-made-up").text.find("amsgrad"), std::string::npos);
  EXPECT_NE(Listed("R5", "hyper-parameters-dropped").text.find("bias_correction"),
            std::string::npos);
}

TEST_F(PairLawsTest, MadeUpHyperParametersSayWhetherSomebodyDeclaredThem) {
  for (oracle::GroupInfo& group : target_->facts.groups)
    group.hyper_parameters["amsgrad"] = "False";
  const Subject source = SubjectOf(source_);
  Subject target = SubjectOf(target_);
  const auto text = [&] {
    for (const Finding& finding : CompareTrainingState(source, target).findings)
      if (finding.kind == "hyper-parameters-made-up") return finding.text;
    return std::string();
  };
  EXPECT_NE(text().find("nobody declared: amsgrad"), std::string::npos);
  target.groups_declared = true;
  EXPECT_NE(text().find("declared (--param-groups): amsgrad"), std::string::npos);
}

TEST_F(PairLawsTest, ASourceWithoutHyperParametersNeedsADeclaration) {
  for (oracle::GroupInfo& group : source_->facts.groups) group.hyper_parameters.clear();
  EXPECT_EQ(Law("R5").verdict, Verdict::kUndecided);
  EXPECT_EQ(Judge().verdict, Verdict::kUndecided);
  const Subject source = SubjectOf(source_);
  Subject target = SubjectOf(target_);
  target.groups_declared = true;
  EXPECT_EQ(CompareTrainingState(source, target).verdict, Verdict::kHeld);
  const auto declare = [&](double lr) {
    const auto group =
        checkpoint::MakeDict({{checkpoint::MakeString("lr"), checkpoint::MakeFloat(lr)}});
    target.declared_groups = checkpoint::MakeList({group, group});
    return CompareTrainingState(source, target);
  };
  EXPECT_EQ(declare(0.003).verdict, Verdict::kHeld);
  EXPECT_EQ(declare(0.004).findings.front().kind, "hyper-parameter-differs");
  target.declared_groups = checkpoint::MakeList({});
  EXPECT_EQ(CompareTrainingState(source, target).findings.front().kind, "declared-groups-differ");
}

TEST_F(PairLawsTest, GroupsCutAnewAreListed) {
  target_->facts.groups.push_back(target_->facts.groups[0]);
  target_->facts.groups[0].members = {"word_embeddings"};
  target_->facts.groups[2].members = {"dense.weight"};
  target_->Info("dense.weight").group = 2;
  EXPECT_EQ(Law("R5").verdict, Verdict::kHeld);
  EXPECT_EQ(Listed("R5", "groups-cut-anew").count, 1);
}

TEST_F(PairLawsTest, ALostOrChangedSchedulerBreaksR5) {
  source_->facts.carried["lr_scheduler"] = {{{}, Dict("num_steps", 48)}};
  EXPECT_EQ(Law("R5").verdict, Verdict::kBroken);
  target_->facts.carried["lr_scheduler"] = {{{}, Dict("num_steps", 48)}};
  EXPECT_EQ(Law("R5").verdict, Verdict::kHeld);
  target_->facts.carried["lr_scheduler"] = {{{}, Dict("num_steps", 0)}};
  Broken("R5", "scheduler-differs");
}

TEST_F(PairLawsTest, ALostLossScaleBreaksR5) {
  for (oracle::Counter& counter : target_->facts.counters)
    if (counter.name == "cur_scale") counter.value = 1;
  Broken("R5", "counter-changed");
  // Another type has another loss scale.
  target_->facts.dtype = "bf16";
  EXPECT_EQ(Law("R5").verdict, Verdict::kHeld);
}

TEST_F(PairLawsTest, StaleMastersOfTheTargetAreTheRoot) {
  target_->Value("norm.weight", oracle::kMaster).add_(1.0);
  target_->ShareOut();
  const Judgement judgement = Judge();
  EXPECT_EQ(judgement.root, "S4");
  EXPECT_EQ(judgement.consequences, (std::vector<std::string>{"R3", "R6"}));
}

TEST_F(PairLawsTest, R6IsUndecidedWhereALawOfTheTargetIs) {
  target_->facts.files.clear();
  EXPECT_EQ(Law("R6").verdict, Verdict::kUndecided);
  EXPECT_EQ(Judge().verdict, Verdict::kUndecided);
}

TEST_F(PairLawsTest, ASourceThatCannotBeAssembledIsUndecided) {
  source_->errors.emplace(
      FakeOracle::Key{source_->Index("dense.bias"), oracle::kExpAvg},
      checkpoint::Error{checkpoint::ErrorCode::kMissingFile, "x", "y", "z", ""});
  EXPECT_EQ(Law("R4").verdict, Verdict::kUndecided);
}

}  // namespace
}  // namespace certify
