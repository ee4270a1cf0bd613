// Whole checkpoints, hand-made and small: what is read, what is refused.
#include "oracle/oracle.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/tree.h"
#include "oracle/test_files.h"

namespace oracle {
namespace {

namespace fs = std::filesystem;
using checkpoint::ErrorCode;
using checkpoint::Value;

std::vector<float> Numbers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kFloat).reshape({-1}).contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

bool HasFinding(const Oracle& oracle, const std::string& kind, bool fault) {
  for (const Finding& finding : oracle.summary().findings) {
    if (finding.kind == kind && finding.fault == fault) return true;
  }
  return false;
}

// A plain DeepSpeed checkpoint: parameter w, 2 x 2, split over `tensor` ranks if asked; one
// optimizer group.
class HandMade : public ::testing::Test {
 protected:
  Entries Model(const Value& weight) {
    return {{"module", Dict({{"w", weight}})},         {"buffer_names", checkpoint::MakeList({})},
            {"optimizer", checkpoint::MakeNone()},     {"param_shapes", checkpoint::MakeNone()},
            {"dp_world_size", checkpoint::MakeInt(1)}, {"mp_world_size", checkpoint::MakeInt(1)},
            {"global_steps", checkpoint::MakeInt(3)},  {"skipped_steps", checkpoint::MakeInt(0)}};
  }
  static void Set(Entries& entries, const std::string& key, Value value) {
    for (auto& [name, old] : entries) {
      if (name == key) {
        old = std::move(value);
        return;
      }
    }
    entries.emplace_back(key, std::move(value));
  }
  Value Shapes() {
    return checkpoint::MakeList({Dict({{"w", checkpoint::MakeTorchSize({2, 2})}})});
  }
  // [1 2 3 4] on two ranks of two.
  Value Partition(const std::vector<float>& fp32, int64_t count) {
    return Dict(
        {{"optimizer_state_dict",
          Dict({{"zero_stage", checkpoint::MakeInt(1)},
                {"base_optimizer_state",
                 Dict({{"state", Numbered({Dict({{"step", checkpoint::MakeInt(3)},
                                                 {"exp_avg", writer_.Flat(fp32)}})})},
                       {"param_groups",
                        checkpoint::MakeList({Dict({{"lr", checkpoint::MakeFloat(0.5)}})})}})},
                {"single_partition_of_fp32_groups", checkpoint::MakeList({writer_.Flat(fp32)})},
                {"group_paddings", Ints({0})},
                {"partition_count", Ints({count})}})}});
  }
  fs::path Step() const { return folder_.path() / "global_step3"; }
  void WriteModel(int number, const Entries& entries) {
    writer_.Write(Step() / ("mp_rank_0" + std::to_string(number) + "_model_states.pt"),
                  Dict(entries));
    WriteText(folder_.path() / "latest", "global_step3");
  }
  checkpoint::Result<std::shared_ptr<const Oracle>> Open(const OpenOptions& options = {}) {
    return Oracle::Open(folder_.path(), options);
  }
  ErrorCode CodeOf(const OpenOptions& options = {}) {
    auto opened = Open(options);
    if (opened.ok()) {
      ADD_FAILURE() << "opened";
      return ErrorCode::kUsage;
    }
    EXPECT_NE(opened.error().expected, "");
    return opened.error().code;
  }

