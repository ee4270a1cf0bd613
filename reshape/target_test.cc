#include "reshape/target.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/tensor.h"
#include "checkpoint/tree.h"
#include "reshape/rank_layout.h"
#include "reshape/target_fixture.h"

namespace reshape {
namespace {

using checkpoint::AsInt;
using checkpoint::AsIntList;
using checkpoint::AsString;
using checkpoint::DType;
using checkpoint::ErrorCode;
using checkpoint::Get;
using checkpoint::GetIndex;
using checkpoint::GetPath;
using checkpoint::IsNone;
using checkpoint::Value;
using Numbers = std::vector<int64_t>;

Target LayOut(const Inventory& source, const TargetSpec& spec) {
  auto target = LayOutTarget(source, spec);
  EXPECT_TRUE(target.ok()) << (target.ok() ? "" : target.error().ToString());
  return target.ok() ? std::move(target.value()) : Target{};
}

TargetSpec Spec(int32_t tensor, int32_t pipeline, int32_t data, int32_t stage) {
  TargetSpec spec;
  spec.tensor_parallel_size = tensor;
  spec.pipeline_parallel_size = pipeline;
  spec.data_parallel_size = data;
  spec.zero_stage = stage;
  return spec;
}

Value OptimizerOf(const Target& target, const std::string& name) {
  return Get(TreeOf(target, name), "optimizer_state_dict");
}

Value ItemOf(const Value& list, size_t index) {
  const auto* items = checkpoint::SequenceItems(list);
  return items != nullptr && index < items->size() ? (*items)[index] : nullptr;
}

checkpoint::TensorView ViewOf(const Value& tensor) {
  auto view = checkpoint::DecodeTensor(tensor, "test");
  EXPECT_TRUE(view.ok());
  return view.ok() ? std::move(view.value()) : checkpoint::TensorView{};
}

std::vector<std::string> KeysOf(const Value& mapping) {
  std::vector<std::string> keys;
  if (const checkpoint::Items* items = checkpoint::MappingItems(mapping)) {
    for (const auto& [key, value] : *items) keys.push_back(AsString(key).value_or("?"));
  }
  return keys;
}

// 266240 elements over 768 ranks: padded to 267264, partitions of 348, the last three ranks hold
// 20, 0 and 0 real ones.
TEST(TargetTest, PaddingOfManyRanksIsRecordedByEachOfThem) {
  const Target target =
      LayOut(MakePlain({266240}, Wrapper::kFused, DType::kFloat16), Spec(1, 1, 768, 1));
  const int64_t expected[][3] = {{764, 0, 348}, {765, 328, 20}, {766, 348, 0}, {767, 348, 0}};
  for (const auto& [rank, padding, real] : expected) {
    const Value dict =
        OptimizerOf(target, fmt::format("zero_pp_rank_{}_mp_rank_00_optim_states.pt", rank));
    EXPECT_EQ(AsIntList(Get(dict, "group_paddings")), Numbers{padding}) << rank;
    EXPECT_EQ(AsIntList(Get(dict, "partition_count")), Numbers{768}) << rank;
    const auto master = ViewOf(ItemOf(Get(dict, "single_partition_of_fp32_groups"), 0));
    EXPECT_EQ(master.shape, Numbers{real}) << rank;
    EXPECT_EQ(master.storage->numel, 348) << rank;
    EXPECT_TRUE(master.requires_grad);
    EXPECT_EQ(
        ViewOf(Get(GetIndex(GetPath(dict, {"base_optimizer_state", "state"}), 0), "exp_avg")).shape,
        Numbers{348})
        << rank;
  }
}

TEST(TargetTest, Bf16OptimizerRecordsAllPaddingOnTheLastRank) {
  TargetSpec spec = Spec(1, 1, 768, 1);
  spec.wrapper = Wrapper::kBf16;
  const Target target = LayOut(MakePlain({266240}, Wrapper::kFused, DType::kBFloat16), spec);
  const int64_t expected[][2] = {{765, 0}, {766, 0}, {767, 1024}};
  for (const auto& [rank, padding] : expected) {
    const Value dict =
        OptimizerOf(target, fmt::format("bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt", rank));
    EXPECT_EQ(AsIntList(Get(dict, "group_paddings")), Numbers{padding}) << rank;
    EXPECT_EQ(ViewOf(ItemOf(Get(dict, "single_partition_of_fp32_groups"), 0)).shape, Numbers{348})
        << rank;
    EXPECT_FALSE(checkpoint::Has(dict, "zero_stage"));
    EXPECT_FALSE(checkpoint::Has(dict, "loss_scaler"));
  }
}

// 57 elements over 2 ranks: padded to 60, 30 and 27 real ones.
TEST(TargetTest, LastPartitionIsACutViewOfAWholeStorage) {
  const Target target =
      LayOut(MakePlain({50, 7}, Wrapper::kFused, DType::kFloat16), Spec(1, 1, 2, 2));
  const Value first = OptimizerOf(target, "zero_pp_rank_0_mp_rank_00_optim_states.pt");
  const Value last = OptimizerOf(target, "zero_pp_rank_1_mp_rank_00_optim_states.pt");
  EXPECT_EQ(ViewOf(ItemOf(Get(first, "single_partition_of_fp32_groups"), 0)).shape, Numbers{30});
  const auto master = ViewOf(ItemOf(Get(last, "single_partition_of_fp32_groups"), 0));
  EXPECT_EQ(master.shape, Numbers{27});
  EXPECT_EQ(master.storage->numel, 30);
  EXPECT_EQ(AsInt(Get(last, "zero_stage")), 2);
  const Value mappings = ItemOf(Get(last, "param_slice_mappings"), 0);
  EXPECT_EQ(KeysOf(mappings), (std::vector<std::string>{"p0", "p1"}));
  EXPECT_EQ(checkpoint::ClassName(Get(mappings, "p1")),
            "deepspeed.utils.tensor_fragment.fragment_address");
  EXPECT_EQ(AsInt(Get(Get(mappings, "p0"), "numel")), 20);
  EXPECT_EQ(AsInt(Get(Get(mappings, "p1"), "start")), 20);
}

TEST(TargetTest, DictionaryOfTheZeroOptimizerHasItsKeysInOrder) {
  const Target target = LayOut(MakeGpt({}), Spec(1, 1, 1, 1));
  const Value dict = OptimizerOf(target, "zero_pp_rank_0_mp_rank_00_optim_states.pt");
  EXPECT_EQ(KeysOf(dict),
            (std::vector<std::string>{"loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad",
                                      "base_optimizer_state", "single_partition_of_fp32_groups",
                                      "zero_stage", "group_paddings", "param_alignment_paddings",
                                      "partition_count", "ds_version", "param_slice_mappings"}));
  const Value scaler = Get(dict, "loss_scaler");
  EXPECT_EQ(checkpoint::ClassName(scaler), "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler");
  EXPECT_EQ(AsInt(Get(scaler, "cur_scale")), 4096);
  EXPECT_EQ(AsInt(Get(scaler, "cur_hysteresis")), 2);
  EXPECT_EQ(AsInt(Get(GetIndex(GetPath(dict, {"base_optimizer_state", "state"}), 1), "step")), 5);
  const Value group = ItemOf(GetPath(dict, {"base_optimizer_state", "param_groups"}), 1);
  EXPECT_EQ(KeysOf(group), (std::vector<std::string>{"name", "lr", "bias_correction",
                                                     "weight_decay", "step", "params"}));
  EXPECT_EQ(AsIntList(Get(group, "params")), Numbers{1});
}

TEST(TargetTest, StagesHoldTiedNamesFirstAndFollowTheCuts) {
  Inventory source = MakeGpt({.layers = 4});
  const Target target = LayOut(source, Spec(1, 2, 1, 1));
  // 4 layers from number 2 on: cuts 0, 4, 9.
  const Value shapes = ItemOf(Get(TreeOf(target, "mp_rank_01_model_states.pt"), "param_shapes"), 0);
  EXPECT_EQ(KeysOf(shapes),
            (std::vector<std::string>{
                "tied_modules.embed.word_embeddings.weight",
                "tied_modules.embed.position_embeddings.weight",
                "4.self_attention.query_key_value.weight", "4.self_attention.dense.weight",
                "5.self_attention.query_key_value.weight", "5.self_attention.dense.weight"}));
  EXPECT_TRUE(HasNotice(target, "stale-copy-made-up"));
}

TEST(TargetTest, StaleCopyIsKeptOnTheLastStageAndDroppedOnOne) {
  const Inventory source = MakeGpt({.stages = 2, .stale_copy = true});
  const Target kept = LayOut(source, Spec(1, 2, 2, 1));
  int64_t stale = 0;
  for (const Placement& placement : kept.placements) stale += placement.stale;
  EXPECT_GT(stale, 0);
  EXPECT_FALSE(HasNotice(kept, "stale-copy-made-up"));
  const Target dropped = LayOut(source, Spec(1, 1, 1, 1));
  for (const Placement& placement : dropped.placements) EXPECT_FALSE(placement.stale);
  EXPECT_TRUE(HasNotice(dropped, "stale-copy-dropped"));
}

TEST(TargetTest, StaleCopyThatLacksItsMasterIsCompletedNotMadeUp) {
  Inventory source = MakeGpt({.stages = 2, .stale_copy = true});
  source.tensors[1].stale_states.erase("fp32_master");
  const Target target = LayOut(source, Spec(1, 2, 2, 1));
  EXPECT_TRUE(HasNotice(target, "stale-copy-completed"));
  EXPECT_FALSE(HasNotice(target, "stale-copy-made-up"));
}

TEST(TargetTest, VocabularyRowsAreMadeUpOrDroppedExactly) {
  Inventory source = MakeGpt({});
  source.qkv_layout = checkpoint::QkvLayout::kPerHeadGroup;
  const Target grown = LayOut(source, Spec(2, 1, 1, 1));  // 6 rows become 8: a multiple of 2 x 2
  ASSERT_TRUE(HasNotice(grown, "vocabulary-rows-made-up"));
  EXPECT_EQ(
      AsInt(GetPath(TreeOf(grown, "mp_rank_01_model_states.pt"), {"args", "padded_vocab_size"})),
      8);
  Inventory two = MakeGpt({.tensor_ranks = 2});
  two.qkv_layout = checkpoint::QkvLayout::kPerHeadGroup;
  const Target shrunk = LayOut(two, Spec(1, 1, 1, 1));
  ASSERT_TRUE(HasNotice(shrunk, "vocabulary-rows-dropped"));
  for (const Notice& notice : shrunk.notices) {
    if (notice.kind != "vocabulary-rows-dropped") continue;
    EXPECT_NE(notice.text.find("rows 6 to 7"), std::string::npos) << notice.text;
  }
}

TEST(TargetTest, ArgsAndDegreesSayTheNewTopology) {
  Inventory source = MakeGpt({});
  source.qkv_layout = checkpoint::QkvLayout::kPerHeadGroup;
  const Target target = LayOut(source, Spec(2, 2, 3, 1));
  const Value root = TreeOf(target, "mp_rank_03_model_states.pt");
  EXPECT_EQ(AsInt(GetPath(root, {"args", "tensor_model_parallel_size"})), 2);
  EXPECT_EQ(AsInt(GetPath(root, {"args", "world_size"})), 12);
  EXPECT_EQ(AsInt(GetPath(root, {"args", "rank"})),
            7);  // stage 1 of pipe, data, model: 1 * 3 * 2 + 0 * 2 + 1
  EXPECT_EQ(AsInt(GetPath(root, {"args", "zero_stage"})), 1);
  EXPECT_EQ(AsInt(Get(root, "mp_world_size")), 4);
  EXPECT_EQ(AsInt(GetPath(root, {"checkpoint_parallel_dimensions", "pp_degree"})), 2);
  EXPECT_EQ(AsInt(GetPath(root, {"ds_config", "zero_optimization", "stage"})), 1);
  EXPECT_EQ(AsInt(GetPath(root, {"ds_config", "train_batch_size"})), 12);
  EXPECT_TRUE(HasNotice(target, "batch-size"));
  EXPECT_TRUE(HasNotice(target, "rank-mapping"));
}

TEST(TargetTest, GlobalBatchShrinksWhereTheRanksDoNotDivideIt) {
  const Target target = LayOut(MakeGpt({}), Spec(1, 1, 5, 1));
  EXPECT_EQ(AsInt(GetPath(TreeOf(target, "mp_rank_00_model_states.pt"),
                          {"ds_config", "train_batch_size"})),
            10);  // 1 x 2 x 5
}

TEST(TargetTest, TypeChangeRoundsMastersAndReplacesTheSection) {
  TargetSpec spec = Spec(1, 1, 1, 1);
  spec.dtype = DType::kBFloat16;
  spec.layout = NameLayout::kPlain;
  const Target target = LayOut(MakeGpt({}), spec);
  for (const Placement& placement : target.placements) EXPECT_NE(placement.state, "weight");
  const Value config = Get(TreeOf(target, "mp_rank_00_model_states.pt"), "ds_config");
  EXPECT_FALSE(checkpoint::Has(config, "fp16"));
  EXPECT_EQ(checkpoint::AsBool(GetPath(config, {"bf16", "enabled"})), true);
  EXPECT_TRUE(HasNotice(target, "loss-scaler-dropped"));
  EXPECT_TRUE(HasNotice(target, "weights-converted"));
  const Value scaler =
      Get(OptimizerOf(target, "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"), "loss_scaler");
  EXPECT_EQ(checkpoint::ClassName(scaler), "deepspeed.runtime.fp16.loss_scaler.LossScaler");
}

TEST(TargetTest, PlainModuleSharesOneStorageAGroup) {
  TargetSpec spec = Spec(1, 1, 2, 2);
  spec.layout = NameLayout::kPlain;
  const Target target = LayOut(MakeGpt({}), spec);
  const Value model =
      GetPath(TreeOf(target, "mp_rank_00_model_states.pt"), {"module", "language_model"});
  EXPECT_EQ(KeysOf(model), (std::vector<std::string>{"embedding", "encoder"}));
  const auto word = ViewOf(GetPath(model, {"embedding", "word_embeddings", "weight"}));
  const auto qkv =
      ViewOf(GetPath(model, {"encoder", "layers.1.self_attention.query_key_value.weight"}));
  EXPECT_EQ(word.storage, qkv.storage);
  EXPECT_EQ(qkv.offset, 24 + 12 + 48 + 16);
  EXPECT_EQ(checkpoint::ClassName(Get(model, "encoder")), "collections.OrderedDict");
  const Value names = ItemOf(Get(TreeOf(target, "mp_rank_00_model_states.pt"), "param_shapes"), 1);
  EXPECT_EQ(KeysOf(names).front(), "language_model.encoder.layers.0.input_layernorm.weight");
}

TEST(TargetTest, RescaledMomentsTakeTheLossScaleAndItsSquare) {
  TargetSpec spec = Spec(1, 1, 1, 1);
  const Target kept = LayOut(MakeGpt({}), spec);
  EXPECT_TRUE(HasNotice(kept, "unscaled-moments"));
  for (const Placement& placement : kept.placements) EXPECT_EQ(placement.factor, 1);
  spec.moments = Moments::kRescale;
  const Target rescaled = LayOut(MakeGpt({}), spec);
  for (const Placement& placement : rescaled.placements) {
    const float expected = placement.state == "exp_avg"      ? 4096.0F
                           : placement.state == "exp_avg_sq" ? 16777216.0F
                                                             : 1.0F;
    EXPECT_EQ(placement.factor, expected) << placement.state;
  }
}

TEST(TargetTest, RescaleWithNothingToRescaleIsSaid) {
  TargetSpec spec = Spec(1, 1, 1, 0);
  EXPECT_FALSE(HasNotice(LayOut(MakeGpt({}), spec), "nothing-to-rescale"));
  spec.moments = Moments::kRescale;
  const Target same = LayOut(MakeGpt({}), spec);
  EXPECT_TRUE(HasNotice(same, "nothing-to-rescale"));
  for (const Placement& placement : same.placements) EXPECT_EQ(placement.factor, 1);
}

TEST(TargetTest, DifferentStepsInOneFlatGroupAreRefused) {
  Inventory source = MakePlain({4, 4}, Wrapper::kUnfused, DType::kFloat16);
  source.tensors[1].step->value = 4;
  const auto target = LayOutTarget(source, Spec(1, 1, 1, 1));
  ASSERT_FALSE(target.ok());
  EXPECT_EQ(target.error().code, ErrorCode::kUnreachableTarget);
}

TEST(TargetTest, MissingMomentsAreZeroAndSaid) {
  Inventory source = MakePlain({4, 4}, Wrapper::kFp32, DType::kFloat32);
  source.tensors[1].states.erase("exp_avg");
  source.tensors[1].states.erase("exp_avg_sq");
  source.tensors[1].step.reset();
  const Target target = LayOut(source, Spec(1, 1, 1, 1));
  EXPECT_TRUE(HasNotice(target, "states-made-up"));
}

TEST(TargetTest, NoOptimizerStateStaysNone) {
  Inventory source = MakePlain({4}, Wrapper::kZero, DType::kBFloat16);
  source.tensors[0].states.erase("exp_avg");
  source.tensors[0].states.erase("exp_avg_sq");
  source.tensors[0].step.reset();
  const Target target = LayOut(source, Spec(1, 1, 2, 2));
  const Value dict = OptimizerOf(target, "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt");
  EXPECT_TRUE(checkpoint::MappingItems(GetPath(dict, {"base_optimizer_state", "state"}))->empty());
}

TEST(TargetTest, WeightsWithoutMastersCannotGetAnOptimizer) {
  Inventory source = MakePlain({4}, Wrapper::kZero, DType::kBFloat16);
  source.tensors[0].states.erase("fp32_master");
  const auto target = LayOutTarget(source, Spec(1, 1, 2, 1));
  ASSERT_FALSE(target.ok());
  EXPECT_EQ(target.error().code, ErrorCode::kMissingFile);
}

TEST(TargetTest, UniversalFolderHasOneFolderAParameter) {
  TargetSpec spec = Spec(1, 1, 1, 1);
  spec.universal = true;
  const Target target = LayOut(MakeGpt({}), spec);
  EXPECT_EQ(target.step_folder_name, "global_step4_universal");
  const Value word = TreeOf(target, "zero/tied_modules.embed.word_embeddings.weight/fp32.pt");
  EXPECT_EQ(KeysOf(word), (std::vector<std::string>{"cat_dim", "vocab_tensor", "param"}));
  EXPECT_EQ(ViewOf(Get(word, "param")).shape, (Numbers{5, 4}));
  EXPECT_EQ(ViewOf(Get(word, "param")).storage->numel, 24);
  EXPECT_EQ(AsInt(Get(TreeOf(target, "zero/2.self_attention.dense.weight/exp_avg.pt"), "cat_dim")),
            1);
  EXPECT_EQ(KeysOf(TreeOf(target, "zero/2.input_layernorm.weight/exp_avg_sq.pt")),
            std::vector<std::string>{"param"});
  EXPECT_EQ(AsInt(TreeOf(target, "zero/2.input_layernorm.weight/step.pt")), 5);
  const Value common = TreeOf(target, "zero/optimizer_state.pt");
  EXPECT_FALSE(checkpoint::Has(common, "base_optimizer_state"));
  EXPECT_TRUE(checkpoint::Has(common, "param_groups"));
  EXPECT_EQ(target.text_files.back().first, "latest_universal");
}

TEST(TargetTest, UniversalRefusesNamesThatAreNoFolder) {
  Inventory source = MakePlain({4}, Wrapper::kZero, DType::kBFloat16);
  source.tensors[0].name = "../outside";
  TargetSpec spec = Spec(1, 1, 1, 1);
  spec.universal = true;
  const auto target = LayOutTarget(source, spec);
  ASSERT_FALSE(target.ok());
  EXPECT_EQ(target.error().code, ErrorCode::kUnsupported);
}

TEST(TargetTest, UniversalFolderOfAPipelineRefusesWhatOnlyLayerFilesHold) {
  TargetSpec spec = Spec(1, 1, 1, 1);
  spec.universal = true;
  for (const Role role : {Role::kBuffer, Role::kFrozen}) {
    Inventory source = MakeGpt({});
    source.tensors[1].group = -1;
    source.tensors[1].role = role;
    const auto target = LayOutTarget(source, spec);
    ASSERT_FALSE(target.ok());
    EXPECT_EQ(target.error().code, ErrorCode::kUnsupported);
  }
}

TEST(TargetTest, UniversalFormDropsAllPaddingRowsAndSaysSo) {
  TargetSpec spec = Spec(1, 1, 1, 1);
  spec.universal = true;
  const Target target = LayOut(MakeGpt({}), spec);
  ASSERT_TRUE(HasNotice(target, "vocabulary-rows-dropped"));
}

TEST(TargetTest, WeightsAloneStayWeightsAlone) {
  Inventory source = MakePlain({4}, Wrapper::kNone, DType::kBFloat16);
  source.tensors[0].group = -1;
  source.tensors[0].role = Role::kFrozen;
  source.groups.clear();
  const Target target = LayOut(source, Spec(1, 1, 3, 0));
  ASSERT_EQ(target.files.size(), 1U);
  EXPECT_TRUE(IsNone(Get(TreeOf(target, "mp_rank_00_model_states.pt"), "optimizer")));
}

TEST(TargetTest, UnknownFilesAreLeftBehindAndNamed) {
  Inventory source = MakeGpt({});
  source.folder.files = {{"/nowhere/notes.txt", "notes.txt"}};
  EXPECT_TRUE(HasNotice(LayOut(source, Spec(1, 1, 2, 1)), "files-left-behind"));
}

TEST(TargetTest, RoundRobinDealsMembersOut) {
  EXPECT_EQ(RoundRobinOrder(7, 3), (std::vector<size_t>{0, 3, 6, 1, 4, 2, 5}));
  EXPECT_EQ(RoundRobinOrder(2, 5), (std::vector<size_t>{0, 1}));
}

TEST(TargetTest, HalvesAreCutAgainOnEachStage) {
  Inventory source = MakeGpt({.layers = 4});
  source.rules.group_rule = checkpoint::GroupRule::kMegatronHalves;
  // Ten weights on one stage: five and five; on two stages six each: three and three.
  source.groups.insert(source.groups.begin() + 1, source.groups[0]);
  auto& all = source.groups[0].tensors;
  source.groups[1].tensors.assign(all.begin() + 5, all.end());
  all.resize(5);
  const Target target = LayOut(source, Spec(1, 2, 1, 1));
  const Value shapes = Get(TreeOf(target, "mp_rank_01_model_states.pt"), "param_shapes");
  EXPECT_EQ(KeysOf(ItemOf(shapes, 0)),
            (std::vector<std::string>{"tied_modules.embed.word_embeddings.weight",
                                      "tied_modules.embed.position_embeddings.weight",
                                      "4.self_attention.query_key_value.weight"}));
  EXPECT_EQ(KeysOf(ItemOf(shapes, 1)).size(), 3U);
}

TEST(TargetTest, IdentityCopiesEveryFile) {
  Inventory source = MakeGpt({});
  checkpoint::FileName name;
  name.name = "mp_rank_00_model_states.pt";
  name.path = "/nowhere/global_step4/mp_rank_00_model_states.pt";
  source.folder.files = {name};
  const Target target = LayOut(source, {});
  ASSERT_EQ(target.files.size(), 1U);
  EXPECT_EQ(target.files[0].copied_from, name.path);
  EXPECT_TRUE(target.placements.empty());
  EXPECT_EQ(target.text_files.back(),
            (std::pair<std::string, std::string>{"latest", "global_step4"}));
}

}  // namespace
}  // namespace reshape
