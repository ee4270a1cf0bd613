#include <gtest/gtest.h>

#include <algorithm>

#include "reshape/resolve.h"
#include "reshape/target_fixture.h"

namespace reshape {
namespace {

using checkpoint::DType;
using checkpoint::ErrorCode;

ErrorCode CodeOf(const Inventory& source, const TargetSpec& spec) {
  const auto resolved = Resolve(source, spec);
  EXPECT_FALSE(resolved.ok());
  return resolved.ok() ? ErrorCode::kUsage : resolved.error().code;
}

Wrapper WrapperOf(const Inventory& source, const TargetSpec& spec) {
  const auto resolved = Resolve(source, spec);
  EXPECT_TRUE(resolved.ok()) << (resolved.ok() ? "" : resolved.error().ToString());
  return resolved.ok() ? resolved.value().wrapper : Wrapper::kNone;
}

TEST(LegalityTest, TensorRanksMustDivideHeads) {
  Inventory source = MakeGpt({});
  source.qkv_layout = checkpoint::QkvLayout::kPerHeadGroup;
  EXPECT_EQ(CodeOf(source, {.tensor_parallel_size = 3}), ErrorCode::kUnreachableTarget);
  EXPECT_EQ(WhyUnreachable(source, {.tensor_parallel_size = 2}), "");
}

TEST(LegalityTest, ChangeOfTensorRanksNeedsTheQkvOrder) {
  const Inventory source = MakeGpt({});
  EXPECT_EQ(CodeOf(source, {.tensor_parallel_size = 2}), ErrorCode::kUndeclared);
  EXPECT_EQ(WhyUnreachable(source,
                           {.pipeline_parallel_size = 2, .data_parallel_size = 3, .zero_stage = 1}),
            "");
}

TEST(LegalityTest, PipelineRefusesStage2AndMoreStagesThanLayers) {
  const Inventory source = MakeGpt({});
  EXPECT_EQ(CodeOf(source, {.zero_stage = 2}), ErrorCode::kUnreachableTarget);
  EXPECT_EQ(CodeOf(source, {.pipeline_parallel_size = 3}), ErrorCode::kUnreachableTarget);
  EXPECT_EQ(CodeOf(source, {.pipeline_parallel_size = 2, .layout = NameLayout::kPlain}),
            ErrorCode::kUnreachableTarget);
  EXPECT_EQ(WhyUnreachable(source, {.zero_stage = 2, .layout = NameLayout::kPlain}), "");
}

TEST(LegalityTest, Stage3IsNamedAndRefused) {
  EXPECT_EQ(CodeOf(MakeGpt({}), {.zero_stage = 3}), ErrorCode::kUnsupported);
}

TEST(LegalityTest, SizesMustBePositive) {
  EXPECT_EQ(CodeOf(MakeGpt({}), {.data_parallel_size = 0}), ErrorCode::kUsage);
  EXPECT_EQ(CodeOf(MakeGpt({}), {.data_parallel_size = 2'000'000}), ErrorCode::kUsage);
}

TEST(LegalityTest, PlainModelsNeedRulesForTensorRanksAndNamesForAPipeline) {
  const Inventory source = MakePlain({8, 8}, Wrapper::kZero, DType::kBFloat16);
  EXPECT_EQ(CodeOf(source, {.tensor_parallel_size = 2}), ErrorCode::kUnnamedParameter);
  EXPECT_EQ(CodeOf(source, {.layout = NameLayout::kPipeline}), ErrorCode::kUnreachableTarget);
  EXPECT_EQ(CodeOf(source, {.pipeline_parallel_size = 2}), ErrorCode::kUnreachableTarget);
}

TEST(LegalityTest, GenericPipelinesNeedCutsForOtherStages) {
  Inventory source = MakePlain({8, 8, 8, 8}, Wrapper::kZero, DType::kBFloat16);
  source.layout = NameLayout::kPipeline;
  source.topology.pipeline_parallel_size = 2;
  source.cuts = {0, 2, 4};
  for (int64_t i = 0; i < 4; ++i) {
    source.tensors[static_cast<size_t>(i)].name = std::to_string(i) + ".weight";
    source.tensors[static_cast<size_t>(i)].layers = {i};
  }
  source.model_files.push_back(source.model_files[0]);
  EXPECT_EQ(CodeOf(source, {.pipeline_parallel_size = 3}), ErrorCode::kUndeclared);
  TargetSpec spec{.pipeline_parallel_size = 3};
  spec.cuts = {0, 1, 3, 4};
  EXPECT_EQ(WhyUnreachable(source, spec), "");
  spec.cuts = {1, 3};
  const auto inner = Resolve(source, spec);
  ASSERT_TRUE(inner.ok());
  EXPECT_EQ(inner.value().cuts, (std::vector<int64_t>{0, 1, 3, 4}));
  source.cuts = {0, 2, 6};  // the last two layers have no parameters
  spec.cuts = {0, 1, 3, 4};
  const auto short_end = Resolve(source, spec);
  ASSERT_TRUE(short_end.ok());
  EXPECT_EQ(short_end.value().cuts, (std::vector<int64_t>{0, 1, 3, 6}));
  spec.cuts = {0, 1, 2, 3};
  EXPECT_EQ(CodeOf(source, spec), ErrorCode::kUsage);
  spec.cuts = {0, 3, 3, 4};
  EXPECT_EQ(CodeOf(source, spec), ErrorCode::kUsage);
  EXPECT_EQ(WhyUnreachable(source, {.pipeline_parallel_size = 1}), "");
}

TEST(LegalityTest, TiedModulesOfOneStageNeedTheirLayersForMore) {
  Inventory source = MakePlain({8, 8}, Wrapper::kZero, DType::kBFloat16);
  source.layout = NameLayout::kPipeline;
  source.cuts = {0, 3};
  source.tensors[0].name = "tied_modules.embed.weight";
  source.tensors[0].layers = {0};
  source.tensors[1].name = "1.weight";
  source.tensors[1].layers = {1};
  TargetSpec spec{.pipeline_parallel_size = 2};
  spec.cuts = {0, 1, 3};
  EXPECT_EQ(CodeOf(source, spec), ErrorCode::kUndeclared);
  source.tensors[0].layers = {0, 2};
  EXPECT_EQ(WhyUnreachable(source, spec), "");
}

TEST(LegalityTest, WrapperFollowsStageTypeAndLayout) {
  const Inventory fused = MakeGpt({});
  EXPECT_EQ(WrapperOf(fused, {}), Wrapper::kFused);
  EXPECT_EQ(WrapperOf(fused, {.zero_stage = 1}), Wrapper::kZero);
  EXPECT_EQ(WrapperOf(fused, {.dtype = DType::kBFloat16}), Wrapper::kBf16);
  EXPECT_EQ(WrapperOf(fused, {.dtype = DType::kBFloat16, .layout = NameLayout::kPlain}),
            Wrapper::kFused);
  EXPECT_EQ(WrapperOf(fused, {.dtype = DType::kFloat32}), Wrapper::kFp32);
  EXPECT_EQ(WrapperOf(MakeGpt({.wrapper = Wrapper::kUnfused}), {}), Wrapper::kUnfused);
  const Inventory bf16 = MakeGpt({.wrapper = Wrapper::kBf16, .dtype = DType::kBFloat16});
  EXPECT_EQ(WrapperOf(bf16, {}), Wrapper::kBf16);
  EXPECT_EQ(WrapperOf(bf16, {.zero_stage = 2, .layout = NameLayout::kPlain}), Wrapper::kZero);
  EXPECT_EQ(WrapperOf(bf16, {.zero_stage = 0, .dtype = DType::kFloat16}), Wrapper::kFused);
}

TEST(LegalityTest, WrapperThatTheFrameworkDoesNotUseThereIsRefused) {
  const Inventory source = MakeGpt({});
  EXPECT_EQ(CodeOf(source, {.wrapper = Wrapper::kZero}), ErrorCode::kUnreachableTarget);
  EXPECT_EQ(CodeOf(source, {.zero_stage = 1, .wrapper = Wrapper::kFused}),
            ErrorCode::kUnreachableTarget);
  EXPECT_EQ(CodeOf(source, {.zero_stage = 1, .wrapper = Wrapper::kBf16}),
            ErrorCode::kUnreachableTarget);
  EXPECT_EQ(CodeOf(source, {.zero_stage = 0, .universal = true}), ErrorCode::kUnreachableTarget);
}

TEST(LegalityTest, ElasticSourcesNeedHyperParametersElsewhere) {
  Inventory source = MakePlain({8}, Wrapper::kZero, DType::kBFloat16);
  source.elastic = true;
  source.groups[0].hyper_parameters = nullptr;
  EXPECT_EQ(WhyUnreachable(source, {.data_parallel_size = 4, .zero_stage = 2}), "");
  EXPECT_EQ(CodeOf(source, {.zero_stage = 0}), ErrorCode::kUndeclared);
  EXPECT_EQ(CodeOf(source, {.universal = true}), ErrorCode::kUndeclared);
}

TEST(LegalityTest, ElasticSourcesStayElasticUnlessHyperParametersAreDeclared) {
  Inventory source = MakePlain({8}, Wrapper::kZero, DType::kBFloat16);
  source.elastic = true;
  TargetSpec wishes_elastic;
  wishes_elastic.elastic = true;
  const auto rigid = Resolve(source, {});  // the fixture's groups have hyper-parameters: declared
  ASSERT_TRUE(rigid.ok());
  EXPECT_FALSE(rigid.value().elastic);
  EXPECT_FALSE(rigid.value().identical);
  EXPECT_EQ(CodeOf(source, wishes_elastic), ErrorCode::kUsage);
  source.groups[0].hyper_parameters = nullptr;
  const auto kept = Resolve(source, {.data_parallel_size = 2});
  ASSERT_TRUE(kept.ok());
  EXPECT_TRUE(kept.value().elastic);
  ASSERT_EQ(kept.value().notices.size(), 1U);
  EXPECT_EQ(kept.value().notices[0].kind, "elastic-kept");
  EXPECT_EQ(WhyUnreachable(source, wishes_elastic), "");
}

TEST(LegalityTest, ElasticWithoutZeroFilesIsAUsageError) {
  TargetSpec spec;
  spec.elastic = true;
  EXPECT_EQ(CodeOf(MakeGpt({}), spec), ErrorCode::kUsage);
}

TEST(LegalityTest, TargetsOfTooManyFilesAreRefusedEarly) {
  const Inventory source = MakeGpt({});
  const auto resolved = Resolve(source, {.data_parallel_size = 1'000'000, .zero_stage = 1});
  ASSERT_FALSE(resolved.ok());
  EXPECT_EQ(resolved.error().code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(resolved.error().found, "TP 1 x PP 1 x DP 1000000 at stage 1: 1000001 files");
  EXPECT_EQ(resolved.error().expected, "at most 200000 files in a target");
  // Without ZeRO, data ranks have no files of their own.
  EXPECT_EQ(WhyUnreachable(source, {.data_parallel_size = 1'000'000, .zero_stage = 0}), "");
  EXPECT_EQ(CodeOf(source, {.tensor_parallel_size = 300'000}), ErrorCode::kLimitExceeded);
}

TEST(LegalityTest, BareFp32NeedsMoments) {
  Inventory source = MakePlain({8, 8}, Wrapper::kZero, DType::kFloat16);
  const TargetSpec bare{.zero_stage = 0, .dtype = DType::kFloat32};
  EXPECT_EQ(WhyUnreachable(source, bare), "");
  for (LogicalTensor& tensor : source.tensors) {
    tensor.states.erase("exp_avg");
    tensor.states.erase("exp_avg_sq");
  }
  EXPECT_EQ(CodeOf(source, bare), ErrorCode::kUnreachableTarget);
  EXPECT_EQ(WhyUnreachable(source, {.zero_stage = 2}), "");
}

TEST(LegalityTest, ChangeOfTensorRanksNeedsTheGateDeclared) {
  Inventory source = MakeGpt({});
  source.qkv_layout = checkpoint::QkvLayout::kPerHeadGroup;
  source.undeclared_gates = {"2.mlp.dense_h_to_4h.weight"};
  const auto resolved = Resolve(source, {.tensor_parallel_size = 2});
  ASSERT_FALSE(resolved.ok());
  EXPECT_EQ(resolved.error().code, ErrorCode::kUndeclared);
  EXPECT_EQ(resolved.error().where, "2.mlp.dense_h_to_4h.weight");
  EXPECT_EQ(WhyUnreachable(source, {.pipeline_parallel_size = 2}), "");
}

TEST(LegalityTest, UnknownWeightTypeIsAUsageError) {
  EXPECT_EQ(CodeOf(MakeGpt({}), {.dtype = DType::kInt8}), ErrorCode::kUsage);
}

TEST(LegalityTest, CutsOfAPlainTargetAreAUsageError) {
  TargetSpec spec;
  spec.cuts = {0, 1};
  EXPECT_EQ(CodeOf(MakePlain({8}, Wrapper::kZero, DType::kBFloat16), spec), ErrorCode::kUsage);
}

TEST(LegalityTest, VocabularyThatRanksDoNotDivideIsRefusedWithoutADivisor) {
  Inventory source = MakePlain({8}, Wrapper::kZero, DType::kBFloat16);
  source.tensors[0].parallel = checkpoint::Parallel::kVocabulary;
  source.tensors[0].shape = {7};
  source.rules.parameters = {
      {"p0", checkpoint::Parallel::kVocabulary, checkpoint::Fused::kNone, {}}};
  EXPECT_EQ(CodeOf(source, {.tensor_parallel_size = 2}), ErrorCode::kUnreachableTarget);
}

TEST(LegalityTest, ListsLegalTargetsInAStableOrder) {
  Inventory source = MakeGpt({});
  source.qkv_layout = checkpoint::QkvLayout::kPerHeadGroup;
  const auto targets = LegalTargets(source, {}, 4);
  // TP 1 and 2 divide two heads, PP 1 and 2 two layers; stages 0 and 1 only, as there is a
  // pipeline.
  const auto has = [&](const Topology& topology) {
    return std::find(targets.begin(), targets.end(), topology) != targets.end();
  };
  EXPECT_TRUE(has({2, 2, 1, 1}));
  EXPECT_TRUE(has({1, 1, 4, 0}));
  EXPECT_FALSE(has({4, 1, 1, 0}));
  EXPECT_FALSE(has({1, 1, 1, 2}));
  EXPECT_EQ(targets.size(), 2U * (4 + 2 + 2 + 1));
  EXPECT_EQ(LegalTargets(source, {.tensor_parallel_size = 2, .zero_stage = 1}, 4).size(), 3U);
}

}  // namespace
}  // namespace reshape
