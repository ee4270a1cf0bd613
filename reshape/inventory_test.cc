// Refusals and declared forms, on damaged copies of real checkpoints.
#include "reshape/inventory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/tree.h"
#include "reshape/composed_for_test.h"

namespace reshape {
namespace {

namespace fs = std::filesystem;
using checkpoint::ErrorCode;
using checkpoint::MakeList;

// A copy of a real run that a test may damage; empty where the corpus is not there.
class DamagedRun {
 public:
  explicit DamagedRun(const std::string& run) {
    const fs::path source =
        fs::path(SHARDPROOF_SOURCE_DIR) / "fixtures" / "corpus" / run / "checkpoint";
    if (!fs::exists(source)) return;
    fs::copy(source, folder_.path() / "run", fs::copy_options::recursive);
    for (const auto& entry : fs::directory_iterator(folder_.path() / "run")) {
      if (entry.is_directory() && !entry.path().filename().string().ends_with("_universal"))
        step_ = entry.path();
    }
  }
  bool there() const { return !step_.empty(); }
  const fs::path& step() const { return step_; }
  checkpoint::Result<Inventory> Read(const ReadOptions& options = {}) const {
    return ReadInventory(folder_.path() / "run", options);
  }

 private:
  TemporaryFolder folder_;
  fs::path step_;
};

#define REQUIRE_RUN(run) \
  if (!(run).there()) GTEST_SKIP() << "the corpus is not there"

constexpr char kFusedRun[] = "megatron_deepspeed/r1b_tp2pp2dp2_z0_fp16";
constexpr char kBf16Run[] = "megatron_deepspeed/r2a_tp2pp2dp2_z1_bf16";
constexpr char kPerShardRun[] = "megatron_deepspeed/r8_head_tp2pp2dp2_z1_bf16_v96";

TEST(InventoryTest, MissingModelFileIsNamed) {
  const DamagedRun run(kFusedRun);
  REQUIRE_RUN(run);
  fs::remove(run.step() / "mp_rank_02_model_states.pt");
  const auto result = run.Read();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kMissingFile);
  EXPECT_TRUE(Contains(result.error().found, "mp_rank_02_model_states.pt"));
}

TEST(InventoryTest, MissingOptimizerFilesAreListed) {
  const DamagedRun run(kBf16Run);
  REQUIRE_RUN(run);
  fs::remove(run.step() / "bf16_zero_pp_rank_1_mp_rank_03_optim_states.pt");
  fs::remove(run.step() / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt");
  const auto result = run.Read();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kMissingFile);
  EXPECT_TRUE(
      Contains(result.error().found,
               "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt, bf16_zero_pp_rank_1_mp_rank_03"));
}

TEST(InventoryTest, NoOptimizerFileAtAllIsMissingFiles) {
  const DamagedRun run(kBf16Run);
  REQUIRE_RUN(run);
  for (int mp_number = 0; mp_number < 4; ++mp_number) {
    for (int data = 0; data < 2; ++data) {
      fs::remove(run.step() / fmt::format("bf16_zero_pp_rank_{}_mp_rank_{:02d}_optim_states.pt",
                                          data, mp_number));
    }
  }
  const auto result = run.Read();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kMissingFile);
  EXPECT_TRUE(Contains(result.error().found, "bf16_zero_pp_rank_1_mp_rank_03_optim_states.pt"));
}

TEST(InventoryTest, MissingLayerFileOfOneTensorRankIsNamed) {
  const DamagedRun run(kFusedRun);
  REQUIRE_RUN(run);
  fs::remove(run.step() / "layer_04-model_01-model_states.pt");
  const auto result = run.Read();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kMissingFile);
  EXPECT_TRUE(Contains(result.error().found, "layer_04-model_01-model_states.pt"));
}

TEST(InventoryTest, MissingWholeLayerIsNamed) {
  for (const char* name : {kFusedRun, kBf16Run}) {
    const DamagedRun run(name);
    REQUIRE_RUN(run);
    fs::remove(run.step() / "layer_04-model_00-model_states.pt");
    fs::remove(run.step() / "layer_04-model_01-model_states.pt");
    const auto result = run.Read();
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kMissingFile) << result.error().ToString();
    EXPECT_TRUE(Contains(result.error().found, "layer_04-model_00-model_states.pt"));
  }
}

TEST(InventoryTest, ModelFileBeyondTheTopologyIsInconsistent) {
  const DamagedRun run(kFusedRun);
  REQUIRE_RUN(run);
  fs::copy(run.step() / "mp_rank_03_model_states.pt", run.step() / "mp_rank_04_model_states.pt");
  EXPECT_EQ(run.Read().error().code, ErrorCode::kInconsistent);
}

TEST(InventoryTest, TwoNamesOfOneRankAreInconsistent) {
  const DamagedRun run(kFusedRun);
  REQUIRE_RUN(run);
  fs::copy(run.step() / "mp_rank_03_model_states.pt", run.step() / "mp_rank_003_model_states.pt");
  EXPECT_EQ(run.Read().error().code, ErrorCode::kInconsistent);
}

