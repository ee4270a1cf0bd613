// Flat groups without names, parameters without rules and many ranks, on small composed
// checkpoints.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/tree.h"
#include "reshape/composed_for_test.h"
#include "reshape/inventory.h"

namespace reshape {
namespace {

namespace fs = std::filesystem;
using checkpoint::DType;
using checkpoint::ErrorCode;
using checkpoint::MakeInt;
using checkpoint::MakeList;
using checkpoint::MakeNone;
using checkpoint::Value;

using Strings = std::vector<std::string>;

TEST_F(ComposedTest, GroupsSplitByDimensionsAreProved) {
  const auto result = ReadFused(
      {{"a", {2, 3}, Sequence(1, 6)}, {"b", {4}, Sequence(20, 4)}, {"c", {1, 2}, Sequence(40, 2)}},
      {Join({Sequence(1, 6), Sequence(40, 2)}), Sequence(20, 4)});
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_EQ(NamesOfGroup(result.value(), 0), (Strings{"a", "c"}));
  EXPECT_EQ(NamesOfGroup(result.value(), 1), (Strings{"b"}));
  EXPECT_EQ(result.value().wrapper, Wrapper::kFused);
}

TEST_F(ComposedTest, OrderThatNoRuleGivesIsFoundByContent) {
  const auto result = ReadFused(
      {{"a", {2, 3}, Sequence(1, 6)}, {"b", {4}, Sequence(20, 4)}, {"c", {1, 2}, Sequence(40, 2)}},
      {Join({Sequence(20, 4), Sequence(1, 6)}), Sequence(40, 2)});
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  const LogicalTensor& a = Named(result.value(), "a");
  EXPECT_EQ(a.states.at("fp32_master").pieces.front().offset, 4);
  EXPECT_EQ(Named(result.value(), "b").group, 0);
  EXPECT_EQ(Named(result.value(), "c").group, 1);
}

TEST_F(ComposedTest, ParametersOutsideTheOptimizerAreFrozen) {
  const auto result = ReadFused({{"a", {2, 3}, Sequence(1, 6)},
                                 {"frozen", {2, 3}, Sequence(70, 6)},
                                 {"c", {1, 2}, Sequence(40, 2)}},
                                {Join({Sequence(1, 6), Sequence(40, 2)})});
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_EQ(Named(result.value(), "frozen").role, Role::kFrozen);
  EXPECT_EQ(Named(result.value(), "c").role, Role::kTrainable);
}

TEST_F(ComposedTest, EqualTensorsAreNamedInModuleOrderAndNoticed) {
  const auto result = ReadFused({{"a", {3}, Sequence(1, 3)}, {"b", {3}, Sequence(1, 3)}},
                                {Join({Sequence(1, 3), Sequence(1, 3)})});
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_EQ(NamesOfGroup(result.value(), 0), (Strings{"a", "b"}));
  EXPECT_TRUE(Noticed(result.value(), "equal-tensors"));
}

TEST_F(ComposedTest, SearchGoesBackWhereAShorterTensorWouldFitFirst) {
  // Zeros of 2 and of 3 elements: taking the two first leaves three zeros that fit, the other way
  // round they fit as well, but only one order meets the numbers between them.
  const auto result =
      ReadFused({{"two", {2}, {0, 0}}, {"three", {3}, {0, 0, 0}}, {"mark", {1, 2}, Sequence(9, 2)}},
                {{0, 0, 0, 9, 10, 0, 0}});
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_EQ(Named(result.value(), "two").states.at("fp32_master").pieces.front().offset, 5);
  EXPECT_EQ(Named(result.value(), "three").states.at("fp32_master").pieces.front().offset, 0);
}

TEST_F(ComposedTest, MastersThatAreNotTheWeightsAreUnproved) {
  std::vector<float> stale = Join({Sequence(1, 6), Sequence(40, 2)});
  stale[7] = 3.5F;
  const auto result =
      ReadFused({{"a", {2, 3}, Sequence(1, 6)}, {"c", {1, 2}, Sequence(40, 2)}}, {stale});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kUnprovedOrder);
  EXPECT_TRUE(Contains(result.error().found, "1 of 2 parameters fit"));
  EXPECT_TRUE(Contains(result.error().found, "c (group 0, 1 of its 2 elements fit)"));
}

TEST_F(ComposedTest, MastersThatRoundToTheWeightsAreProved) {
  // 1.001 is not a bf16 number; it rounds to 1.
  const auto result = ReadFused({{"a", {2, 1}, {1.0F, 2.0F}}}, {{1.001F, 2.003F}});
  EXPECT_TRUE(result.ok());
}

TEST_F(ComposedTest, ParameterThatNoRuleNamesIsRefusedAtSeveralTensorRanks) {
  TorchComposer composer;
  for (int rank = 0; rank < 2; ++rank) {
    composer.Write(folder_.path() / "step" / fmt::format("mp_rank_{:02d}_model_states.pt", rank),
                   ModelFile(composer, {{"a", {2, 3}, Sequence(1, 6)}},
                             FusedOptimizer(composer, {Sequence(1, 6)}), 2));
  }
  const auto refused = ReadInventory(folder_.path() / "step", ReadOptions{});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnnamedParameter) << refused.error().ToString();
  ReadOptions options;
  options.rules =
      checkpoint::ParseRules(
          R"({"name": "mine", "parameters": [{"canonical": "a", "parallel": "row"}]})", "test")
          .value();
  const auto named = ReadInventory(folder_.path() / "step", options);
  ASSERT_TRUE(named.ok()) << named.error().ToString();
  EXPECT_EQ(named.value().tensors.front().shape, (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(named.value().topology.tensor_parallel_size, 2);
}

// A bare optimizer: ids 0, 1, 2 with states of the given shapes; an empty list is an id without an
// entry.
Value BareOptimizer(TorchComposer& composer, const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<std::pair<Value, Value>> state;
  std::vector<Value> ids;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Value id = MakeInt(static_cast<int64_t>(i));
    ids.push_back(id);
    if (shapes[i].empty()) continue;
    size_t numel = 1;
    for (const int64_t extent : shapes[i]) numel *= static_cast<size_t>(extent);
    state.emplace_back(id, Dict({{"step", MakeInt(3)},
                                 {"exp_avg", composer.Tensor(shapes[i], Sequence(1, numel))}}));
  }
  return Dict({{"state", checkpoint::MakeDict(std::move(state))},
               {"param_groups", MakeList({Dict({{"lr", checkpoint::MakeFloat(0.1)},
                                                {"params", MakeList(std::move(ids))}})})}});
}

TEST_F(ComposedTest, BareOptimizerIsMatchedByShapeInModuleOrder) {
  TorchComposer composer;
  composer.Write(folder_.path() / "step" / "mp_rank_00_model_states.pt",
                 ModelFile(composer,
                           {{"a", {2, 3}, Sequence(1, 6)},
                            {"frozen", {4}, Sequence(9, 4)},
                            {"c", {3, 2}, Sequence(1, 6)}},
                           BareOptimizer(composer, {{2, 3}, {3, 2}})));
  const auto result = ReadInventory(folder_.path() / "step", ReadOptions{});
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_EQ(NamesOfGroup(result.value(), 0), (Strings{"a", "c"}));
  EXPECT_FALSE(Noticed(result.value(), "group-order-unproved"));
}

TEST_F(ComposedTest, IdWithoutAnEntryTakesTheTensorInBetween) {
  TorchComposer composer;
  composer.Write(folder_.path() / "step" / "mp_rank_00_model_states.pt",
                 ModelFile(composer,
                           {{"a", {2, 3}, Sequence(1, 6)},
                            {"bias", {4}, Sequence(9, 4)},
                            {"unused", {1, 2}, Sequence(1, 2)},
                            {"c", {3, 2}, Sequence(1, 6)}},
                           BareOptimizer(composer, {{2, 3}, {}, {3, 2}})));
  const auto result = ReadInventory(folder_.path() / "step", ReadOptions{});
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_EQ(NamesOfGroup(result.value(), 0), (Strings{"a", "unused", "c"}));
  EXPECT_FALSE(Named(result.value(), "unused").step.has_value());
}

TEST_F(ComposedTest, TwoTensorsOfOneShapeAreNoticedWhereNothingProvesWhichItIs) {
  TorchComposer composer;
  composer.Write(folder_.path() / "step" / "mp_rank_00_model_states.pt",
                 ModelFile(composer, {{"a", {2, 3}, Sequence(1, 6)}, {"b", {2, 3}, Sequence(9, 6)}},
                           BareOptimizer(composer, {{2, 3}})));
  const auto result = ReadInventory(folder_.path() / "step", ReadOptions{});
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_EQ(NamesOfGroup(result.value(), 0), (Strings{"a"}));
  EXPECT_TRUE(Noticed(result.value(), "group-order-unproved"));
}

TEST_F(ComposedTest, FrozenWeightsOfAnotherTypeDoNotHinderTheSearch) {
  TorchComposer composer;
  Value model = ModelFile(composer, {{"a", {2, 3}, Sequence(1, 6)}, {"c", {1, 2}, Sequence(40, 2)}},
                          FusedOptimizer(composer, {Join({Sequence(40, 2), Sequence(1, 6)})}));
  const Value module = checkpoint::Get(model, "module");
  model = checkpoint::WithEntry(model, "module",
                                Dict({{"frozen", composer.Tensor({2}, {0.1F, 0.2F})},
                                      {"a", checkpoint::Get(module, "a")},
                                      {"c", checkpoint::Get(module, "c")}}));
  composer.Write(folder_.path() / "step" / "mp_rank_00_model_states.pt", model);
  const auto result = ReadInventory(folder_.path() / "step", ReadOptions{});
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_EQ(Named(result.value(), "frozen").role, Role::kFrozen);
  EXPECT_EQ(Named(result.value(), "a").states.at("fp32_master").pieces.front().offset, 2);
}

TEST_F(ComposedTest, OptimizerOfAnUnknownFormIsUnsupported) {
  TorchComposer composer;
  composer.Write(folder_.path() / "step" / "mp_rank_00_model_states.pt",
                 ModelFile(composer, {{"a", {1}, Sequence(1, 1)}},
                           Dict({{"somebody_elses_state", MakeInt(1)}})));
  EXPECT_EQ(ReadInventory(folder_.path() / "step", ReadOptions{}).error().code,
            ErrorCode::kUnsupported);
}

TEST_F(ComposedTest, FactoredOptimizerStateIsUnsupported) {
  TorchComposer composer;
  Value optimizer = FusedOptimizer(composer, {Sequence(1, 6)});
  const Value state = checkpoint::MakeDict(
      {{MakeInt(0), Dict({{"exp_avg_row", composer.Tensor({2}, Sequence(1, 2))}})}});
  optimizer = checkpoint::WithEntry(optimizer, "optimizer_state_dict",
                                    Dict({{"state", state}, {"param_groups", MakeList({})}}));
  composer.Write(folder_.path() / "step" / "mp_rank_00_model_states.pt",
                 ModelFile(composer, {{"a", {2, 3}, Sequence(1, 6)}}, optimizer));
  EXPECT_EQ(ReadInventory(folder_.path() / "step", ReadOptions{}).error().code,
            ErrorCode::kUnsupported);
}

TEST_F(ComposedTest, WeightsWithoutAnOptimizerAreRead) {
  TorchComposer composer;
  composer.Write(folder_.path() / "step" / "mp_rank_00_model_states.pt",
                 ModelFile(composer, {{"a", {2, 3}, Sequence(1, 6)}}, MakeNone()));
  const auto result = ReadInventory(folder_.path() / "step", ReadOptions{});
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_EQ(result.value().wrapper, Wrapper::kNone);
  EXPECT_EQ(result.value().tensors.front().role, Role::kTrainable);
  EXPECT_EQ(result.value().tensors.front().group, -1);
}

// ---- composed: a pipeline of more ranks than two digits count

Value Shapes(const std::vector<std::string>& names) {
  std::vector<std::pair<Value, Value>> items;
  for (const std::string& name : names)
    items.emplace_back(checkpoint::MakeString(name), checkpoint::MakeTorchSize({3}));
  return MakeList({checkpoint::MakeOrderedDict(std::move(items))});
}

TEST_F(ComposedTest, RanksAreNumbersNotText) {
  constexpr int kStages = 104, kDataRanks = 12;
  const fs::path step = folder_.path() / "step";
  for (int stage = 0; stage < kStages; ++stage) {
    TorchComposer composer;
    composer.Write(step / fmt::format("layer_{:02d}-model_states.pt", stage),
                   Dict({{"w", composer.Tensor({3}, Sequence(stage, 3), DType::kBFloat16)}}));
    composer.Write(step / fmt::format("mp_rank_{:02d}_model_states.pt", stage),
                   Dict({{"module", MakeNone()},
                         {"optimizer", MakeNone()},
                         {"param_shapes", Shapes({fmt::format("{}.w", stage)})},
                         {"dp_world_size", MakeInt(kDataRanks)},
                         {"mp_world_size", MakeInt(kStages)}}));
    for (int rank = 0; rank < kDataRanks; ++rank) {
      // 3 elements over 12 ranks: partitions of 2, so the second rank holds one and the others
      // none.
      const int real = rank == 0 ? 2 : (rank == 1 ? 1 : 0);
      const Value partition =
          composer.Tensor({real}, Sequence(stage + 2 * rank, static_cast<size_t>(real)));
      const Value optimizer = Dict(
          {{"base_optimizer_state", Dict({{"state", Dict({})}, {"param_groups", MakeList({})}})},
           {"single_partition_of_fp32_groups", MakeList({partition})},
           {"zero_stage", MakeInt(1)},
           {"partition_count", MakeList({MakeInt(kDataRanks)})}});
      composer.Write(
          step / fmt::format("zero_pp_rank_{}_mp_rank_{:02d}_optim_states.pt", rank, stage),
          Dict({{"optimizer_state_dict", optimizer}}));
    }
  }
  const auto result = ReadInventory(step, ReadOptions{});
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  const Inventory& inventory = result.value();
  EXPECT_EQ(inventory.topology, (Topology{1, kStages, kDataRanks, 1}));
  ASSERT_EQ(inventory.tensors.size(), static_cast<size_t>(kStages));
  for (int stage = 0; stage < kStages; ++stage) {
    const LogicalTensor& tensor = inventory.tensors[static_cast<size_t>(stage)];
    EXPECT_EQ(tensor.name, fmt::format("{}.w", stage));
    EXPECT_EQ(AllNumbers(tensor, tensor.states.at("fp32_master")), Sequence(stage, 3));
    EXPECT_EQ(tensor.stages, (std::vector<PipelineStage>{PipelineStage{stage}}));
  }
  EXPECT_EQ(inventory.cuts.size(), static_cast<size_t>(kStages) + 1);
  EXPECT_EQ(inventory.cuts[100], 100);
}

// One stage of a pipeline of two: a layer with one tensor of 2 elements for each group, by name of
// the group.
void WriteStage(const fs::path& step, int stage, const std::vector<std::string>& groups) {
  TorchComposer composer;
  std::vector<std::pair<std::string, Value>> layer;
  std::vector<Value> shapes, partitions, hyper, counts;
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string key = "w_" + groups[i];
    const auto numbers = Sequence(10 * stage + static_cast<int>(groups[i].size()), 2);
    layer.emplace_back(key, composer.Tensor({2}, numbers, DType::kBFloat16));
    shapes.push_back(
        checkpoint::MakeOrderedDict({{checkpoint::MakeString(fmt::format("{}.{}", stage, key)),
                                      checkpoint::MakeTorchSize({2})}}));
    partitions.push_back(composer.Tensor({2}, numbers));
    hyper.push_back(Dict({{"name", checkpoint::MakeString(groups[i])},
                          {"params", MakeList({MakeInt(static_cast<int64_t>(i))})}}));
    counts.push_back(MakeInt(1));
  }
  composer.Write(step / fmt::format("layer_{:02d}-model_states.pt", stage), Dict(std::move(layer)));
  composer.Write(step / fmt::format("mp_rank_{:02d}_model_states.pt", stage),
                 Dict({{"module", MakeNone()},
                       {"optimizer", MakeNone()},
                       {"param_shapes", MakeList(std::move(shapes))},
                       {"dp_world_size", MakeInt(1)},
                       {"mp_world_size", MakeInt(2)}}));
  const Value optimizer =
      Dict({{"base_optimizer_state",
             Dict({{"state", Dict({})}, {"param_groups", MakeList(std::move(hyper))}})},
            {"single_partition_of_fp32_groups", MakeList(std::move(partitions))},
            {"zero_stage", MakeInt(1)},
            {"partition_count", MakeList(std::move(counts))}});
  composer.Write(step / fmt::format("zero_pp_rank_0_mp_rank_{:02d}_optim_states.pt", stage),
                 Dict({{"optimizer_state_dict", optimizer}}));
}