  TestFolder folder_;
  TreeWriter writer_;
};

TEST_F(HandMade, PartitionsOfTwoRanksAreOneTensor) {
  Entries model = Model(writer_.BFloats({1, 2, 3, 4}, {2, 2}));
  Set(model, "param_shapes", Shapes());
  Set(model, "dp_world_size", checkpoint::MakeInt(2));
  WriteModel(0, model);
  writer_.Write(Step() / "zero_pp_rank_0_mp_rank_00_optim_states.pt", Partition({1, 2}, 2));
  writer_.Write(Step() / "zero_pp_rank_1_mp_rank_00_optim_states.pt", Partition({3, 4}, 2));
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.error().ToString();
  const Oracle& oracle = *opened.value();
  ASSERT_EQ(oracle.tensors().size(), 1u);
  const TensorInfo& info = oracle.tensors()[0];
  EXPECT_EQ(info.shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(info.step, 3.0);
  EXPECT_EQ(info.group, 0);
  EXPECT_EQ(oracle.summary().wrapper, "DeepSpeedZeroOptimizer");
  EXPECT_EQ(oracle.summary().zero_stage, 1);
  EXPECT_EQ(oracle.summary().groups[0].hyper_parameters.at("lr"), "0.5");
  EXPECT_EQ(oracle.summary().groups[0].members, (std::vector<std::string>{"w"}));
  auto master = oracle.Assemble(0, kMaster);
  ASSERT_TRUE(master.ok());
  EXPECT_EQ(Numbers(master.value().value), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(master.value().covered, 4);
  auto parts = oracle.PartOfEachHolder(0, kExpAvg);
  ASSERT_TRUE(parts.ok());
  ASSERT_EQ(parts.value().size(), 2u);
  EXPECT_EQ(parts.value()[1].place.rank.data, 1);
  EXPECT_EQ(Numbers(parts.value()[1].flat), (std::vector<float>{3, 4}));
}

TEST_F(HandMade, MissingOptimizerFileIsUncoveredAndListed) {
  Entries model = Model(writer_.BFloats({1, 2, 3, 4}, {2, 2}));
  Set(model, "param_shapes", Shapes());
  Set(model, "dp_world_size", checkpoint::MakeInt(2));
  WriteModel(0, model);
  writer_.Write(Step() / "zero_pp_rank_1_mp_rank_00_optim_states.pt", Partition({3, 4}, 2));
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.error().ToString();
  auto master = opened.value()->Assemble(0, kMaster);
  ASSERT_TRUE(master.ok());
  EXPECT_EQ(master.value().covered, 2);
  EXPECT_EQ(Numbers(master.value().value), (std::vector<float>{0, 0, 3, 4}));
  bool listed = false;
  for (const FileFact& file : opened.value()->summary().files) {
    listed = listed || (file.name == "zero_pp_rank_0_mp_rank_00_optim_states.pt" && file.expected &&
                        !file.present);
  }
  EXPECT_TRUE(listed);
}

TEST_F(HandMade, RanksBeyondNineAreIntegers) {
  Entries model = Model(writer_.BFloats(
      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23},
      {24}));
  Set(model, "param_shapes",
      checkpoint::MakeList({Dict({{"w", checkpoint::MakeTorchSize({24})}})}));
  Set(model, "dp_world_size", checkpoint::MakeInt(12));
  WriteModel(0, model);
  for (int rank = 0; rank < 12; ++rank) {
    const auto first = static_cast<float>(2 * rank);
    writer_.Write(Step() / ("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt"),
                  Partition({first, first + 1}, 12));
  }
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.error().ToString();
  const std::vector<float> numbers = Numbers(opened.value()->Assemble(0, kMaster).value().value);
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], static_cast<float>(i));
}

TEST_F(HandMade, PartitionCountOfAnotherRunIsInconsistent) {
  Entries model = Model(writer_.BFloats({1, 2, 3, 4}, {2, 2}));
  Set(model, "param_shapes", Shapes());
  Set(model, "dp_world_size", checkpoint::MakeInt(2));
  WriteModel(0, model);
  writer_.Write(Step() / "zero_pp_rank_0_mp_rank_00_optim_states.pt", Partition({1, 2}, 4));
  EXPECT_EQ(CodeOf(), ErrorCode::kInconsistent);
}

TEST_F(HandMade, ParameterThatNoRuleNamesIsRefusedOnTwoTensorRanks) {
  for (int rank = 0; rank < 2; ++rank) {
    Entries model = Model(writer_.BFloats({1, 2, 3, 4}, {2, 2}));
    Set(model, "mp_world_size", checkpoint::MakeInt(2));
    WriteModel(rank, model);
  }
  EXPECT_EQ(CodeOf(), ErrorCode::kUnnamedParameter);
}

OpenOptions WithRules(const std::string& json) {
  OpenOptions options;
  auto rules = checkpoint::ParseRules(json, "test");
  EXPECT_TRUE(rules.ok()) << (rules.ok() ? "" : rules.error().ToString());
  options.rules = rules.value();
  return options;
}

