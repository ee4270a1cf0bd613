#include "certify/subject.h"

#include <gtest/gtest.h>

#include "certify/fake_oracle.h"

namespace certify {
namespace {

TEST(SubjectTest, APatternMatchesTheWholeNameOrTheWholeCanonicalName) {
  auto fake = SoundModel();
  fake->Info("norm.weight").canonical = "layers.3.norm.weight";
  // The canonical name's tail is no match.
  EXPECT_EQ(SubjectOf(fake, "3[.]norm.*").left_out, 6);
  const Subject subject = SubjectOf(fake, "layers[.]3[.].*");
  EXPECT_EQ(subject.left_out, 5);
  EXPECT_TRUE(subject.IsJudged(fake->Index("norm.weight")));
  EXPECT_FALSE(subject.IsJudged(fake->Index("frozen")));
}

TEST(SubjectTest, WhatIsNoPatternIsAUsageError) {
  const auto subject = SelectSubject(SoundModel(), "(");
  ASSERT_FALSE(subject.ok());
  EXPECT_EQ(subject.error().code, checkpoint::ErrorCode::kUsage);
}

TEST(SubjectTest, WeightAndMasterComeFirst) {
  EXPECT_EQ(StateOrder(SoundModel()->Info("norm.weight")),
            (std::vector<std::string>{"weight", "fp32_master", "exp_avg", "exp_avg_sq"}));
}

TEST(SubjectTest, LayersOfCanonicalNames) {
  EXPECT_EQ(LayerOf("layers.12.mlp.dense_h_to_4h.weight"), 12);
  EXPECT_EQ(LayerOf("final_layernorm.weight"), -1);
  EXPECT_EQ(LayerOf("layers.x.weight"), -1);
  EXPECT_EQ(LayerOf("layers.3"), -1);
}

TEST(SubjectTest, ShapesAsText) {
  EXPECT_EQ(ShapeText({101, 32}), "101,32");
  EXPECT_EQ(ShapeText({}), "");
  EXPECT_EQ(NumelOfShape({}), 1);
  EXPECT_EQ(NumelOfShape({0, 5}), 0);
}

}  // namespace
}  // namespace certify
