// Partitions of the ZeRO optimizer on small composed checkpoints: cuts inside parameters,
// contradicting and missing metadata.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/tree.h"
#include "reshape/composed_for_test.h"
#include "reshape/inventory.h"

namespace reshape {
namespace {

namespace fs = std::filesystem;
using checkpoint::ErrorCode;
using checkpoint::MakeInt;
using checkpoint::MakeList;
using checkpoint::MakeNone;
using checkpoint::Value;

// ---- composed: partitions of the ZeRO optimizer

struct ZeroRun {
  std::vector<Weight> weights{{"a", {2, 3}, Sequence(1, 6)}, {"b", {1, 5}, Sequence(20, 5)}};
  std::vector<std::vector<float>> partitions{Join({Sequence(1, 6)}),
                                             Sequence(20, 5)};  // 11 elements: 2 partitions of 6
  std::vector<int64_t> steps{4, 4};
  bool shapes = true;
  Value slice_maps[2];
  std::vector<int64_t> paddings{0, 1};
  bool round_robin = false;
};

Value Fragments(const std::vector<std::tuple<std::string, int64_t, int64_t>>& fragments) {
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [name, numel, start] : fragments) {
    items.emplace_back(
        checkpoint::MakeString(name),
        checkpoint::MakeInstance("deepspeed.utils.tensor_fragment", "fragment_address",
                                 Dict({{"numel", MakeInt(numel)}, {"start", MakeInt(start)}})));
  }
  return MakeList({checkpoint::MakeOrderedDict(std::move(items))});
}

class ZeroTest : public ComposedTest {
 protected:
  checkpoint::Result<Inventory> Read(const ZeroRun& run) {
    TorchComposer composer;
    const fs::path step = folder_.path() / "step";
    Value model = ModelFile(composer, run.weights, MakeNone());
    if (run.shapes) {
      std::vector<std::pair<Value, Value>> items;
      for (const Weight& weight : run.weights)
        items.emplace_back(checkpoint::MakeString(weight.name),
                           checkpoint::MakeTorchSize(weight.shape));
      model = checkpoint::WithEntry(model, "param_shapes",
                                    MakeList({checkpoint::MakeOrderedDict(std::move(items))}));
    }
    model = checkpoint::WithEntry(model, "dp_world_size", MakeInt(2));
    model = checkpoint::WithEntry(
        model, "ds_config",
        Dict({{"zero_optimization",
               Dict({{"round_robin_gradients", checkpoint::MakeBool(run.round_robin)}})}}));
    composer.Write(step / "mp_rank_00_model_states.pt", model);
    for (size_t rank = 0; rank < 2; ++rank) {
      std::vector<float> padded = run.partitions[rank];
      padded.resize(6, 0.0F);
      const Value state = checkpoint::MakeDict(
          {{MakeInt(0),
            Dict({{"step", MakeInt(run.steps[rank])}, {"exp_avg", FlatGroup(composer, padded)}})}});
      Value optimizer =
          Dict({{"base_optimizer_state",
                 Dict({{"state", state},
                       {"param_groups", MakeList({Dict({{"lr", checkpoint::MakeFloat(0.1)}})})}})},
                {"single_partition_of_fp32_groups",
                 MakeList({FlatGroup(composer, run.partitions[rank])})},
                {"zero_stage", MakeInt(2)},
                {"group_paddings", MakeList({MakeInt(run.paddings[rank])})},
                {"partition_count", MakeList({MakeInt(2)})}});
      if (run.slice_maps[rank])
        optimizer = checkpoint::WithEntry(optimizer, "param_slice_mappings", run.slice_maps[rank]);
      composer.Write(step / fmt::format("zero_pp_rank_{}_mp_rank_00_optim_states.pt", rank),
                     Dict({{"optimizer_state_dict", optimizer}}));
    }
    return ReadInventory(step, ReadOptions{});
  }
};

TEST_F(ZeroTest, ParameterOnTwoPartitionsHasTwoPieces) {
  ZeroRun run;
  run.weights = {{"a", {2, 4}, Sequence(1, 8)}, {"b", {3}, Sequence(20, 3)}};
  run.partitions = {Sequence(1, 6), Join({Sequence(7, 2), Sequence(20, 3)})};
  const auto result = Read(run);
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  const LogicalTensor& a = Named(result.value(), "a");
  const auto& pieces = a.states.at("exp_avg").pieces;
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[1].begin, 6);
  EXPECT_EQ(pieces[1].end, 8);
  EXPECT_EQ(pieces[1].holder.data_rank, DataRank{1});
  EXPECT_EQ(AllNumbers(a, a.states.at("fp32_master")), Sequence(1, 8));
  EXPECT_EQ(Named(result.value(), "b").step->value, 4);
  EXPECT_EQ(result.value().topology, (Topology{1, 1, 2, 2}));
  EXPECT_TRUE(result.value().notices.empty());
}

