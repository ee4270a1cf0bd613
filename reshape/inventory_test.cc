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
using checkpoint::Value;

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

TEST(InventoryTest, RankAndLayerNumbersThatAreNoneAreRefused) {
  for (const std::string odd :
       {"layer_4000000000-model_states.pt", "mp_rank_99999999999999999999_model_states.pt"}) {
    const DamagedRun run("deepspeed/pp2_z1_bf16_dp2");
    REQUIRE_RUN(run);
    fs::copy(run.step() / "layer_01-model_states.pt", run.step() / odd);
    fs::copy(run.step() / "layer_01-model_states.pt", run.step() / "layer_01-model_states.pt.bak");
    const auto result = run.Read();
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kInconsistent);
    EXPECT_EQ(result.error().found, odd);
    fs::remove(run.step() / odd);
    EXPECT_TRUE(run.Read().ok());
  }
}

TEST(InventoryTest, LayerFilesBehindTheModelAreRefused) {
  const DamagedRun run(kFusedRun);
  REQUIRE_RUN(run);
  for (const char* rank : {"00", "01"}) {
    fs::copy(run.step() / fmt::format("layer_03-model_{}-model_states.pt", rank),
             run.step() / fmt::format("layer_40-model_{}-model_states.pt", rank));
  }
  const auto result = run.Read();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kInconsistent);
  EXPECT_EQ(result.error().found, "files of layer 40");
}

// The model files of a Llama run as a tool writes them that does not say that the MLP is gated.
void ForgetGates(const fs::path& step) {
  for (const auto& entry : fs::directory_iterator(step)) {
    if (!entry.path().filename().string().starts_with("mp_rank_")) continue;
    const auto file = checkpoint::OpenTorchFile(entry.path());
    ASSERT_TRUE(file.ok());
    Value root = file.value().root;
    const Value args = checkpoint::Get(root, "args");
    root = checkpoint::WithEntry(
        root, "args",
        checkpoint::WithoutEntry(checkpoint::WithoutEntry(args, "swiglu"), "glu_activation"));
    root = checkpoint::WithoutEntry(root, "universal_checkpoint_info");
    const fs::path written = entry.path().string() + ".new";
    ASSERT_TRUE(checkpoint::WriteTorchFile(
                    written, root, {},
                    [](const checkpoint::Storage& storage, std::span<std::byte> bytes) {
                      const auto source = checkpoint::StorageBytes(storage);
                      std::copy(source.begin(), source.end(), bytes.begin());
                    })
                    .ok());
    fs::rename(written, entry.path());
  }
}

TEST(InventoryTest, GatesThatNothingDeclaresAreFoundByTheirWidth) {
  const DamagedRun run("megatron_deepspeed/r6_llama_tp2pp2dp2_z1_bf16");
  REQUIRE_RUN(run);
  EXPECT_TRUE(run.Read().value().undeclared_gates.empty());
  ForgetGates(run.step());
  const auto forgotten = run.Read();
  ASSERT_TRUE(forgotten.ok()) << forgotten.error().ToString();
  EXPECT_EQ(forgotten.value().undeclared_gates.size(), 4U);  // one a layer
  ReadOptions options;
  options.rules =
      checkpoint::ParseRules(
          R"({"name": "gated", "parameters": [{"canonical": ".*\\.mlp\\.dense_h_to_4h\\.weight",
              "parallel": "column", "fused": "gated-linear"}]})",
          "test")
          .value();
  const auto declared = run.Read(options);
  ASSERT_TRUE(declared.ok()) << declared.error().ToString();
  EXPECT_TRUE(declared.value().undeclared_gates.empty());
}

TEST(InventoryTest, PlainMlpIsNoGate) {
  const DamagedRun run(kFusedRun);
  REQUIRE_RUN(run);
  EXPECT_TRUE(run.Read().value().undeclared_gates.empty());
}

Value GivenGroup(double lr) {
  return Dict({{"lr", checkpoint::MakeFloat(lr)},
               {"betas", MakeList({checkpoint::MakeFloat(0.9), checkpoint::MakeFloat(0.95)})},
               {"eps", checkpoint::MakeFloat(1e-8)},
               {"weight_decay", checkpoint::MakeInt(0)}});
}

TEST(InventoryTest, HyperParametersOfElasticSourcesAreThoseGiven) {
  const DamagedRun run("deepspeed/z1_bf16_elastic_dp2");
  REQUIRE_RUN(run);
  const auto without = run.Read();
  ASSERT_TRUE(without.ok());
  ASSERT_EQ(without.value().groups.size(), 2u);
  EXPECT_TRUE(checkpoint::IsNone(without.value().groups[0].hyper_parameters));
  ReadOptions options;
  options.param_groups = MakeList({GivenGroup(0.5), GivenGroup(0.25)});
  const auto with = run.Read(options);
  ASSERT_TRUE(with.ok()) << with.error().ToString();
  EXPECT_EQ(checkpoint::AsNumber(checkpoint::Get(with.value().groups[1].hyper_parameters, "lr")),
            0.25);
}

TEST(InventoryTest, GivenHyperParametersAreCheckedKeyByKey) {
  const DamagedRun run("deepspeed/z1_bf16_elastic_dp2");
  REQUIRE_RUN(run);
  const auto error_with = [&](const Value& second) {
    ReadOptions options;
    options.param_groups = MakeList({GivenGroup(0.5), second});
    const auto read = run.Read(options);
    EXPECT_FALSE(read.ok());
    return read.ok() ? checkpoint::Error{} : read.error();
  };
  for (const char* key : {"lr", "betas", "eps", "weight_decay"}) {
    const auto missing = error_with(checkpoint::WithoutEntry(GivenGroup(0.5), key));
    EXPECT_EQ(missing.code, ErrorCode::kUsage);
    EXPECT_EQ(missing.found, "nothing for \"" + std::string(key) + "\" of group 1");
    const auto text =
        error_with(checkpoint::WithEntry(GivenGroup(0.5), key, checkpoint::MakeString("0.1")));
    EXPECT_NE(text.found.find("\"" + std::string(key) + "\" of group 1"), std::string::npos);
  }
  EXPECT_EQ(error_with(GivenGroup(-1)).code, ErrorCode::kUsage);
  EXPECT_EQ(error_with(checkpoint::WithEntry(GivenGroup(0.5), "params", MakeList({}))).code,
            ErrorCode::kUsage);
  ReadOptions one;
  one.param_groups = MakeList({GivenGroup(0.5)});
  EXPECT_EQ(run.Read(one).error().code, ErrorCode::kUsage);
}

TEST(InventoryTest, HyperParametersForFilesThatHaveTheirOwnAreRefused) {
  const DamagedRun run("deepspeed/z1_bf16_dp4");
  REQUIRE_RUN(run);
  ReadOptions options;
  options.param_groups = MakeList({GivenGroup(0.5), GivenGroup(0.25)});
  EXPECT_EQ(run.Read(options).error().code, ErrorCode::kUsage);
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