TEST_F(HandMade, DeclaredSplitsAreJoined) {
  for (int rank = 0; rank < 2; ++rank) {
    const auto base = static_cast<float>(4 * rank);
    Entries model = Model(writer_.BFloats({base, base + 1, base + 2, base + 3}, {2, 2}));
    Set(model, "mp_world_size", checkpoint::MakeInt(2));
    WriteModel(rank, model);
  }
  struct Case {
    std::string rule;
    std::vector<float> expected;
  };
  const Case cases[] = {
      {R"("parallel": "column")", {0, 1, 2, 3, 4, 5, 6, 7}},
      {R"("parallel": "row")", {0, 1, 4, 5, 2, 3, 6, 7}},
      {R"("parallel": "column", "fused": "gated-linear")", {0, 1, 4, 5, 2, 3, 6, 7}},
  };
  for (const Case& test : cases) {
    auto opened = Open(
        WithRules(R"({"name": "mine", "parameters": [{"canonical": "w", )" + test.rule + "}]}"));
    ASSERT_TRUE(opened.ok()) << opened.error().ToString();
    auto weight = opened.value()->Assemble(0, kWeight);
    ASSERT_TRUE(weight.ok());
    EXPECT_EQ(Numbers(weight.value().value), test.expected) << test.rule;
    EXPECT_EQ(weight.value().covered, 8);
  }
}

// Each shard is [q q | k | v]: four query heads and two key/value heads over two ranks.
TEST_F(HandMade, QkvDeclaredPerShardIsAllQueriesThenAllKeysThenAllValues) {
  for (int rank = 0; rank < 2; ++rank) {
    const auto base = static_cast<float>(4 * rank);
    Entries model = Model(writer_.BFloats({base, base + 1, base + 2, base + 3}, {4, 1}));
    Set(model, "mp_world_size", checkpoint::MakeInt(2));
    Set(model, "args",
        Dict({{"num_attention_heads", checkpoint::MakeInt(4)},
              {"num_key_value_heads", checkpoint::MakeInt(2)}}));
    WriteModel(rank, model);
  }
  OpenOptions options = WithRules(
      R"({"name": "m", "parameters": [
          {"canonical": "w", "parallel": "column", "fused": "query-key-value"}]})");
  auto plain = Open(options);
  ASSERT_TRUE(plain.ok()) << plain.error().ToString();
  EXPECT_TRUE(plain.value()->summary().has_fused_qkv);
  EXPECT_EQ(Numbers(plain.value()->Assemble(0, kWeight).value().value),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
  options.qkv_layout = checkpoint::QkvLayout::kPerShard;
  auto declared = Open(options);
  ASSERT_TRUE(declared.ok());
  EXPECT_EQ(Numbers(declared.value()->Assemble(0, kWeight).value().value),
            (std::vector<float>{0, 1, 4, 5, 2, 6, 3, 7}));
}

TEST_F(HandMade, ReplicasThatDifferAreNamed) {
  for (int rank = 0; rank < 2; ++rank) {
    Entries model = Model(writer_.BFloats({1, 2, 3, rank == 0 ? 4.0F : 5.0F}, {2, 2}));
    Set(model, "mp_world_size", checkpoint::MakeInt(2));
    WriteModel(rank, model);
  }
  auto opened = Open(WithRules(
      R"({"name": "mine", "parameters": [{"canonical": "w", "parallel": "replicated"}]})"));
  ASSERT_TRUE(opened.ok()) << opened.error().ToString();
  auto weight = opened.value()->Assemble(0, kWeight);
  ASSERT_TRUE(weight.ok());
  EXPECT_EQ(weight.value().replicas_compared, 4);
  ASSERT_EQ(weight.value().disagreements.size(), 1u);
  const Disagreement& disagreement = weight.value().disagreements[0];
  EXPECT_EQ(disagreement.first_index, 3);
  EXPECT_EQ(disagreement.second_value, 5.0);
  EXPECT_EQ(disagreement.second.file, "global_step3/mp_rank_01_model_states.pt");
  EXPECT_FALSE(disagreement.known_stale);
}

TEST_F(HandMade, ShardThatDoesNotDivideIntoSubParametersIsInconsistent) {
  for (int rank = 0; rank < 2; ++rank) {
    Entries model = Model(writer_.BFloats({1, 2, 3}, {3, 1}));
    Set(model, "mp_world_size", checkpoint::MakeInt(2));
    WriteModel(rank, model);
  }
  auto opened = Open(WithRules(
      R"({"name": "m", "parameters": [
          {"canonical": "w", "parallel": "column", "fused": "gated-linear"}]})"));
  ASSERT_TRUE(opened.ok());
  auto weight = opened.value()->Assemble(0, kWeight);
  ASSERT_FALSE(weight.ok());
  EXPECT_EQ(weight.error().code, ErrorCode::kInconsistent);
}