TEST_F(ZeroTest, StepsOfTwoFilesThatDifferAreInconsistent) {
  ZeroRun run;
  run.steps = {4, 5};
  EXPECT_EQ(Read(run).error().code, ErrorCode::kInconsistent);
}

TEST_F(ZeroTest, PartitionThatWasCutShortIsInconsistent) {
  ZeroRun run;
  run.partitions[0].resize(5);
  EXPECT_EQ(Read(run).error().code, ErrorCode::kInconsistent);
}

TEST_F(ZeroTest, FalseSliceMapsAreOverruledByContentAndNoticed) {
  ZeroRun run;
  run.round_robin = true;
  run.slice_maps[0] = Fragments({{"b", 5, 0}, {"a", 1, 5}});
  run.slice_maps[1] = Fragments({{"a", 5, 0}});
  const auto result = Read(run);
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_TRUE(Noticed(result.value(), "false-slice-maps"));
  EXPECT_EQ(Named(result.value(), "a").states.at("fp32_master").pieces.front().offset, 0);
}

TEST_F(ZeroTest, TrueSliceMapsAreNoFalseAlarm) {
  ZeroRun run;
  run.slice_maps[0] = Fragments({{"a", 6, 0}});
  run.slice_maps[1] = Fragments({{"b", 5, 0}});
  const auto result = Read(run);
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_FALSE(Noticed(result.value(), "false-slice-maps"));
}

TEST_F(ZeroTest, FalseShapesOrderIsOverruledByContent) {
  ZeroRun run;
  run.partitions = {Join({Sequence(20, 5), Sequence(1, 1)}), Sequence(2, 5)};
  run.slice_maps[0] = Fragments({{"b", 5, 0}, {"a", 1, 5}});
  run.slice_maps[1] = Fragments({{"a", 5, 0}});
  const auto result = Read(run);
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_TRUE(Noticed(result.value(), "param-shapes-overruled"));
  EXPECT_EQ(
      AllNumbers(Named(result.value(), "a"), Named(result.value(), "a").states.at("fp32_master")),
      Sequence(1, 6));
}

TEST_F(ZeroTest, ContradictingOrdersThatContentProvesNeitherOfAreRefused) {
  ZeroRun run;
  run.partitions = {Sequence(50, 6), Sequence(60, 5)};
  run.slice_maps[0] = Fragments({{"b", 5, 0}, {"a", 1, 5}});
  run.slice_maps[1] = Fragments({{"a", 5, 0}});
  EXPECT_EQ(Read(run).error().code, ErrorCode::kUnprovedOrder);
}

TEST_F(ZeroTest, PartitionsThatNothingNamesAreProvedByContent) {
  ZeroRun run;
  run.shapes = false;
  run.partitions = {Join({Sequence(20, 5), Sequence(1, 1)}), Sequence(2, 5)};
  TorchComposer composer;
  const auto result = Read(run);
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_EQ(AllNumbers(Named(result.value(), "a"), Named(result.value(), "a").states.at("exp_avg")),
            Sequence(1, 6));
  EXPECT_EQ(AllNumbers(Named(result.value(), "b"), Named(result.value(), "b").states.at("exp_avg")),
            Sequence(20, 5));
}

TEST_F(ZeroTest, FalsePaddingRecordsAreNoticedAndNotUsed) {
  ZeroRun run;
  run.paddings = {0, 5};
  const auto result = Read(run);
  ASSERT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_TRUE(Noticed(result.value(), "false-group-paddings"));
}

TEST_F(ZeroTest, ShapeThatIsNotTheWeightsIsInconsistent) {
  ZeroRun run;
  run.weights[0].shape = {2, 3};
  const auto result = Read(run);
  ASSERT_TRUE(result.ok());
  TorchComposer composer;
  Value model = ModelFile(composer, {{"a", {3, 2}, Sequence(1, 6)}, {"b", {1, 5}, Sequence(20, 5)}},
                          MakeNone());
  const Value shapes =
      checkpoint::Get(result.value().model_files.front().torch.root, "param_shapes");
  fs::remove(folder_.path() / "step" / "mp_rank_00_model_states.pt");
  composer.Write(folder_.path() / "step" / "mp_rank_00_model_states.pt",
                 checkpoint::WithEntry(model, "param_shapes", shapes));
  EXPECT_EQ(ReadInventory(folder_.path() / "step", ReadOptions{}).error().code,
            ErrorCode::kInconsistent);
}

}  // namespace
}  // namespace reshape
