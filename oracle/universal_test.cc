// Universal folders, hand-made and small: what is read from them, what they must hold.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "checkpoint/tree.h"
#include "oracle/oracle.h"
#include "oracle/test_files.h"

namespace oracle {
namespace {

namespace fs = std::filesystem;
using checkpoint::Value;

std::vector<float> Numbers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kFloat).reshape({-1}).contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

// A universal folder of one parameter w, 2 x 2, after `skipped` skipped steps of three.
class UniversalFolder : public ::testing::Test {
 protected:
  // `frozen`: tensors that the module holds besides.
  void Write(int64_t skipped, bool moments, const Value& frozen = Dict({})) {
    fs::remove_all(Step());
    const Value weight = writer_.BFloats({1, 2, 3, 4, 0, 0}, {3, 2});
    writer_.Write(
        Step() / "mp_rank_00_model_states.pt",
        Dict({{"module", Dict({{"w", weight}, {"more", frozen}})},
              {"buffer_names", checkpoint::MakeList({})},
              {"optimizer", checkpoint::MakeNone()},
              {"param_shapes",
               checkpoint::MakeList({Dict({{"w", checkpoint::MakeTorchSize({3, 2})}})})},
              {"global_steps", checkpoint::MakeInt(3)},
              {"skipped_steps", checkpoint::MakeInt(skipped)},
              {"universal_checkpoint_info",
               Dict({{"original_vocab_size", checkpoint::MakeInt(2)},
                     {"vocabulary_parameter_patterns", checkpoint::MakeList({Key("w")})}})}}));
    const Value whole = Dict({{"param", writer_.Floats({1, 2, 3, 4}, {2, 2})}});
    const fs::path zero = Step() / "zero";
    writer_.Write(zero / "w" / "fp32.pt", whole);
    if (moments) writer_.Write(zero / "w" / "exp_avg.pt", whole);
    const Value scaler = Dict({{"cur_scale", checkpoint::MakeInt(4096)},
                               {"cur_iter", checkpoint::MakeInt(7)},
                               {"last_overflow_iter", checkpoint::MakeInt(5)}});
    writer_.Write(zero / "optimizer_state.pt",
                  Dict({{"loss_scaler", scaler},
                        {"zero_stage", checkpoint::MakeInt(1)},
                        {"param_groups",
                         checkpoint::MakeList({Dict({{"lr", checkpoint::MakeFloat(0.5)}})})}}));
    WriteText(folder_.path() / "latest_universal", "global_step3_universal");
  }
  std::shared_ptr<const Oracle> OpenUniversal() {
    OpenOptions options;
    options.universal = true;
    auto opened = Oracle::Open(folder_.path(), options);
    EXPECT_TRUE(opened.ok()) << (opened.ok() ? "" : opened.error().ToString());
    return opened.ok() ? opened.value() : nullptr;
  }
  static std::set<std::string> Missing(const Oracle& oracle) {
    std::set<std::string> names;
    for (const FileFact& file : oracle.summary().files)
      if (file.expected && !file.present) names.insert(file.name);
    return names;
  }
  fs::path Step() const { return folder_.path() / "global_step3_universal"; }

  TestFolder folder_;
  TreeWriter writer_;
};

TEST_F(UniversalFolder, LossScalerAndHyperParametersAreInTheCommonFile) {
  Write(0, true);
  const auto oracle = OpenUniversal();
  ASSERT_TRUE(oracle);
  std::map<std::string, double> counters;
  for (const Counter& counter : oracle->summary().counters) {
    if (counter.place.file.ends_with("optimizer_state.pt")) counters[counter.name] = counter.value;
  }
  EXPECT_EQ(counters, (std::map<std::string, double>{
                          {"cur_scale", 4096}, {"cur_iter", 7}, {"last_overflow_iter", 5}}));
  EXPECT_EQ(oracle->summary().groups.at(0).hyper_parameters.at("lr"), "0.5");
}

TEST_F(UniversalFolder, MomentsAreExpectedOnceAStepWasTaken) {
  Write(3, false);
  auto oracle = OpenUniversal();
  ASSERT_TRUE(oracle);
  EXPECT_EQ(Missing(*oracle), std::set<std::string>());
  Write(2, false);
  oracle = OpenUniversal();
  ASSERT_TRUE(oracle);
  EXPECT_EQ(Missing(*oracle), (std::set<std::string>{"zero/w/exp_avg.pt", "zero/w/exp_avg_sq.pt"}));
  Write(3, true);
  oracle = OpenUniversal();
  ASSERT_TRUE(oracle);
  EXPECT_EQ(Missing(*oracle), std::set<std::string>{"zero/w/exp_avg_sq.pt"});
}

TEST_F(UniversalFolder, PaddingRowsOfAModelFileBesideAreNoElements) {
  Write(0, true);
  const auto oracle = OpenUniversal();
  ASSERT_TRUE(oracle);
  ASSERT_EQ(oracle->tensors().size(), 1u);
  EXPECT_EQ(oracle->tensors()[0].shape, (std::vector<int64_t>{2, 2}));
  const auto weight = oracle->Assemble(0, kWeight);
  ASSERT_TRUE(weight.ok());
  EXPECT_EQ(weight.value().covered, 4);
  EXPECT_EQ(Numbers(weight.value().value), (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(UniversalFolder, CopiesOfWhatIsNotTrainedAreNoStates) {
  for (const float second : {6.0F, 7.0F}) {
    Write(0, true, Dict({{"b", writer_.BFloats({5, 6}, {2})}}));
    writer_.Write(Step() / "zero" / "more.b" / "fp32.pt",
                  Dict({{"param", writer_.Floats({5, second}, {2})}}));
    const auto oracle = OpenUniversal();
    ASSERT_TRUE(oracle);
    ASSERT_EQ(oracle->tensors().size(), 2u);
    EXPECT_EQ(oracle->tensors()[1].name, "more.b");
    EXPECT_EQ(oracle->tensors()[1].role, Role::kFrozen);
    EXPECT_EQ(oracle->tensors()[1].states.size(), 1u);
    EXPECT_EQ(Missing(*oracle), std::set<std::string>{"zero/w/exp_avg_sq.pt"});
    std::map<std::string, bool> kinds;
    for (const Finding& finding : oracle->summary().findings) kinds[finding.kind] = finding.fault;
    EXPECT_EQ(kinds.count("universal-copies"), 1u);
    EXPECT_EQ(kinds.count("universal-copy-differs"), second == 6.0F ? 0u : 1u);
  }
}

}  // namespace
}  // namespace oracle
