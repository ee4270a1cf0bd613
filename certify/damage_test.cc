// Real checkpoints that were damaged: what the report says is intact, lost and rebuildable.
#include "certify/damage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "certify/certify.h"
#include "certify/fake_oracle.h"
#include "checkpoint/container.h"

namespace certify {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

const fs::path kRun =
    SHARDPROOF_SOURCE_DIR "/fixtures/corpus/megatron_deepspeed/r2a_tp2pp2dp2_z1_bf16/checkpoint";

TEST(IntervalsTest, IntersectionIsWhatBothHave) {
  const Intervals both = Intersect({{0, 4}, {6, 10}}, {{2, 7}, {9, 12}});
  EXPECT_EQ(both, (Intervals{{2, 4}, {6, 7}, {9, 10}}));
  EXPECT_EQ(CountOf(both), 4);
  EXPECT_TRUE(Intersect({{0, 4}}, {}).empty());
}

oracle::ShardCopy CopyOf(std::vector<oracle::CopyPiece> pieces) { return {{}, std::move(pieces)}; }

ordered_json TensorOf(const ordered_json& tensors, const std::string& name,
                      const std::string& state) {
  for (const auto& tensor : tensors)
    if (tensor["name"] == name && tensor["state"] == state) return tensor;
  return nullptr;
}

TEST(DamagedTensorsTest, APieceThatAnotherCopyHasIsRebuildable) {
  auto fake = SoundModel();
  const oracle::Place a{"a.pt", "data/1", {}}, b{"b.pt", "data/1", {}}, c{"c.pt", "data/1", {}};
  fake->copies[{fake->Index("norm.weight"), oracle::kExpAvg}] = {
      {CopyOf({{a, 8, true}, {b, 8, true}}), CopyOf({{c, 16, true}})}};
  const auto one = DamagedTensors(SubjectOf(fake), {{"a.pt", "data/1"}});
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0]["outcome"], "rebuildable");
  EXPECT_EQ(one[0]["lost"], 0);
  EXPECT_NE(one[0]["text"].get<std::string>().find("c.pt record data/1"), std::string::npos);
  const auto both = DamagedTensors(SubjectOf(fake), {{"b.pt", "data/1"}, {"c.pt", "data/1"}});
  EXPECT_EQ(both[0]["outcome"], "partly lost");
  EXPECT_EQ(both[0]["lost"], 8);
  EXPECT_NE(both[0]["text"].get<std::string>().find("elements 8 to 15"), std::string::npos);
}

TEST(DamagedTensorsTest, WeightsComeFromMastersExactlyAndMastersFromWeightsApproximately) {
  auto fake = SoundModel();
  const size_t index = fake->Index("dense.bias");
  const oracle::Place weight{"w.pt", "data/1", {}}, master{"m.pt", "data/1", {}};
  fake->copies[{index, oracle::kWeight}] = {{CopyOf({{weight, 16, true}})}};
  fake->copies[{index, oracle::kMaster}] = {{CopyOf({{master, 16, true}})}};
  const auto weights = DamagedTensors(SubjectOf(fake), {{"w.pt", "data/1"}});
  EXPECT_EQ(TensorOf(weights, "dense.bias", "weight")["outcome"], "rebuildable");
  EXPECT_EQ(TensorOf(weights, "dense.bias", "weight")["lost"], 16);
  const auto masters = DamagedTensors(SubjectOf(fake), {{"m.pt", "data/1"}});
  EXPECT_EQ(TensorOf(masters, "dense.bias", "fp32_master")["outcome"], "approximate");
  const auto both = DamagedTensors(SubjectOf(fake), {{"m.pt", "data/1"}, {"w.pt", "data/1"}});
  EXPECT_EQ(TensorOf(both, "dense.bias", "weight")["outcome"], "lost");
  EXPECT_EQ(TensorOf(both, "dense.bias", "fp32_master")["outcome"], "lost");
}

TEST(DamagedTensorsTest, AShardThatNobodyHoldsIsLost) {
  auto fake = SoundModel();
  const oracle::Place a{"a.pt", "data/1", {}};
  fake->copies[{fake->Index("dense.weight"), oracle::kExpAvg}] = {{CopyOf({{a, 16, true}})}, {}};
  const auto tensors = DamagedTensors(SubjectOf(fake), {});
  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_EQ(tensors[0]["outcome"], "partly lost");
  EXPECT_EQ(tensors[0]["lost"], 16);
  EXPECT_NE(tensors[0]["text"].get<std::string>().find("tensor rank 1: elements 0 to 15"),
            std::string::npos);
}

class DamageTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kRun)) GTEST_SKIP() << "the real checkpoints are not unpacked";
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    run_ = fs::path(testing::TempDir()) / (std::string("damage-") + test->name());
    fs::remove_all(run_);
    fs::create_directories(run_);
    fs::copy(kRun / "global_step4", run_ / "global_step4");
    fs::copy_file(kRun / "latest", run_ / "latest");
    fs::permissions(run_ / "global_step4", fs::perms::owner_all, fs::perm_options::add);
  }
  void TearDown() override { fs::remove_all(run_); }

  fs::path Step(const std::string& name) const { return run_ / "global_step4" / name; }
  // Flips a bit in the largest record of the file; returns its name.
  std::string FlipLargest(const std::string& name) {
    const auto file = checkpoint::OpenTorchFile(Step(name)).value();
    const checkpoint::Record largest =
        *std::max_element(file.records.begin(), file.records.end(),
                          [](const checkpoint::Record& a, const checkpoint::Record& b) {
                            const bool a_data = a.name.rfind("data/", 0) == 0;
                            const bool b_data = b.name.rfind("data/", 0) == 0;
                            if (a_data != b_data) return b_data;
                            return a.payload_bytes < b.payload_bytes;
                          });
    fs::permissions(Step(name), fs::perms::owner_write, fs::perm_options::add);
    std::fstream stream(Step(name), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(largest.payload_offset + 5);
    const int byte = stream.get();
    stream.seekp(largest.payload_offset + 5);
    stream.put(static_cast<char>(byte ^ 1));
    return largest.name;
  }
  void Cut(const std::string& name, uintmax_t bytes) {
    fs::permissions(Step(name), fs::perms::owner_write, fs::perm_options::add);
    fs::resize_file(Step(name), bytes);
  }
  ordered_json Damage() {
    const auto judgement = Check(run_, {});
    EXPECT_TRUE(judgement.ok());
    if (!judgement.ok()) return {};
    EXPECT_EQ(judgement.value().verdict, Verdict::kBroken);
    return judgement.value().damage;
  }
  static int64_t Count(const ordered_json& damage, const std::string& outcome) {
    return std::count_if(damage["tensors"].begin(), damage["tensors"].end(),
                         [&](const auto& tensor) { return tensor["outcome"] == outcome; });
  }

  fs::path run_;
};

constexpr char kOptimizer[] = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
constexpr char kLayer[] = "layer_02-model_00-model_states.pt";
constexpr char kNorm[] = "2.input_layernorm.weight";

TEST_F(DamageTest, ASoundCheckpointHasNoReport) {
  const auto judgement = Check(run_, {});
  ASSERT_TRUE(judgement.ok());
  EXPECT_TRUE(judgement.value().damage.is_null());
}

TEST_F(DamageTest, AFlippedBitOfAWeightIsRebuiltFromItsMaster) {
  const std::string record = FlipLargest(kLayer);
  const auto damage = Damage();
  ASSERT_EQ(damage["files"].size(), 1U);
  EXPECT_EQ(damage["files"][0]["name"], std::string("global_step4/") + kLayer);
  ASSERT_EQ(damage["files"][0]["lost"].size(), 1U);
  EXPECT_EQ(damage["files"][0]["lost"][0]["record"], record);
  EXPECT_GT(damage["files"][0]["intact"].size(), 10U);
  ASSERT_EQ(damage["tensors"].size(), 1U);
  EXPECT_EQ(damage["tensors"][0]["state"], "weight");
  EXPECT_EQ(damage["tensors"][0]["outcome"], "rebuildable");
}

TEST_F(DamageTest, AFileCutInHalfListsTheRecordsInFrontOfTheCut) {
  Cut(kLayer, fs::file_size(Step(kLayer)) / 2);
  const auto damage = Damage();
  ASSERT_EQ(damage["files"].size(), 1U);
  EXPECT_EQ(damage["files"][0]["intact"][0], "data.pkl");
  EXPECT_GT(damage["files"][0]["intact"].size(), 4U);
  EXPECT_EQ(damage["files"][0]["lost"].size(), 1U) << "the record that the cut goes through";
  // The norm is on the other tensor rank too; a split weight follows from its master.
  EXPECT_NE(TensorOf(damage["tensors"], kNorm, "weight")["text"].get<std::string>().find(
                "layer_02-model_01-model_states.pt"),
            std::string::npos);
  EXPECT_EQ(Count(damage, "lost") + Count(damage, "partly lost"), 0);
  EXPECT_GT(Count(damage, "rebuildable"), 5);
}

TEST_F(DamageTest, AMissingPartitionLosesMomentsAndLeavesMastersApproximate) {
  fs::remove(Step(kOptimizer));
  const auto damage = Damage();
  ASSERT_EQ(damage["files"].size(), 1U);
  EXPECT_EQ(damage["files"][0]["why"], "is not there");
  EXPECT_GT(Count(damage, "approximate"), 0);
  EXPECT_GT(Count(damage, "lost") + Count(damage, "partly lost"), 0);
  for (const auto& tensor : damage["tensors"]) EXPECT_NE(tensor["state"], "weight");
}

TEST_F(DamageTest, AnEmptyFileIsLostAndTheRestIsLookedAt) {
  Cut(kOptimizer, 0);
  const auto damage = Damage();
  ASSERT_EQ(damage["files"].size(), 1U);
  EXPECT_NE(damage["files"][0]["why"].get<std::string>().find("no record is left in its 0 bytes"),
            std::string::npos);
  EXPECT_GT(Count(damage, "approximate"), 0);
  const auto summary = Inspect(run_, {});
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary.value()["complete"], false);
  EXPECT_EQ(summary.value()["damage"], damage);
}

TEST_F(DamageTest, WithoutAnyModelFileTheRecordsAreStillListed) {
  for (const auto& entry : fs::directory_iterator(run_ / "global_step4")) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("mp_rank_", 0) == 0) Cut(name, fs::file_size(entry.path()) / 2);
  }
  const auto damage = Damage();
  EXPECT_EQ(damage["files"].size(), 4U);
  EXPECT_EQ(damage["tensors"].size(), 0U);
  EXPECT_NE(damage["note"].get<std::string>().find("tensors were not looked at"),
            std::string::npos);
}

}  // namespace
}  // namespace certify
