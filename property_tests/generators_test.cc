// The generators of cases: valid by construction, spread over what the framework runs, and
// shrinking to one rank and one layer.
#include "fixtures/generators.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <functional>
#include <set>

namespace fixtures {
namespace {

RC_GTEST_PROP(GeneratorsTest, EveryReshapeCaseIsValidOnBothSides, ()) {
  const ReshapeCase drawn = *GenReshapeCase();
  RC_ASSERT(ValidateSpec(drawn.source).ok());
  RC_ASSERT(ValidateSpec(drawn.target).ok());
  RC_ASSERT(drawn.source.model.hidden == drawn.target.model.hidden);
  RC_ASSERT(drawn.source.seed == drawn.target.seed);
}

RC_GTEST_PROP(GeneratorsTest, EveryPlainSpecIsValid, ()) {
  RC_ASSERT(ValidateSpec(*GenPlainSpec()).ok());
}

TEST(GeneratorsTest, ReachEveryWrapperStageArchitectureAndTensorParallelSize) {
  std::set<OptimizerWrapper> wrappers;
  std::set<Architecture> architectures;
  std::set<int32_t> stages, tensor_parallel;
  const auto generator = GenReshapeCase();
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const ReshapeCase drawn = generator(rc::Random(seed), rc::kNominalSize).value();
    wrappers.insert(drawn.source.wrapper);
    architectures.insert(drawn.source.model.architecture);
    stages.insert(drawn.source.zero_stage);
    tensor_parallel.insert(drawn.source.tensor_parallel);
  }
  EXPECT_EQ(wrappers.size(), 5U);
  EXPECT_EQ(architectures.size(), 3U);
  EXPECT_EQ(stages.size(), 3U);
  EXPECT_EQ(tensor_parallel, (std::set<int32_t>{1, 2, 4}));
}

// Follows shrinks as long as the case stays bad, as RapidCheck does.
ReshapeCase Shrunk(const std::function<bool(const ReshapeCase&)>& bad) {
  const auto generator = GenReshapeCase();
  for (uint64_t seed = 0;; ++seed) {
    auto drawn = generator(rc::Random(seed), rc::kNominalSize);
    if (!bad(drawn.value())) continue;
    for (bool smaller = true; smaller;) {
      smaller = false;
      auto shrinks = drawn.shrinks();
      while (auto next = shrinks.next()) {
        if (!bad(next->value())) continue;
        drawn = *next;
        smaller = true;
        break;
      }
    }
    return drawn.value();
  }
}

TEST(GeneratorsTest, AnythingBadShrinksToOneRankOneLayerAndTheFirstWrapper) {
  const ReshapeCase smallest = Shrunk([](const ReshapeCase&) { return true; });
  for (const FixtureSpec& spec : {smallest.source, smallest.target}) {
    EXPECT_EQ(spec.tensor_parallel * spec.pipeline_parallel * spec.data_parallel, 1);
    EXPECT_EQ(spec.model.layers, 1);
    EXPECT_EQ(spec.model.hidden, 1);
    EXPECT_EQ(spec.model.architecture, Architecture::kGpt);
    EXPECT_EQ(spec.wrapper, OptimizerWrapper::kFused);
  }
}

TEST(GeneratorsTest, AFaultOfTwoStagesShrinksToTwoStagesAndNothingElse) {
  const ReshapeCase smallest =
      Shrunk([](const ReshapeCase& drawn) { return drawn.target.pipeline_parallel >= 2; });
  EXPECT_EQ(smallest.target.pipeline_parallel, 2);
  EXPECT_EQ(smallest.target.tensor_parallel, 1);
  EXPECT_EQ(smallest.target.data_parallel, 1);
  EXPECT_EQ(smallest.source.pipeline_parallel, 1);
  EXPECT_EQ(smallest.source.model.layers, 2);
}

}  // namespace
}  // namespace fixtures
