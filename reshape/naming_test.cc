// Names of the two layouts by the built-in rules.
#include "reshape/naming.h"

#include <gtest/gtest.h>

namespace reshape {
namespace {

checkpoint::Rules Builtin(std::string_view name) {
  return checkpoint::ParseRules(checkpoint::BuiltinRulesJson(name), "test").value();
}

class NamingTest : public testing::Test {
 protected:
  const checkpoint::Rules rules_ = Builtin("megatron-deepspeed");
  const checkpoint::Rules older_ = Builtin("megatron-deepspeed-bigscience");
  const Naming tied_{&rules_, 4, true};
  const Naming untied_{&rules_, 4, false};
  const Naming older_fork_{&older_, 4, true};
};

TEST_F(NamingTest, PipelineNumbersBecomeTransformerIndices) {
  const auto name = [&](const char* text) {
    return CanonicalName(tied_, NameLayout::kPipeline, text).value_or("none");
  };
  EXPECT_EQ(name("2.input_layernorm.weight"), "layers.0.input_layernorm.weight");
  EXPECT_EQ(name("5.mlp.dense_4h_to_h.bias"), "layers.3.mlp.dense_4h_to_h.bias");
  EXPECT_EQ(name("6.weight"), "final_layernorm.weight");
  EXPECT_EQ(name("7.lm_head.weight"), "output_layer.weight");
  EXPECT_EQ(name("1.word_embeddings.weight"), "embedding.word_embeddings.weight");
  EXPECT_EQ(name("tied_modules.embed.word_embeddings.weight"), "embedding.word_embeddings.weight");
  EXPECT_EQ(name("8.weight"), "none");
}

TEST_F(NamingTest, OlderForkBeginsAtThree) {
  EXPECT_EQ(CanonicalName(older_fork_, NameLayout::kPipeline, "3.mlp.dense_h_to_4h.weight"),
            "layers.0.mlp.dense_h_to_4h.weight");
  EXPECT_EQ(CanonicalName(older_fork_, NameLayout::kPipeline, "8.weight"),
            "final_layernorm.weight");
  EXPECT_EQ(CanonicalName(older_fork_, NameLayout::kPipeline, "2.mlp.dense_h_to_4h.weight"),
            std::nullopt);
}

TEST_F(NamingTest, PlainNames) {
  EXPECT_EQ(CanonicalName(tied_, NameLayout::kPlain,
                          "language_model.encoder.layers.3.mlp.dense_h_to_4h.weight"),
            "layers.3.mlp.dense_h_to_4h.weight");
  EXPECT_EQ(CanonicalName(tied_, NameLayout::kPlain,
                          "language_model.encoder.layers.4.mlp.dense_h_to_4h.weight"),
            std::nullopt);
  EXPECT_EQ(CanonicalName(tied_, NameLayout::kPlain, "language_model.encoder.final_layernorm.bias"),
            "final_layernorm.bias");
}

TEST_F(NamingTest, TheWayBackGivesTheSameName) {
  for (const char* name : {"2.self_attention.dense.weight", "6.bias",
                           "tied_modules.embed.position_embeddings.weight"}) {
    const auto canonical = CanonicalName(tied_, NameLayout::kPipeline, name);
    ASSERT_TRUE(canonical.has_value()) << name;
    EXPECT_EQ(NameInLayout(tied_, NameLayout::kPipeline, *canonical), name);
  }
  EXPECT_EQ(NameInLayout(untied_, NameLayout::kPipeline, "embedding.word_embeddings.weight"),
            "1.word_embeddings.weight");
  EXPECT_EQ(NameInLayout(untied_, NameLayout::kPipeline, "output_layer.weight"),
            "7.lm_head.weight");
  EXPECT_EQ(NameInLayout(tied_, NameLayout::kPlain, "layers.0.input_layernorm.bias"),
            "language_model.encoder.layers.0.input_layernorm.bias");
  EXPECT_EQ(NameInLayout(tied_, NameLayout::kPipeline, "layers.9.input_layernorm.bias"),
            std::nullopt);
}

TEST_F(NamingTest, LayerOfACanonicalName) {
  EXPECT_EQ(LayerOfCanonical(tied_, "embedding.word_embeddings.weight"), 1);
  EXPECT_EQ(LayerOfCanonical(tied_, "layers.3.input_layernorm.weight"), 5);
  EXPECT_EQ(LayerOfCanonical(older_fork_, "final_layernorm.weight"), 8);
}

}  // namespace
}  // namespace reshape
