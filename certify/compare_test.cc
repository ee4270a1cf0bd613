// `compare` on real checkpoints: equal with itself, and two runs of one model that differ in the
// scale of their gradients.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "certify/certify.h"

namespace certify {
namespace {

namespace fs = std::filesystem;

const fs::path kCorpus = SHARDPROOF_SOURCE_DIR "/fixtures/corpus/megatron_deepspeed";

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
