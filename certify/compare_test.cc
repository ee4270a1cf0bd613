// `compare`: what counts as a difference, what is undecided, and two real runs of one model that
// differ in the scale of their gradients.
#include "certify/compare.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "certify/certify.h"
#include "certify/fake_oracle.h"

namespace certify {
namespace {

namespace fs = std::filesystem;

const fs::path kCorpus = SHARDPROOF_SOURCE_DIR "/fixtures/corpus/megatron_deepspeed";

nlohmann::ordered_json CompareFakes(const std::shared_ptr<FakeOracle>& a,
                                    const std::shared_ptr<FakeOracle>& b) {
  const auto json = CompareSubjects(SubjectOf(a), SubjectOf(b), 1);
  EXPECT_TRUE(json.ok());
  return json.ok() ? json.value() : nlohmann::ordered_json();
}

TEST(CompareTest, EqualCheckpointsAreTheSame) {
  const auto json = CompareFakes(SoundModel(), SoundModel());
  EXPECT_EQ(json["verdict"], "same");
  EXPECT_EQ(json["equal"], true);
  // 40 + 16 + 32 + 16 trainable elements in four states, 8 more of padding rows, 3 frozen, 2
  // counts.
  EXPECT_EQ(json["compared"], 112 * 4 + 5);
}

TEST(CompareTest, ADifferingTensorIsASentenceWithSharePlaceAndFactor) {
  auto b = SoundModel();
  b->Value("dense.weight", oracle::kExpAvg)[3][1] = 5.0F;
  b->Value("norm.weight", oracle::kExpAvg).mul_(2);
  const auto json = CompareFakes(SoundModel(), b);
  EXPECT_EQ(json["verdict"], "different");
  ASSERT_EQ(json["tensors"].size(), 2U);
  const std::string place = json["tensors"][0]["text"];
  EXPECT_EQ(place.rfind("dense.weight exp_avg: 1 of 32 elements (3.12 %) differ, by at most ", 0),
            0U)
      << place;
  EXPECT_NE(place.find("first at [3, 1]: a "), std::string::npos) << place;
  const std::string factor = json["tensors"][1]["text"];
  EXPECT_NE(factor.find("b is a times 2 throughout"), std::string::npos) << factor;
}

TEST(CompareTest, PaddingRowsAreToldApartAndDoNotCount) {
  auto b = SoundModel();
  b->Value("word_embeddings", oracle::kExpAvg)[11][0] = 7.0F;
  const auto differing = CompareFakes(SoundModel(), b);
  EXPECT_EQ(differing["verdict"], "same");
  ASSERT_EQ(differing["padding"].size(), 1U);
  EXPECT_EQ(differing["padding"][0]["text"],
            "word_embeddings exp_avg: padding rows: 1 of 8 elements of 2 rows differ");
  auto c = SoundModel();
  for (const char* state : {oracle::kWeight, oracle::kMaster, oracle::kExpAvg, oracle::kExpAvgSq}) {
    oracle::Assembled& held = c->State("word_embeddings", state);
    held.value = held.value.narrow(0, 0, 10);
    held.covered = 40;
  }
  c->Info("word_embeddings").shape = {10, 4};
  const auto missing = CompareFakes(SoundModel(), c);
  EXPECT_EQ(missing["verdict"], "same") << missing.dump(1);
  ASSERT_EQ(missing["padding"].size(), 4U);
  EXPECT_EQ(missing["padding"][0]["text"],
            "word_embeddings weight: padding rows: 2 more rows in a");
}

TEST(CompareTest, AVocabularyRowOfOneSideIsADifference) {
  auto b = SoundModel();
  b->Info("word_embeddings").vocabulary_rows = 9;
  const auto sizes = CompareFakes(SoundModel(), b);
  EXPECT_EQ(sizes["verdict"], "different");
  EXPECT_EQ(sizes["tensors"][0]["note"], "10 rows of a are vocabulary, and 9 of b");
  oracle::Assembled& held = b->State("word_embeddings", oracle::kWeight);
  held.value = held.value.narrow(0, 0, 9);
  held.covered = 36;
  const auto json = CompareFakes(SoundModel(), b);
  EXPECT_EQ(json["verdict"], "different");
  EXPECT_NE(json["tensors"][0]["text"].get<std::string>().find("shapes differ: (12,4) and (9,4)"),
            std::string::npos);
}

TEST(CompareTest, RowsOfOneSideAreUndecidedWhereNoFileSaysTheVocabulary) {
  auto a = SoundModel(), b = SoundModel();
  a->Info("word_embeddings").vocabulary_rows = 12;
  b->Info("word_embeddings").vocabulary_rows = 10;
  for (const auto& fake : {a, b})
    fake->facts.findings.push_back({"vocabulary-size-unknown", "", {"word_embeddings"}, false, {}});
  for (const char* state : {oracle::kWeight, oracle::kMaster, oracle::kExpAvg, oracle::kExpAvgSq}) {
    oracle::Assembled& held = b->State("word_embeddings", state);
    held.value = held.value.narrow(0, 0, 10);
    held.covered = 40;
  }
  EXPECT_EQ(CompareFakes(a, b)["verdict"], "undecided");
}

TEST(CompareTest, AStateThatIsNotCoveredIsUndecided) {
  auto b = SoundModel();
  b->State("dense.weight", oracle::kExpAvg).covered = 30;
  const auto json = CompareFakes(SoundModel(), b);
  EXPECT_EQ(json["verdict"], "undecided");
  EXPECT_EQ(json["undecided"][0]["text"],
            "dense.weight exp_avg: 2 of 32 elements of b are in no file");
}

TEST(CompareTest, FusedQkvOfAnotherTpIsUndecidedUntilDeclared) {
  auto a = SoundModel(), b = SoundModel();
  a->Info("dense.weight").fused_qkv = true;
  a->facts.tensor_parallel = 2;
  b->Value("dense.weight", oracle::kExpAvg)[0][0] = 9.0F;
  const auto undeclared = CompareFakes(a, b);
  EXPECT_EQ(undeclared["verdict"], "undecided");
  EXPECT_EQ(undeclared["undecided"][0]["names"], nlohmann::ordered_json({"dense.weight"}));
  EXPECT_EQ(undeclared["differing"], 0);
  for (const auto& fake : {a, b}) fake->facts.qkv_layout = checkpoint::QkvLayout::kPerHeadGroup;
  EXPECT_EQ(CompareFakes(a, b)["verdict"], "different");
}

TEST(CompareTest, WeightsThatOneSideLacksAreComparedWithItsMasters) {
  auto b = SoundModel();
  for (oracle::TensorInfo& info : b->infos)
    if (info.role == oracle::Role::kTrainable) info.states.erase(oracle::kWeight);
  EXPECT_EQ(CompareFakes(SoundModel(), b)["verdict"], "same");
  EXPECT_EQ(CompareFakes(b, SoundModel())["verdict"], "same");
  b->Value("dense.bias", oracle::kMaster).add_(1);
  const auto json = CompareFakes(SoundModel(), b);
  EXPECT_EQ(json["verdict"], "different");
  EXPECT_EQ(json["tensors"][0]["how"], "weight of a, fp32_master of b, the master rounded");
}

TEST(CompareTest, StatesOfOneSideAreADifferenceUnlessItsFilesAreMissing) {
  auto b = SoundModel();
  for (oracle::TensorInfo& info : b->infos) info.states.erase(oracle::kExpAvg);
  EXPECT_EQ(CompareFakes(SoundModel(), b)["verdict"], "different");
  b->facts.files[0].present = false;
  EXPECT_EQ(CompareFakes(SoundModel(), b)["verdict"], "undecided");
}

TEST(CompareTest, TwoStagesThatDifferInTheLossScaleAreNamed) {
  const fs::path unscaled = kCorpus / "r1b_tp2pp2dp2_z0_fp16" / "checkpoint";
  const fs::path scaled = kCorpus / "r2b_tp2pp2dp2_z1_fp16" / "checkpoint";
  if (!fs::exists(unscaled) || !fs::exists(scaled))
    GTEST_SKIP() << "the real checkpoints are not unpacked";
  const auto comparison = Compare(unscaled, scaled, {}, {});
  ASSERT_TRUE(comparison.ok()) << comparison.error().ToString();
  EXPECT_EQ(comparison.value()["equal"], false);
  EXPECT_GT(comparison.value()["differing"], 0);
  const auto& factor = comparison.value()["constant_factor"];
  ASSERT_TRUE(factor.is_object()) << comparison.value()["states"].dump(1);
  // About the loss scale 4096 less the clip factor.
  EXPECT_GT(factor["exp_avg"], 2000);
  EXPECT_LT(factor["exp_avg"], 4096);
  EXPECT_EQ(factor["is_square"], true);
  EXPECT_EQ(factor["exact"], false);
}

TEST(CompareTest, NamesOfOneSideAreListed) {
  const fs::path gpt = kCorpus / "r2a_tp2pp2dp2_z1_bf16" / "checkpoint";
  const fs::path llama = kCorpus / "r6_llama_tp2pp2dp2_z1_bf16" / "checkpoint";
  if (!fs::exists(gpt) || !fs::exists(llama))
    GTEST_SKIP() << "the real checkpoints are not unpacked";
  const auto comparison = Compare(gpt, llama, {}, {});
  ASSERT_TRUE(comparison.ok()) << comparison.error().ToString();
  EXPECT_EQ(comparison.value()["equal"], false);
  EXPECT_NE(comparison.value()["only_in_a"].dump().find("embedding.position_embeddings.weight"),
            std::string::npos);
  EXPECT_NE(comparison.value()["only_in_b"].dump().find("output_layer.weight"), std::string::npos);
}

}  // namespace
}  // namespace certify
