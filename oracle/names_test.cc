#include "oracle/names.h"

#include <gtest/gtest.h>

#include "oracle/test_files.h"

namespace oracle {
namespace {

using checkpoint::Fused;
using checkpoint::Parallel;

checkpoint::Value Strings(const std::vector<std::string>& texts) {
  std::vector<checkpoint::Value> items;
  for (const std::string& text : texts) items.push_back(checkpoint::MakeString(text));
  return checkpoint::MakeList(std::move(items));
}

NamingInput Megatron(int64_t layers, bool pipelined) {
  NamingInput input;
  input.builtin = "megatron-deepspeed";
  input.args =
      Dict({{"num_layers", checkpoint::MakeInt(layers)}, {"hidden_size", checkpoint::MakeInt(32)}});
  input.pipelined = pipelined;
  return input;
}

Naming Make(NamingInput input) {
  auto naming = Naming::Make(std::move(input));
  EXPECT_TRUE(naming.ok());
  return std::move(naming).value();
}

ParameterKind KindOf(const Naming& naming, const std::string& name) {
  auto kind = naming.KindOf(name);
  EXPECT_TRUE(kind.ok());
  return kind.value();
}

TEST(NamingTest, PipelineNumbersBecomeCanonicalNames) {
  const Naming naming = Make(Megatron(4, true));
  EXPECT_EQ(naming.Canonical("tied_modules.embed.word_embeddings.weight"),
            "embedding.word_embeddings.weight");
  EXPECT_EQ(naming.Canonical("1.word_embeddings.weight"), "embedding.word_embeddings.weight");
  EXPECT_EQ(naming.Canonical("2.mlp.dense_h_to_4h.bias"), "layers.0.mlp.dense_h_to_4h.bias");
  EXPECT_EQ(naming.Canonical("5.input_layernorm.weight"), "layers.3.input_layernorm.weight");
  EXPECT_EQ(naming.Canonical("6.weight"), "final_layernorm.weight");
  EXPECT_EQ(naming.Canonical("7.lm_head.weight"), "output_layer.weight");
}

TEST(NamingTest, OlderForkStartsAtLayerThree) {
  NamingInput input = Megatron(4, true);
  input.builtin = "megatron-deepspeed-bigscience";
  const Naming naming = Make(std::move(input));
  EXPECT_EQ(naming.Canonical("3.input_layernorm.weight"), "layers.0.input_layernorm.weight");
  EXPECT_EQ(naming.Canonical("8.bias"), "final_layernorm.bias");
}

TEST(NamingTest, PlainNamesBecomeCanonicalNames) {
  const Naming naming = Make(Megatron(4, false));
  EXPECT_EQ(naming.Canonical("language_model.encoder.layers.3.self_attention.dense.weight"),
            "layers.3.self_attention.dense.weight");
  EXPECT_EQ(naming.Canonical("language_model.embedding.position_embeddings.weight"),
            "embedding.position_embeddings.weight");
}

TEST(NamingTest, LayersAreCountedFromNamesWhereArgumentsDoNotSay) {
  NamingInput input = Megatron(0, true);
  input.args = nullptr;
  input.names = {
      "1.word_embeddings.weight", "2.a.weight", "2.a.bias", "3.a.weight", "3.a.bias", "4.weight",
      "5.lm_head.weight"};
  const Naming naming = Make(std::move(input));
  EXPECT_EQ(naming.Canonical("4.weight"), "final_layernorm.weight");
  EXPECT_EQ(naming.LayerNumbers(), (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST(NamingTest, BuiltInRulesNameTheSplit) {
  const Naming naming = Make(Megatron(4, true));
  EXPECT_EQ(KindOf(naming, "2.self_attention.dense.weight").parallel, Parallel::kRow);
  EXPECT_EQ(KindOf(naming, "2.self_attention.query_key_value.weight").fused, Fused::kQueryKeyValue);
  EXPECT_EQ(KindOf(naming, "tied_modules.embed.word_embeddings.weight").parallel,
            Parallel::kVocabulary);
  EXPECT_TRUE(KindOf(naming, "tied_modules.embed.position_embeddings.weight").stale_copy);
  EXPECT_FALSE(KindOf(naming, "2.some_new_thing.weight").named);
}

TEST(NamingTest, SwigluArgumentMakesTheUpProjectionGated) {
  NamingInput input = Megatron(4, true);
  EXPECT_EQ(KindOf(Make(input), "2.mlp.dense_h_to_4h.weight").fused, Fused::kNone);
  input.args =
      Dict({{"num_layers", checkpoint::MakeInt(4)}, {"swiglu", checkpoint::MakeBool(true)}});
  EXPECT_EQ(KindOf(Make(input), "2.mlp.dense_h_to_4h.weight").fused, Fused::kGatedLinear);
}

TEST(NamingTest, ShapesMakeTheUpProjectionGatedWhereNoFileSaysSo) {
  NamingInput input = Megatron(4, true);
  input.shapes = {{"2.mlp.dense_h_to_4h.weight", {96, 32}},
                  {"2.mlp.dense_4h_to_h.weight", {32, 48}},
                  {"3.mlp.dense_h_to_4h.weight", {48, 32}},
                  {"3.mlp.dense_4h_to_h.weight", {32, 48}}};
  const Naming naming = Make(input);
  EXPECT_EQ(KindOf(naming, "2.mlp.dense_h_to_4h.weight").fused, Fused::kGatedLinear);
  EXPECT_EQ(KindOf(naming, "2.mlp.dense_h_to_4h.bias").fused, Fused::kGatedLinear);
  EXPECT_NE(KindOf(naming, "2.mlp.dense_h_to_4h.weight").rule.find("gated: twice as many rows"),
            std::string::npos);
  EXPECT_EQ(KindOf(naming, "3.mlp.dense_h_to_4h.weight").fused, Fused::kNone);
  EXPECT_EQ(KindOf(naming, "2.mlp.dense_4h_to_h.weight").fused, Fused::kNone);
  // The user's word is taken as it is.
  auto rules = checkpoint::ParseRules(
      R"({"name": "mine",
          "parameters": [{"canonical": ".*dense_h_to_4h.weight", "parallel": "column"}]})",
      "mine");
  ASSERT_TRUE(rules.ok()) << rules.error().ToString();
  input.user_rules = rules.value();
  EXPECT_EQ(KindOf(Make(input), "2.mlp.dense_h_to_4h.weight").fused, Fused::kNone);
}

TEST(NamingTest, UniversalInfoComesBeforeBuiltInRulesAndDisagreementIsSaid) {
  NamingInput input = Megatron(4, true);
  input.universal_info = Dict(
      {{"parameter_with_row_parallelism_patterns", Strings({R"(\d+.self_attention.dense.bias)"})}});
  const ParameterKind kind = KindOf(Make(input), "2.self_attention.dense.bias");
  EXPECT_EQ(kind.parallel, Parallel::kRow);
  EXPECT_NE(kind.disagreement, "");
}

TEST(NamingTest, UniversalInfoAloneConcatenatesUnlistedOnDimensionZero) {
  NamingInput input;
  input.universal_info = Dict({{"tp_replicated_parameter_patterns", Strings({"norm"})}});
  const Naming naming = Make(input);
  EXPECT_EQ(KindOf(naming, "norm.weight").parallel, Parallel::kReplicated);
  EXPECT_EQ(KindOf(naming, "fc.weight").parallel, Parallel::kColumn);
  EXPECT_TRUE(KindOf(naming, "fc.weight").named);
}

TEST(NamingTest, SubParametersOfUniversalInfoKeepTheirRows) {
  NamingInput input;
  input.universal_info =
      Dict({{"parameter_with_sub_params",
             checkpoint::MakeList(
                 {Dict({{"patterns", Strings({".*qkv.weight"})},
                        {"shape", checkpoint::MakeList({Ints({8, 4, 4}), checkpoint::MakeInt(16)})},
                        {"partition_dim", checkpoint::MakeInt(0)}})})}});
  const ParameterKind kind = KindOf(Make(input), "layers.0.qkv.weight");
  EXPECT_EQ(kind.parallel, Parallel::kColumn);
  EXPECT_EQ(kind.sub_parameter_rows, (std::vector<int64_t>{8, 4, 4}));
}

TEST(NamingTest, RulesOfTheUserWin) {
  NamingInput input = Megatron(4, true);
  auto rules = checkpoint::ParseRules(
      R"({"name": "mine", "parameters": [
          {"canonical": "layers\\.\\d+\\.some_new_thing\\.weight", "parallel": "row"},
          {"canonical": "final_layernorm\\.weight", "parallel": "column"}]})",
      "test");
  ASSERT_TRUE(rules.ok()) << rules.error().ToString();
  input.user_rules = rules.value();
  const Naming naming = Make(input);
  EXPECT_EQ(KindOf(naming, "2.some_new_thing.weight").parallel, Parallel::kRow);
  const ParameterKind kind = KindOf(naming, "6.weight");
  EXPECT_EQ(kind.parallel, Parallel::kColumn);
  EXPECT_NE(kind.disagreement, "");
}

TEST(NamingTest, PatternThatDoesNotCompileIsMalformed) {
  NamingInput input;
  input.universal_info = Dict({{"tp_replicated_parameter_patterns", Strings({"("})}});
  auto kind = Make(input).KindOf("a");
  ASSERT_FALSE(kind.ok());
  EXPECT_EQ(kind.error().code, checkpoint::ErrorCode::kMalformedRules);
}

}  // namespace
}  // namespace oracle
