// Law R7 on pairs of checkpoints in memory: what is carried, re-derived, made up and dropped.
#include <ATen/Tensor.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "certify/pair_fixture.h"
#include "checkpoint/value.h"

namespace certify {
namespace {

checkpoint::Value Args(int64_t tensor_parallel, int64_t hidden) {
  return checkpoint::MakeInstance(
      "argparse", "Namespace",
      checkpoint::MakeDict({{checkpoint::MakeString("tensor_model_parallel_size"),
                             checkpoint::MakeInt(tensor_parallel)},
                            {checkpoint::MakeString("hidden_size"), checkpoint::MakeInt(hidden)},
                            {checkpoint::MakeString("seed"), checkpoint::MakeInt(1234)}}));
}

TEST_F(PairLawsTest, KeysOfArgsAreListedAndUnexplainedChangesBreakR7) {
  source_->facts.carried["args"] = {{{}, Args(1, 32)}};
  target_->facts.carried["args"] = {{{}, Args(2, 32)}};
  EXPECT_EQ(Law("R7").verdict, Verdict::kHeld);
  EXPECT_NE(Listed("R7", "re-derived").text.find("args.tensor_model_parallel_size: 1 -> 2"),
            std::string::npos);
  EXPECT_NE(Listed("R7", "carried").text.find("hidden_size, seed"), std::string::npos);
  target_->facts.carried["args"] = {{{}, Args(2, 64)}};
  EXPECT_NE(Broken("R7", "changed").text.find("hidden_size"), std::string::npos);
}

TEST_F(PairLawsTest, ALongListOfWhatWasCarriedIsNoText) {
  std::vector<std::pair<checkpoint::Value, checkpoint::Value>> items;
  for (int i = 0; i < 13; ++i)
    items.emplace_back(checkpoint::MakeString("key" + std::to_string(i)), checkpoint::MakeInt(i));
  const checkpoint::Value args = checkpoint::MakeDict(std::move(items));
  source_->facts.carried["args"] = {{{}, args}};
  target_->facts.carried["args"] = {{{}, args}};
  const Finding& listed = Listed("R7", "carried");
  EXPECT_EQ(listed.text, "args: 13 entries carried unchanged");
  ASSERT_EQ(listed.entries.size(), 13u);
  EXPECT_EQ(listed.entries[12], "key12");
  const auto json = JudgementJson(Judge(), true);
  int64_t found = 0;
  for (const auto& law : json["laws"])
    for (const auto& finding : law["findings"])
      if (finding.contains("entries")) found += static_cast<int64_t>(finding["entries"].size());
  EXPECT_EQ(found, 13);
}

TEST_F(PairLawsTest, AChangeOnOneRankAloneBreaksR7) {
  const auto rank = [](int32_t tensor) {
    return oracle::Place{"file" + std::to_string(tensor), "", {tensor, 0, 0}};
  };
  source_->facts.carried["args"] = {{rank(0), Args(1, 32)}, {rank(1), Args(1, 33)}};
  target_->facts.carried["args"] = {
      {rank(0), Args(1, 32)}, {rank(1), Args(1, 33)}, {rank(2), Args(1, 32)}};
  EXPECT_EQ(Law("R7").verdict, Verdict::kHeld);
  target_->facts.carried["args"][2].second = Args(1, 64);
  EXPECT_EQ(Broken("R7", "changed").file, "file2");
}

TEST_F(PairLawsTest, ChangesInsideAMappingAreListedByPath) {
  const auto config = [](int64_t stage, bool extra) {
    std::vector<std::pair<checkpoint::Value, checkpoint::Value>> items = {
        {checkpoint::MakeString("zero_optimization"), Dict("stage", stage)}};
    if (extra)
      items.push_back({checkpoint::MakeString("steps_per_print"), checkpoint::MakeInt(10)});
    return checkpoint::MakeDict(std::move(items));
  };
  source_->facts.carried["ds_config"] = {{{}, config(0, true)}};
  target_->facts.carried["ds_config"] = {{{}, config(1, false)}};
  EXPECT_NE(Broken("R7", "changed").text.find("ds_config.steps_per_print (10) is dropped"),
            std::string::npos);
  target_->facts.carried["ds_config"] = {{{}, config(1, true)}};
  const std::string text = Listed("R7", "re-derived").text;
  EXPECT_NE(text.find("ds_config.zero_optimization.stage: 0 -> 1"), std::string::npos) << text;
}

TEST_F(PairLawsTest, ADroppedClientEntryIsListed) {
  source_->facts.carried["client_note"] = {{{}, checkpoint::MakeString("x")}};
  EXPECT_NE(Listed("R7", "dropped").text.find("client_note is in the source only"),
            std::string::npos);
}

TEST_F(PairLawsTest, RandomStreamsAreListedByRank) {
  const auto rank = [](int32_t tensor) { return oracle::Place{"f", "", {tensor, 0, 0}}; };
  source_->facts.carried["rng_state"] = {{rank(0), Dict("seed", 1)}, {rank(1), Dict("seed", 2)}};
  target_->facts.carried["rng_state"] = {{rank(0), Dict("seed", 1)}};
  EXPECT_NE(
      Listed("R7", "re-derived").text.find("of 2 model files became 1: 1 as on the same rank"),
      std::string::npos);
}

TEST_F(PairLawsTest, StaleCopiesAreListed) {
  const size_t index = source_->Index("norm.weight");
  const at::Tensor copy = source_->Value("norm.weight", oracle::kWeight).clone();
  source_->stale[index][oracle::kWeight] = copy;
  EXPECT_NE(Listed("R7", "dropped").text.find("stale tied copy"), std::string::npos);
  target_->stale[index][oracle::kWeight] = copy.clone();
  EXPECT_NE(Listed("R7", "carried").text.find("stale tied copy"), std::string::npos);
  target_->stale[index][oracle::kWeight].zero_();
  EXPECT_NE(Listed("R7", "re-derived").text.find("replaced"), std::string::npos);
}

TEST_F(PairLawsTest, BatchSizesAreListedWhenDataParallelismChanges) {
  target_->facts.data_parallel = 4;
  target_->facts.carried["ds_config"] = {
      {{},
       checkpoint::MakeDict(
           {{checkpoint::MakeString("train_batch_size"), checkpoint::MakeInt(12)},
            {checkpoint::MakeString("train_micro_batch_size_per_gpu"), checkpoint::MakeInt(1)}})}};
  EXPECT_NE(Listed("R7", "re-derived").text.find("global 12 = micro 1 x accumulation 3 x DP 4"),
            std::string::npos);
}

}  // namespace
}  // namespace certify
