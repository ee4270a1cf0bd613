// Every real checkpoint at stages 0 to 2 to other topologies, stages, types and layouts and back:
// what is read again is the same, element for element.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "checkpoint/tree.h"
#include "reshape/inventory_compare.h"
#include "reshape/plan_fixture.h"
#include "reshape/reshape.h"

namespace reshape {
namespace {

namespace fs = std::filesystem;
using checkpoint::DType;
using checkpoint::QkvLayout;

struct Wish {
  int32_t tensor, pipeline, data, stage;
  std::optional<NameLayout> layout = std::nullopt;
  std::optional<DType> dtype = std::nullopt;
  std::optional<Wrapper> wrapper = std::nullopt;
  bool universal = false;
};

fs::path Corpus() { return fs::path(SHARDPROOF_SOURCE_DIR) / "fixtures" / "corpus"; }

std::string Text(const Wish& wish) {
  return fmt::format(
      "tp{}-pp{}-dp{} stage {}{}{}{}", wish.tensor, wish.pipeline, wish.data, wish.stage,
      wish.universal ? " universal" : "",
      wish.layout ? (*wish.layout == NameLayout::kPlain ? " plain" : " pipeline") : "",
      wish.dtype ? " " + std::string(checkpoint::DTypeName(*wish.dtype)) : "");
}

TargetSpec SpecOf(const Wish& wish) {
  TargetSpec spec;
  spec.tensor_parallel_size = wish.tensor;
  spec.pipeline_parallel_size = wish.pipeline;
  spec.data_parallel_size = wish.data;
  spec.zero_stage = wish.stage;
  spec.layout = wish.layout;
  spec.dtype = wish.dtype;
  spec.wrapper = wish.wrapper;
  spec.universal = wish.universal;
  return spec;
}

int64_t VocabularyRows(const Inventory& inventory) {
  for (const LogicalTensor& tensor : inventory.tensors) {
    if (tensor.parallel == checkpoint::Parallel::kVocabulary) return tensor.shape[0];
  }
  return 0;
}

class CorpusReshapeTest : public ::testing::Test {
 public:
  // Returns whether the target is legal; then it was made, read again and compared, and so was the
  // way back.
  static bool There(const fs::path& run, const Wish& wish, const ReadOptions& read) {
    const std::string what = run.filename().string() + " to " + Text(wish);
    const auto source = ReadInventory(run / "checkpoint", read);
    EXPECT_TRUE(source.ok()) << what << ": " << source.error().ToString();
    if (!source.ok()) return false;
    const std::string why = WhyUnreachable(source.value(), SpecOf(wish));
    if (!why.empty()) return false;
    // Stage 0 of a pipeline that is no transformer names nothing: on one stage a tied module looks
    // like any other layer.
    const bool generic = source.value().layout == NameLayout::kPipeline && !source.value().megatron;
    if (generic && wish.pipeline == 1 && wish.stage == 0) return true;
    // Buffers of a pipeline are in layer files alone, and a universal folder has none.
    if (generic && wish.universal) return false;
    const fs::path folder = FreshFolder("corpus_reshape_" + run.filename().string());
    ReshapeOptions options{read, SpecOf(wish)};
    options.flush = false;
    const auto report = Reshape(run / "checkpoint", folder / "there", options);
    EXPECT_TRUE(report.ok()) << what << ": " << (report.ok() ? "" : report.error().ToString());
    if (!report.ok()) return true;
    const auto target = ReadInventory(folder / "there", read);
    EXPECT_TRUE(target.ok()) << what
                             << ", read again: " << (target.ok() ? "" : target.error().ToString());
    if (!target.ok()) return true;
    Expect(source.value(), target.value(), what, wish.universal);
    CheckTopology(target.value(), wish, what);
    if (!generic || wish.pipeline > 1) Back(source.value(), target.value(), read, what);
    fs::remove_all(folder);
    return true;
  }

  static void CheckTopology(const Inventory& target, const Wish& wish, const std::string& what) {
    EXPECT_EQ(target.topology.tensor_parallel_size, wish.tensor) << what;
    EXPECT_EQ(target.topology.pipeline_parallel_size, wish.pipeline) << what;
    if (wish.universal) return;
    EXPECT_EQ(target.topology.data_parallel_size, wish.data) << what;
    EXPECT_EQ(target.topology.zero_stage, wish.stage) << what;
  }

