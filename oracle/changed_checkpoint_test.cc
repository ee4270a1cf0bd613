// Real checkpoints with one thing changed: files taken away, bits flipped, foreign files added.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "checkpoint/tree.h"
#include "oracle/oracle.h"
#include "oracle/test_files.h"

namespace oracle {
namespace {

namespace fs = std::filesystem;
using checkpoint::Value;

size_t IndexOf(const Oracle& oracle, const std::string& name) {
  for (size_t i = 0; i < oracle.tensors().size(); ++i) {
    if (oracle.tensors()[i].name == name) return i;
  }
  ADD_FAILURE() << "no tensor " << name;
  return 0;
}

bool HasFinding(const Oracle& oracle, const std::string& kind, bool fault) {
  for (const Finding& finding : oracle.summary().findings) {
    if (finding.kind == kind && finding.fault == fault) return true;
  }
  return false;
}

// Real checkpoints with one thing changed.
class Changed : public ::testing::Test {
 protected:
  // Copies a run; false (and the test is skipped) where the corpus is not there.
  void Copy(const std::string& run) {
    const fs::path source =
        fs::path(SHARDPROOF_SOURCE_DIR) / "fixtures/corpus" / run / "checkpoint";
    ASSERT_TRUE(fs::exists(source)) << source;
    fs::copy(source, folder_.path() / "run", fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path() / "run")) {
      fs::permissions(entry.path(), fs::perms::owner_all, fs::perm_options::add);
    }
    step_ = folder_.path() / "run" / "global_step4";
  }
  // Flips one bit of an element of a tensor of the file.
  void Flip(const std::string& name, const std::function<Value(const Value&)>& find,
            int64_t element) {
    const checkpoint::TorchFile file = Reopen(step_ / name);
    auto view = checkpoint::DecodeTensor(find(file.root), name);
    ASSERT_TRUE(view.ok()) << view.error().ToString();
    const int64_t bytes = checkpoint::ElementBytes(view.value().storage->dtype);
    const int64_t offset =
        view.value().storage->file_offset + (view.value().offset + element) * bytes;
    std::fstream stream(step_ / name, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(offset);
    char byte = 0;
    stream.get(byte);
    stream.seekp(offset);
    stream.put(static_cast<char>(byte ^ 1));
  }
  // Writes a file anew with its tree changed.
  void Rewrite(const std::string& name, const std::function<Value(const Value&)>& change) {
    const checkpoint::TorchFile file = Reopen(step_ / name);
    const auto status = checkpoint::WriteTorchFile(
        step_ / (name + ".new"), change(file.root), checkpoint::StringMemo::kByContent,
        [](const checkpoint::Storage& storage, std::span<std::byte> bytes) {
          const std::span<const std::byte> from = checkpoint::StorageBytes(storage);
          std::copy(from.begin(), from.end(), bytes.begin());
        });
    ASSERT_TRUE(status.ok()) << status.error().ToString();
    fs::rename(step_ / (name + ".new"), step_ / name);
  }
  std::shared_ptr<const Oracle> Open() {
    auto opened = Oracle::Open(folder_.path() / "run", {});
    EXPECT_TRUE(opened.ok()) << (opened.ok() ? "" : opened.error().ToString());
    return opened.ok() ? opened.value() : nullptr;
  }
  static int64_t Uncovered(const Oracle& oracle) {
    int64_t uncovered = 0;
    for (size_t i = 0; i < oracle.tensors().size(); ++i) {
      for (const auto& [state, dtype] : oracle.tensors()[i].states) {
        auto assembled = oracle.Assemble(i, state);
        EXPECT_TRUE(assembled.ok()) << (assembled.ok() ? "" : assembled.error().ToString());
        if (assembled.ok())
          uncovered += assembled.value().value.numel() - assembled.value().covered;
      }
    }
    return uncovered;
  }
  static std::set<std::string> Missing(const Oracle& oracle) {
    std::set<std::string> names;
    for (const FileFact& file : oracle.summary().files) {
      if (file.expected && !file.present) names.insert(file.name);
    }
    return names;
  }

  TestFolder folder_;
  fs::path step_;
};

constexpr char kPartitioned[] = "megatron_deepspeed/r2b_tp2pp2dp2_z1_fp16";
constexpr char kFused[] = "megatron_deepspeed/r1b_tp2pp2dp2_z0_fp16";

TEST_F(Changed, AnyMissingFileIsListedAndLeavesItsElementsUncovered) {
  for (const char* name :
       {"zero_pp_rank_1_mp_rank_00_optim_states.pt", "layer_03-model_01-model_states.pt"}) {
    Copy(kPartitioned);
    fs::remove(step_ / name);
    const auto oracle = Open();
    ASSERT_TRUE(oracle);
    EXPECT_EQ(Missing(*oracle), (std::set<std::string>{name}));
    EXPECT_GT(Uncovered(*oracle), 0) << name;
    fs::remove_all(folder_.path() / "run");
  }
}

// FusedAdam leaves the groups' step at 0, and an elastic save copies that beside the states.
TEST_F(Changed, StepBesideElasticStatesCountsNothingWhereTheyHaveTheirOwn) {
  Copy("deepspeed/z1_bf16_elastic_dp2");
  step_ = folder_.path() / "run" / "global_step3";
  Rewrite("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", [](const Value& root) {
    return checkpoint::WithEntry(
        root, "optimizer_state_dict",
        checkpoint::WithEntry(checkpoint::Get(root, "optimizer_state_dict"),
                              "base_optimizer_state_step", checkpoint::MakeInt(0)));
  });
  const auto oracle = Open();
  ASSERT_TRUE(oracle);
  std::multiset<double> steps;
  for (const Counter& counter : oracle->summary().counters) {
    if (counter.name == "optimizer step") steps.insert(counter.value);
  }
  EXPECT_EQ(steps, (std::multiset<double>{3, 3}));
}

TEST_F(Changed, MissingModelFileOfAStageStillOpens) {
  for (const std::string run : {kPartitioned, kFused}) {
    Copy(run);
    fs::remove(step_ / "mp_rank_03_model_states.pt");
    const auto oracle = Open();
    ASSERT_TRUE(oracle);
    EXPECT_EQ(Missing(*oracle), (std::set<std::string>{"mp_rank_03_model_states.pt"}));
    // Slice mappings name what the optimizer files hold; nothing names a lost flat group.
    EXPECT_EQ(Uncovered(*oracle) > 0, run == kFused);
    fs::remove_all(folder_.path() / "run");
  }
}

TEST_F(Changed, BothLayerFilesOfALayerMissingAreListed) {
  Copy(kPartitioned);
  fs::remove(step_ / "layer_02-model_00-model_states.pt");
  fs::remove(step_ / "layer_02-model_01-model_states.pt");
  const auto oracle = Open();
  ASSERT_TRUE(oracle);
  EXPECT_EQ(Missing(*oracle).size(), 2u);
  EXPECT_GT(Uncovered(*oracle), 0);
  EXPECT_EQ(oracle->tensors()[IndexOf(*oracle, "2.input_layernorm.weight")].canonical,
            "layers.0.input_layernorm.weight");
}

TEST_F(Changed, WholePipelineStageMissingStillOpens) {
  Copy(kFused);
  fs::remove(step_ / "mp_rank_02_model_states.pt");
  fs::remove(step_ / "mp_rank_03_model_states.pt");
  const auto oracle = Open();
  ASSERT_TRUE(oracle);
  EXPECT_EQ(Missing(*oracle).size(), 2u);
  EXPECT_GT(Uncovered(*oracle), 0);
}

TEST_F(Changed, FlippedReplicaOfANormIsADisagreement) {
  Copy(kPartitioned);
  Flip(
      "layer_03-model_01-model_states.pt",
      [](const Value& root) { return checkpoint::Get(root, "input_layernorm.weight"); }, 5);
  const auto oracle = Open();
  ASSERT_TRUE(oracle);
  auto weight = oracle->Assemble(IndexOf(*oracle, "3.input_layernorm.weight"), kWeight);
  ASSERT_TRUE(weight.ok());
  ASSERT_EQ(weight.value().disagreements.size(), 1u);
  EXPECT_EQ(weight.value().disagreements[0].first_index, 5);
  EXPECT_EQ(weight.value().disagreements[0].max_ulp, 1);
  EXPECT_EQ(weight.value().disagreements[0].second.rank.tensor, 1);
}

TEST_F(Changed, SecondDictionaryOfTheModelFileIsAReplica) {
  Copy("megatron_deepspeed/r0_tp2pp2dp2_z0_bf16");
  Flip(
      "mp_rank_01_model_states.pt",
      [](const Value& root) {
        return (*checkpoint::SequenceItems(
            checkpoint::GetPath(root, {"optimizer", "single_partition_of_fp32_groups"})))[0];
      },
      7);
  const auto oracle = Open();
  ASSERT_TRUE(oracle);
  int64_t disagreements = 0;
  for (size_t i = 0; i < oracle->tensors().size(); ++i) {
    auto master = oracle->Assemble(i, kMaster);
    ASSERT_TRUE(master.ok());
    EXPECT_EQ(master.value().covered, master.value().value.numel());
    for (const Disagreement& disagreement : master.value().disagreements) {
      if (disagreement.known_stale) continue;
      ++disagreements;
      EXPECT_EQ(disagreement.second.file, "global_step4/mp_rank_01_model_states.pt");
    }
  }
  EXPECT_EQ(disagreements, 1);
}

TEST_F(Changed, OneStaleMasterOfAFusedGroupIsNamed) {
  Copy(kFused);
  Flip(
      "mp_rank_00_model_states.pt",
      [](const Value& root) {
        return (*checkpoint::SequenceItems(
            checkpoint::GetPath(root, {"optimizer", "fp32_groups_flat"})))[0];
      },
      0);
  // One bit of the lowest byte does not change the rounded weight: still proved.
  EXPECT_TRUE(HasFinding(*Open(), "order-proved", false));
  Flip(
      "layer_01-model_00-model_states.pt",
      [](const Value& root) { return checkpoint::Get(root, "word_embeddings.weight"); }, 0);
  const auto oracle = Open();
  ASSERT_TRUE(oracle);
  EXPECT_TRUE(HasFinding(*oracle, "order-unproved", true));
  EXPECT_EQ(Uncovered(*oracle), 0);
}

TEST_F(Changed, SecondFileOfATiedLayerIsAReplica) {
  Copy("deepspeed/pp2_z1_bf16_dp2");
  step_ = folder_.path() / "run" / "global_step3";
  fs::copy_file(step_ / "layer_00-model_states.pt", step_ / "layer_05-model_states.pt");
  Flip(
      "layer_05-model_states.pt", [](const Value& root) { return checkpoint::Get(root, "weight"); },
      9);
  const auto oracle = Open();
  ASSERT_TRUE(oracle);
  auto weight = oracle->Assemble(IndexOf(*oracle, "tied_modules.embed.weight"), kWeight);
  ASSERT_TRUE(weight.ok());
  EXPECT_EQ(weight.value().replicas_compared, weight.value().value.numel());
  ASSERT_EQ(weight.value().disagreements.size(), 1u);
  EXPECT_EQ(weight.value().disagreements[0].first_index, 9);
}

TEST_F(Changed, ForeignFilesAndSurplusRanksAreReported) {
  Copy(kPartitioned);
  fs::copy_file(step_ / "mp_rank_03_model_states.pt", step_ / "mp_rank_04_model_states.pt");
  WriteText(step_ / "notes.txt", "hello");
  const auto oracle = Open();
  ASSERT_TRUE(oracle);
  EXPECT_TRUE(HasFinding(*oracle, "surplus-ranks", true));
  bool unknown = false;
  for (const FileFact& file : oracle->summary().files)
    unknown = unknown || (file.name == "notes.txt" && file.kind == "unknown");
  EXPECT_TRUE(unknown);
}

}  // namespace
}  // namespace oracle