TEST_F(ComposedTest, StageWithoutOneOfTheGroupsIsMatchedByName) {
  WriteStage(folder_.path() / "step", 0, {"decay", "nodecay"});
  WriteStage(folder_.path() / "step", 1, {"nodecay"});
  const auto result = ReadInventory(folder_.path() / "step", ReadOptions{});
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  ASSERT_EQ(result.value().groups.size(), 2u);
  EXPECT_EQ(NamesOfGroup(result.value(), 0), (Strings{"0.w_decay"}));
  EXPECT_EQ(NamesOfGroup(result.value(), 1), (Strings{"0.w_nodecay", "1.w_nodecay"}));
  EXPECT_EQ(Named(result.value(), "1.w_nodecay").group, 1);
}

TEST_F(ComposedTest, GroupThatNoOtherStageHasIsInconsistent) {
  WriteStage(folder_.path() / "step", 0, {"decay", "nodecay"});
  WriteStage(folder_.path() / "step", 1, {"other"});
  EXPECT_EQ(ReadInventory(folder_.path() / "step", ReadOptions{}).error().code,
            ErrorCode::kInconsistent);
}

TEST_F(ComposedTest, LayerFileThatParamShapesNamesIsMissing) {
  WriteStage(folder_.path() / "step", 0, {"decay"});
  WriteStage(folder_.path() / "step", 1, {"decay"});
  fs::remove(folder_.path() / "step" / "layer_01-model_states.pt");
  const auto result = ReadInventory(folder_.path() / "step", ReadOptions{});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kMissingFile);
  EXPECT_TRUE(Contains(result.error().found, "layer_01"));
}

}  // namespace
}  // namespace reshape