  static void Expect(const Inventory& source, const Inventory& target, const std::string& what,
                     bool universal) {
    CompareOptions options;
    options.weights = options.frozen = !(universal && source.layout == NameLayout::kPipeline);
    const Comparison comparison = CompareInventories(source, target, options);
    EXPECT_GT(comparison.compared, 0) << what;
    for (size_t i = 0; i < std::min<size_t>(comparison.differences.size(), 5); ++i) {
      ADD_FAILURE() << what << ": " << comparison.differences[i] << " ("
                    << comparison.differences.size() << " in all)";
    }
  }

  static void Back(const Inventory& source, const Inventory& between, const ReadOptions& read,
                   const std::string& what) {
    const fs::path folder = between.folder.run_folder.parent_path();
    TargetSpec spec;
    spec.tensor_parallel_size = source.topology.tensor_parallel_size;
    spec.pipeline_parallel_size = source.topology.pipeline_parallel_size;
    spec.data_parallel_size = source.topology.data_parallel_size;
    spec.zero_stage = source.topology.zero_stage;
    spec.layout = source.layout;
    spec.dtype = source.weight_dtype;
    spec.wrapper = source.wrapper;
    spec.cuts = source.layout == NameLayout::kPipeline ? source.cuts : std::vector<int64_t>{};
    ReshapeOptions options{read, spec};
    options.flush = false;
    const auto report = Reshape(folder / "there", folder / "back", options);
    EXPECT_TRUE(report.ok()) << what
                             << ", back: " << (report.ok() ? "" : report.error().ToString());
    if (!report.ok()) return;
    const auto again = ReadInventory(folder / "back", read);
    EXPECT_TRUE(again.ok()) << what
                            << ", back, read: " << (again.ok() ? "" : again.error().ToString());
    if (!again.ok()) return;
    CompareOptions compare;
    compare.frozen_bits = between.weight_dtype == source.weight_dtype;
    compare.vocabulary_rows_between = VocabularyRows(between);
    const Comparison comparison = CompareInventories(source, again.value(), compare);
    for (size_t i = 0; i < std::min<size_t>(comparison.differences.size(), 5); ++i) {
      ADD_FAILURE() << what << ", back: " << comparison.differences[i] << " ("
                    << comparison.differences.size() << " in all)";
    }
  }
};

constexpr auto kPlain = NameLayout::kPlain;
constexpr auto kPipeline = NameLayout::kPipeline;

const std::vector<Wish>& MegatronWishes() {
  static const std::vector<Wish> wishes = {
      {2, 2, 2, 1},
      {1, 1, 1, 1},
      {8, 1, 1, 1},
      {2, 4, 3, 1},
      {1, 2, 5, 0},
      {4, 2, 1, 0},
      {2, 1, 2, 2, kPlain},
      {1, 1, 3, 1, kPlain},
      {1, 4, 1, 1, kPipeline},
      {2, 2, 2, 1, kPipeline, DType::kBFloat16},
      {1, 2, 2, 0, kPipeline, DType::kFloat16},
      {2, 1, 1, 0, kPlain, DType::kFloat32},
      {2, 2, 1, 1, std::nullopt, std::nullopt, std::nullopt, true},
      {2, 2, 4, 1, kPipeline, DType::kBFloat16, Wrapper::kZero},
      {1, 1, 2, 1, kPlain, DType::kBFloat16, Wrapper::kBf16},
  };
  return wishes;
}

// Runs of a family whose names have this parity of the sum of their letters: tests can then run
// side by side.
std::vector<fs::path> HalfOf(const std::string& family, int half) {
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(Corpus() / family)) {
    const std::string name = entry.path().filename().string();
    if (name.find("_z3_") != std::string::npos || name.starts_with("z3_") ||
        name.starts_with("moe2_"))
      continue;
    if (std::accumulate(name.begin(), name.end(), 0) % 2 == half) runs.push_back(entry.path());
  }
  return runs;
}

void MegatronHalf(int half) {
  for (const fs::path& run : HalfOf("megatron_deepspeed", half)) {
    const std::string name = run.filename().string();
    ReadOptions read;
    read.qkv_layout = name.starts_with("r8_") ? QkvLayout::kPerShard : QkvLayout::kPerHeadGroup;
    int targets = 0;
    for (const Wish& wish : MegatronWishes()) targets += CorpusReshapeTest::There(run, wish, read);
    EXPECT_GE(targets, 6) << name;
  }
}

TEST_F(CorpusReshapeTest, MegatronRunsGoThereAndBackFirstHalf) { MegatronHalf(0); }
TEST_F(CorpusReshapeTest, MegatronRunsGoThereAndBackSecondHalf) { MegatronHalf(1); }

TEST_F(CorpusReshapeTest, CorpusIsThere) {
  EXPECT_GE(HalfOf("megatron_deepspeed", 0).size() + HalfOf("megatron_deepspeed", 1).size(), 5U);
  EXPECT_GE(HalfOf("deepspeed", 0).size() + HalfOf("deepspeed", 1).size(), 5U);
}

const std::vector<Wish>& PlainWishes() {
  static const std::vector<Wish> wishes = {
      {1, 1, 1, 1},
      {1, 1, 3, 1},
      {1, 1, 2, 2},
      {1, 1, 12, 2},
      {1, 1, 2, 0},
      {1, 1, 1, 0, kPlain, DType::kFloat32},
      {1, 1, 4, 1, kPlain, DType::kBFloat16, Wrapper::kBf16},
      {1, 1, 2, 0, kPlain, DType::kBFloat16, Wrapper::kFused},
      {1, 1, 2, 0, kPlain, DType::kFloat16, Wrapper::kUnfused},
      {1, 1, 5, 1, kPlain, DType::kBFloat16, Wrapper::kZero},
      {1, 1, 2, 1, std::nullopt, std::nullopt, std::nullopt, true},
      {1, 2, 3, 1},
      {1, 2, 1, 0},
      {1, 1, 2, 1, kPipeline},
      {1, 2, 2, 0, kPipeline, DType::kFloat32},
      {1, 2, 4, 1, kPipeline, DType::kBFloat16, Wrapper::kBf16},
      {1, 2, 4, 0, kPipeline, DType::kBFloat16},
  };
  return wishes;
}

void PlainHalf(int half) {
  for (const fs::path& run : HalfOf("deepspeed", half)) {
    const std::string name = run.filename().string();
    int targets = 0;
    for (const Wish& wish : PlainWishes()) targets += CorpusReshapeTest::There(run, wish, {});
    EXPECT_GE(targets, name.find("elastic") == std::string::npos ? 6 : 4) << name;
  }
}

TEST_F(CorpusReshapeTest, PlainRunsGoThereAndBackFirstHalf) { PlainHalf(0); }
TEST_F(CorpusReshapeTest, PlainRunsGoThereAndBackSecondHalf) { PlainHalf(1); }

// On one stage no file names the second use of a tied layer: rules do, with and without numbers.
TEST_F(CorpusReshapeTest, TiedPipelinesComeBackFromOneStageWithDeclaredRules) {
  for (const std::string run :
       {"pp2_z1_bf16_dp2", "pp2_z1_bf16_gfp32_dp2", "pp2_z1_bf16_ns_skewfirst_tieduci_dp2"}) {
    const fs::path folder = FreshFolder("corpus_reshape_tied");
    const auto source = ReadInventory(Corpus() / "deepspeed" / run / "checkpoint", {});
    ASSERT_TRUE(source.ok()) << source.error().ToString();
    ReshapeOptions one;
    one.target.pipeline_parallel_size = 1;
    one.flush = false;
    ASSERT_TRUE(Reshape(source.value().folder.run_folder, folder / "one", one).ok());
    ReshapeOptions two;
    two.target.pipeline_parallel_size = 2;
    two.target.cuts = source.value().cuts;
    two.flush = false;
    const auto undeclared = Reshape(folder / "one", folder / "refused", two);
    ASSERT_FALSE(undeclared.ok());
    EXPECT_EQ(undeclared.error().code, checkpoint::ErrorCode::kUndeclared);
    for (const std::string layers : {"", R"(, "layers": [0, 5])"}) {
      const auto rules = checkpoint::ParseRules(
          R"({"name": "tied", "parameters": [], "tied": [{"canonical": "tied_modules\\..*")" +
              layers + "}]}",
          "test");
      ASSERT_TRUE(rules.ok()) << rules.error().ToString();
      two.read.rules = rules.value();
      const fs::path back = folder / ("back" + std::to_string(layers.size()));
      const auto report = Reshape(folder / "one", back, two);
      ASSERT_TRUE(report.ok()) << report.error().ToString();
      const auto target = ReadInventory(back, {});
      ASSERT_TRUE(target.ok()) << target.error().ToString();
      EXPECT_EQ(target.value().cuts, source.value().cuts);
      Expect(source.value(), target.value(), run + layers, false);
    }
    fs::remove_all(folder);
  }
}

TEST_F(CorpusReshapeTest, TiedLayersThatCannotBeAreMalformedRules) {
  const fs::path folder = FreshFolder("corpus_reshape_tied_wrong");
  ReshapeOptions one;
  one.target.pipeline_parallel_size = 1;
  one.flush = false;
  ASSERT_TRUE(
      Reshape(Corpus() / "deepspeed" / "pp2_z1_bf16_dp2" / "checkpoint", folder / "one", one).ok());
  for (const std::string layers : {"[1, 5]", "[0]"}) {
    ReadOptions read;
    read.rules =
        checkpoint::ParseRules(R"({"name": "tied", "parameters": [], "tied": [{"canonical": )"
                               R"("tied_modules\\..*", "layers": )" +
                                   layers + "}]}",
                               "test")
            .value();
    const auto inventory = ReadInventory(folder / "one", read);
    ASSERT_FALSE(inventory.ok()) << layers;
    EXPECT_EQ(inventory.error().code, checkpoint::ErrorCode::kMalformedRules);
  }
  fs::remove_all(folder);
}

// The framework's loader insists on it, though it is FusedAdam's idle 0.
TEST_F(CorpusReshapeTest, ElasticTargetsOfFusedAdamHoldTheStepOfItsGroups) {
  const fs::path folder = FreshFolder("corpus_reshape_elastic_fused");
  ReshapeOptions options;
  options.target.elastic = true;
  options.flush = false;
  const fs::path source = Corpus() / "deepspeed" / "z1_bf16_ns_fused_dp2" / "checkpoint";
  const auto report = Reshape(source, folder / "t", options);
  ASSERT_TRUE(report.ok()) << report.error().ToString();
  const auto target = ReadInventory(folder / "t", {});
  ASSERT_TRUE(target.ok()) << target.error().ToString();
  EXPECT_TRUE(target.value().elastic);
  const checkpoint::Value root = target.value().optim_files.front().back().torch.root;
  const checkpoint::Value step =
      checkpoint::GetPath(root, {"optimizer_state_dict", "base_optimizer_state_step"});
  EXPECT_EQ(checkpoint::AsNumber(step), 0);
  fs::remove_all(folder);
}

// Elastic files hold no hyper-parameters: with those of a rigid run given, every target is open.
TEST_F(CorpusReshapeTest, ElasticRunsGoAnywhereWithDeclaredHyperParameters) {
  const auto rigid = ReadInventory(Corpus() / "deepspeed" / "z1_bf16_dp4" / "checkpoint", {});
  ASSERT_TRUE(rigid.ok());
  std::vector<checkpoint::Value> groups;
  for (const Group& group : rigid.value().groups) groups.push_back(group.hyper_parameters);
  ReadOptions read;
  read.param_groups = checkpoint::MakeList(groups);
  int targets = 0;
  for (const Wish& wish : PlainWishes()) {
    const fs::path folder = FreshFolder("corpus_reshape_elastic");
    ReshapeOptions options{read, SpecOf(wish)};
    options.flush = false;
    const auto source =
        ReadInventory(Corpus() / "deepspeed" / "z1_bf16_elastic_dp2" / "checkpoint", read);
    ASSERT_TRUE(source.ok()) << source.error().ToString();
    if (!WhyUnreachable(source.value(), options.target).empty()) continue;
    const auto report = Reshape(source.value().folder.run_folder, folder / "there", options);
    ASSERT_TRUE(report.ok()) << Text(wish) << ": " << report.error().ToString();
    const auto target = ReadInventory(folder / "there", {});
    ASSERT_TRUE(target.ok()) << target.error().ToString();
    EXPECT_FALSE(target.value().elastic) << Text(wish);
    Expect(source.value(), target.value(), "elastic to " + Text(wish), wish.universal);
    fs::remove_all(folder);
    ++targets;
  }
  EXPECT_GE(targets, 8);
}

}  // namespace
}  // namespace reshape