TEST_F(HandMade, RowSplitOfAVectorIsInconsistent) {
  for (int rank = 0; rank < 2; ++rank) {
    Entries model = Model(writer_.BFloats({1, 2, 3}, {3}));
    Set(model, "mp_world_size", checkpoint::MakeInt(2));
    WriteModel(rank, model);
  }
  EXPECT_EQ(
      CodeOf(WithRules(R"({"name": "m", "parameters": [{"canonical": "w", "parallel": "row"}]})")),
      ErrorCode::kInconsistent);
}

TEST_F(HandMade, NamelessGroupThatNoOrderFitsIsUnproved) {
  Entries model = Model(writer_.BFloats({1, 2, 3, 4}, {2, 2}));
  Set(model, "optimizer",
      Dict({{"fp32_groups_flat", checkpoint::MakeList({writer_.Flat({1, 2, 3})})},
            {"optimizer_state_dict",
             Dict({{"state", Dict({})}, {"param_groups", checkpoint::MakeList({Dict({})})}})}}));
  WriteModel(0, model);
  EXPECT_EQ(CodeOf(), ErrorCode::kUnprovedOrder);
}

TEST_F(HandMade, StaleMastersOpenWithAFault) {
  Entries model = Model(writer_.BFloats({1, 2, 3, 4}, {2, 2}));
  Set(model, "optimizer",
      Dict({{"fp32_groups_flat", checkpoint::MakeList({writer_.Flat({9, 9, 9, 9})})},
            {"optimizer_state_dict",
             Dict({{"state", Dict({})}, {"param_groups", checkpoint::MakeList({Dict({})})}})}}));
  WriteModel(0, model);
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.error().ToString();
  EXPECT_TRUE(HasFinding(*opened.value(), "order-unproved", true));
  EXPECT_TRUE(opened.value()->summary().dummy_step);
  EXPECT_EQ(Numbers(opened.value()->Assemble(0, kMaster).value().value),
            (std::vector<float>{9, 9, 9, 9}));
}

TEST_F(HandMade, UnknownOptimizerIsUnsupported) {
  Entries model = Model(writer_.BFloats({1, 2, 3, 4}, {2, 2}));
  Set(model, "optimizer", Dict({{"momentum", checkpoint::MakeFloat(0.9)}}));
  WriteModel(0, model);
  EXPECT_EQ(CodeOf(), ErrorCode::kUnsupported);
}

TEST_F(HandMade, ZeroThreeAndExpertsAreUnsupported) {
  Entries model = Model(writer_.BFloats({1, 2, 3, 4}, {2, 2}));
  WriteModel(0, model);
  writer_.Write(Step() / "layer_0_expert_0_mp_rank_00_model_states.pt", Dict({}));
  EXPECT_EQ(CodeOf(), ErrorCode::kUnsupported);
  fs::remove(Step() / "layer_0_expert_0_mp_rank_00_model_states.pt");
  writer_.Write(Step() / "zero_pp_rank_0_mp_rank_00_model_states.pt", Dict({}));
  EXPECT_EQ(CodeOf(), ErrorCode::kUnsupported);
}

TEST_F(HandMade, NoModelFileIsMissing) {
  writer_.Write(Step() / "zero_pp_rank_0_mp_rank_00_optim_states.pt", Partition({1, 2}, 1));
  WriteText(folder_.path() / "latest", "global_step3");
  EXPECT_EQ(CodeOf(), ErrorCode::kMissingFile);
}

TEST_F(HandMade, TopologyAboveTheLimitIsRefused) {
  Entries model = Model(writer_.BFloats({1, 2, 3, 4}, {2, 2}));
  Set(model, "dp_world_size", checkpoint::MakeInt(int64_t{1} << 40));
  WriteModel(0, model);
  EXPECT_EQ(CodeOf(), ErrorCode::kLimitExceeded);
}

TEST_F(HandMade, WeightsWithoutOptimizerOpen) {
  WriteModel(0, Model(writer_.BFloats({1, 2, 3, 4}, {2, 2})));
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.error().ToString();
  EXPECT_EQ(opened.value()->summary().wrapper, "none");
  EXPECT_TRUE(opened.value()->summary().no_steps_taken);
}

}  // namespace
}  // namespace oracle