TEST(InventoryTest, OptimizerFileBeyondTheTopologyIsInconsistent) {
  const DamagedRun run(kBf16Run);
  REQUIRE_RUN(run);
  fs::copy(run.step() / "bf16_zero_pp_rank_1_mp_rank_03_optim_states.pt",
           run.step() / "bf16_zero_pp_rank_2_mp_rank_03_optim_states.pt");
  EXPECT_EQ(run.Read().error().code, ErrorCode::kInconsistent);
}

TEST(InventoryTest, SwappedLayerFilesAreNotProved) {
  const DamagedRun run(kFusedRun);
  REQUIRE_RUN(run);
  fs::rename(run.step() / "layer_03-model_00-model_states.pt", run.step() / "kept");
  fs::rename(run.step() / "layer_05-model_00-model_states.pt",
             run.step() / "layer_03-model_00-model_states.pt");
  fs::rename(run.step() / "kept", run.step() / "layer_05-model_00-model_states.pt");
  const auto result = run.Read();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kUnprovedOrder) << result.error().ToString();
}

TEST(InventoryTest, DeclaredPerShardQueryKeyValueIsGatheredByKind) {
  const DamagedRun run(kPerShardRun);
  REQUIRE_RUN(run);
  ReadOptions options;
  const auto plain = run.Read(options);
  options.qkv_layout = checkpoint::QkvLayout::kPerShard;
  const auto declared = run.Read(options);
  ASSERT_TRUE(plain.ok() && declared.ok());
  const LogicalTensor& first = Named(plain.value(), "2.self_attention.query_key_value.weight");
  const LogicalTensor& second = Named(declared.value(), "2.self_attention.query_key_value.weight");
  EXPECT_TRUE(first.sub_parameter_rows.empty());
  EXPECT_EQ(second.sub_parameter_rows, (std::vector<int64_t>{32, 32, 32}));
  const auto shards = AllNumbers(first, first.states.at("fp32_master"));
  const auto kinds = AllNumbers(second, second.states.at("fp32_master"));
  // Two shards of [q k v], 16 rows of 32 each: rows 0-15 of the shards are q of rank 0, rows 48-63
  // q of rank 1.
  const auto row = [](const std::vector<float>& all, size_t index) {
    return std::vector<float>(all.begin() + static_cast<int64_t>(index) * 32,
                              all.begin() + static_cast<int64_t>(index + 1) * 32);
  };
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(row(kinds, i), row(shards, i));            // q of rank 0
    EXPECT_EQ(row(kinds, 16 + i), row(shards, 48 + i));  // q of rank 1
    EXPECT_EQ(row(kinds, 32 + i), row(shards, 16 + i));  // k of rank 0
    EXPECT_EQ(row(kinds, 80 + i), row(shards, 80 + i));  // v of rank 1
  }
}

TEST(InventoryTest, UserRulesWinAndTheDisagreementIsNoticed) {
  const DamagedRun run(kBf16Run);
  REQUIRE_RUN(run);
  ReadOptions options;
  options.rules =
      checkpoint::ParseRules(R"({"name": "mine", "parameters": [)"
                             R"({"canonical": "layers\\.0\\.self_attention\\.dense\\.weight",)"
                             R"( "parallel": "column"}]})",
                             "test")
          .value();
  const auto result = run.Read(options);
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_EQ(Named(result.value(), "2.self_attention.dense.weight").parallel,
            checkpoint::Parallel::kColumn);
  EXPECT_EQ(Named(result.value(), "3.self_attention.dense.weight").parallel,
            checkpoint::Parallel::kRow);
  bool noticed = false;
  for (const Notice& notice : result.value().notices) noticed |= notice.kind == "rules-disagree";
  EXPECT_TRUE(noticed);
}

TEST(InventoryTest, HyperParametersOfElasticSourcesAreThoseGiven) {
  const DamagedRun run("deepspeed/z1_bf16_elastic_dp2");
  REQUIRE_RUN(run);
  const auto without = run.Read();
  ASSERT_TRUE(without.ok());
  ASSERT_EQ(without.value().groups.size(), 2u);
  EXPECT_TRUE(checkpoint::IsNone(without.value().groups[0].hyper_parameters));
  ReadOptions options;
  options.param_groups = MakeList(
      {Dict({{"lr", checkpoint::MakeFloat(0.5)}}), Dict({{"lr", checkpoint::MakeFloat(0.25)}})});
  const auto with = run.Read(options);
  ASSERT_TRUE(with.ok());
  EXPECT_EQ(checkpoint::AsNumber(checkpoint::Get(with.value().groups[1].hyper_parameters, "lr")),
            0.25);
  options.param_groups = MakeList({Dict({})});
  EXPECT_EQ(run.Read(options).error().code, ErrorCode::kUndeclared);
}

TEST(InventoryTest, RoundRobinGroupsAreInModuleOrder) {
  const DamagedRun run("deepspeed/z1_bf16_rr_dp3");
  REQUIRE_RUN(run);
  const auto result = run.Read();
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.value().round_robin);
  for (const Group& group : result.value().groups)
    EXPECT_TRUE(std::is_sorted(group.tensors.begin(), group.tensors.end()));
}

}  // namespace
}  // namespace reshape
