// Reshaped checkpoints as torch.load alone sees them (rebuild_with_torch.py): whole tensors that
// meet the truth from the memory of the processes that trained them.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>

#include "reshape/plan_fixture.h"
#include "reshape/reshape.h"

namespace reshape {
namespace {

namespace fs = std::filesystem;

constexpr int kNoTorch = 77;

struct Case {
  std::string run;
  int32_t tensor, pipeline, data, stage;
  NameLayout layout;
};

class ReshapeTorchTest : public ::testing::TestWithParam<Case> {};

TEST_P(ReshapeTorchTest, RebuildsTheTruth) {
  const Case& wish = GetParam();
  const fs::path run = fs::path(SHARDPROOF_SOURCE_DIR) / "fixtures" / "corpus" / wish.run;
  const fs::path out = FreshFolder("reshape_torch") / "out";
  ReshapeOptions options;
  options.flush = false;
  options.read.qkv_layout = checkpoint::QkvLayout::kPerHeadGroup;
  options.target.tensor_parallel_size = wish.tensor;
  options.target.pipeline_parallel_size = wish.pipeline;
  options.target.data_parallel_size = wish.data;
  options.target.zero_stage = wish.stage;
  options.target.layout = wish.layout;
  const auto report = Reshape(run / "checkpoint", out, options);
  ASSERT_TRUE(report.ok()) << report.error().ToString();
  const std::string line = "'" SHARDPROOF_PYTHON "' '" SHARDPROOF_SOURCE_DIR
                           "/reshape/rebuild_with_torch.py' '" +
                           (out / report.value().step_folder_name).string() + "' '" +
                           (run / "truth.json").string() + "'";
  const int code = WEXITSTATUS(std::system(line.c_str()));
  if (code == kNoTorch) GTEST_SKIP() << SHARDPROOF_PYTHON " cannot import torch";
  EXPECT_EQ(code, 0) << line;
}

constexpr auto kPipeline = NameLayout::kPipeline;
constexpr auto kPlain = NameLayout::kPlain;

INSTANTIATE_TEST_SUITE_P(
    Corpus, ReshapeTorchTest,
    ::testing::Values(Case{"megatron_deepspeed/r1_tp4pp4dp1_z0_fp16", 2, 2, 2, 1, kPipeline},
                      Case{"megatron_deepspeed/r1_tp4pp4dp1_z0_fp16", 8, 1, 1, 1, kPipeline},
                      Case{"megatron_deepspeed/r1_tp4pp4dp1_z0_fp16", 2, 4, 3, 1, kPipeline},
                      Case{"megatron_deepspeed/r6_llama_tp2pp2dp2_z1_bf16", 4, 1, 3, 1, kPipeline},
                      Case{"deepspeed/z1_bf16_rr_dp3", 1, 1, 5, 2, kPlain},
                      Case{"deepspeed/z0_fp16_fused_dp2", 1, 1, 7, 1, kPlain},
                      Case{"deepspeed/z1_bf16_align_dp2", 1, 1, 3, 1, kPlain}),
    [](const auto& param) { return "Target" + std::to_string(param.index); });

}  // namespace
}  // namespace reshape
