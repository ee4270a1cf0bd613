// The inventory of every real checkpoint at stages 0 to 2 against the truth that was taken from the
// memory of the processes that wrote it: tensors are put together from the pieces by the plainest
// loop, and hashed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/tensor.h"
#include "reshape/inventory.h"
#include "reshape/sha256_for_test.h"

namespace reshape {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// SHARDPROOF_CORPUS names another folder of the same structure, for runs that are not part of the
// repository.
fs::path Corpus() {
  const char* other = std::getenv("SHARDPROOF_CORPUS");
  return other != nullptr ? fs::path(other)
                          : fs::path(SHARDPROOF_SOURCE_DIR) / "fixtures" / "corpus";
}

struct Assembled {
  std::string bytes;
  bool once = true;  // every element exactly once
};

int64_t Product(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t extent : shape) numel *= extent;
  return numel;
}

Assembled Assemble(const LogicalTensor& tensor, const StatePieces& state) {
  const auto width = static_cast<size_t>(checkpoint::ElementBytes(state.dtype));
  const auto numel = static_cast<size_t>(Product(tensor.shape));
  Assembled result{std::string(numel * width, '\0'), true};
  std::vector<int> held(numel, 0);
  for (const Piece& piece : state.pieces) {
    EXPECT_EQ(piece.storage->dtype, state.dtype);
    const auto source = checkpoint::StorageBytes(*piece.storage);
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      // Index i of the box, flattened row-major, as coordinates from the last dimension on.
      int64_t rest = i, full = 0, full_stride = 1,
              stored = piece.strides.empty() ? piece.offset + (i - piece.begin) : piece.offset;
      for (size_t d = tensor.shape.size(); d-- > 0;) {
        const int64_t at = rest % piece.box.extent[d];
        rest /= piece.box.extent[d];
        full += (piece.box.start[d] + at) * full_stride;
        full_stride *= tensor.shape[d];
        if (!piece.strides.empty()) stored += at * piece.strides[d];
      }
      if (full < 0 || full >= static_cast<int64_t>(numel) || stored < 0 ||
          stored >= piece.storage->numel) {
        result.once = false;
        return result;
      }
      ++held[static_cast<size_t>(full)];
      std::memcpy(result.bytes.data() + static_cast<size_t>(full) * width,
                  source.data() + static_cast<size_t>(stored) * width, width);
    }
  }
  for (const int count : held) result.once &= count == 1;
  return result;
}

struct Tally {
  int64_t tensors = 0, states = 0, wrong = 0;
};

void CompareState(const LogicalTensor& tensor, const StatePieces& state, const json& truth,
                  const std::string& what, Tally& tally) {
  Assembled whole = Assemble(tensor, state);
  EXPECT_TRUE(whole.once) << what << ": an element is not covered exactly once";
  EXPECT_EQ(checkpoint::DTypeName(state.dtype), truth.at("dtype").get<std::string>()) << what;
  std::string expected = truth.at("sha256");
  const auto shape = truth.at("shape").get<std::vector<int64_t>>();
  if (tensor.shape != shape && truth.contains("unpadded_shape")) {
    EXPECT_EQ(tensor.shape, truth.at("unpadded_shape").get<std::vector<int64_t>>()) << what;
    expected = truth.at("unpadded_sha256");
  } else {
    EXPECT_EQ(tensor.shape, shape) << what;
  }
  const std::string found = Sha256Hex(whole.bytes);
  EXPECT_EQ(found, expected) << what;
  ++tally.states;
  tally.wrong += found != expected || !whole.once;
}

const char* StateName(const std::string& truth_name) {
  return truth_name == "fp32" ? "fp32_master" : truth_name.c_str();
}

void CompareTensor(const Inventory& inventory, const LogicalTensor& tensor, const json& truth,
                   Tally& tally) {
  ++tally.tensors;
  for (const auto& [name, expected] : truth.at("states").items()) {
    auto state = tensor.states.find(StateName(name));
    // A bare fp32 optimizer has no masters: the weights are the masters.
    if (state == tensor.states.end() && name == "fp32" && inventory.wrapper == Wrapper::kFp32)
      state = tensor.states.find("weight");
    if (state == tensor.states.end()) {
      const bool weight_of_universal = inventory.wrapper == Wrapper::kUniversal && name == "weight";
      EXPECT_TRUE(weight_of_universal) << tensor.name << " has no " << name;
      tally.wrong += !weight_of_universal;
      continue;
    }
    CompareState(tensor, state->second, expected, tensor.name + " " + name, tally);
  }
  if (truth.contains("step") && !truth.at("step").is_null()) {
    EXPECT_TRUE(tensor.step.has_value()) << tensor.name;
    if (tensor.step) {
      EXPECT_EQ(tensor.step->value, truth.at("step").get<double>()) << tensor.name;
    }
  }
}

const LogicalTensor* Find(const Inventory& inventory, const std::string& name) {
  for (const LogicalTensor& tensor : inventory.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

json ReadJson(const fs::path& path) {
  std::ifstream in(path);
  return json::parse(in);
}

const char* ParallelText(checkpoint::Parallel parallel, checkpoint::Fused fused) {
  switch (parallel) {
    case checkpoint::Parallel::kReplicated:
      return "replicated";
    case checkpoint::Parallel::kRow:
      return "row";
    case checkpoint::Parallel::kVocabulary:
      return "vocab";
    case checkpoint::Parallel::kColumn:
      return fused == checkpoint::Fused::kGatedLinear ? "column_swiglu" : "column";
  }
  return "";
}

void CompareStaleCopy(const LogicalTensor& tensor, const json& copies, Tally& tally) {
  for (const auto& [stage, states] : copies.items()) {
    for (const auto& [name, copy] : states.items()) {
      if (copy.value("equal_to_first_stage", true) || name == "weight") continue;
      const auto state = tensor.stale_states.find(StateName(name));
      ASSERT_NE(state, tensor.stale_states.end()) << tensor.name << " stale " << name;
      const Assembled whole = Assemble(tensor, state->second);
      EXPECT_TRUE(whole.once);
      EXPECT_EQ(Sha256Hex(whole.bytes), copy.at("sha256").get<std::string>())
          << tensor.name << " stale " << name;
      ++tally.states;
    }
  }
}

void CompareMegatron(const Inventory& inventory, const json& truth, Tally& tally) {
  const json& options = truth.at("driver_options");
  EXPECT_EQ(inventory.topology.tensor_parallel_size, options.at("tp").get<int>());
  EXPECT_EQ(inventory.topology.pipeline_parallel_size, options.at("pp").get<int>());
  EXPECT_EQ(inventory.topology.data_parallel_size, options.at("dp").get<int>());
  EXPECT_EQ(inventory.topology.zero_stage, options.at("zero").get<int>());
  EXPECT_TRUE(inventory.megatron);
  EXPECT_EQ(inventory.tensors.size(), truth.at("params").size());
  for (const json& expected : truth.at("params")) {
    const LogicalTensor* tensor = Find(inventory, expected.at("name"));
    ASSERT_NE(tensor, nullptr) << expected.at("name");
    EXPECT_EQ(tensor->canonical, expected.at("canonical").get<std::string>());
    EXPECT_EQ(ParallelText(tensor->parallel, tensor->fused),
              expected.at("parallel").get<std::string>())
        << tensor->name;
    std::vector<PipelineStage> stages;
    for (const int stage : expected.at("stages").get<std::vector<int>>())
      stages.push_back(PipelineStage{stage});
    EXPECT_EQ(tensor->stages, stages) << tensor->name;
    CompareTensor(inventory, *tensor, expected, tally);
    if (expected.contains("tied_copies") && expected.at("tied_copies").is_object() &&
        inventory.wrapper != Wrapper::kUniversal) {
      CompareStaleCopy(*tensor, expected.at("tied_copies"), tally);
    }
  }
}

void ComparePlain(const Inventory& inventory, const json& truth, Tally& tally) {
  std::set<std::string> names;
  for (const auto& [name, expected] : truth.at("params").items()) {
    names.insert(name);
    const LogicalTensor* tensor = Find(inventory, name);
    ASSERT_NE(tensor, nullptr) << name;
    if (expected.contains("alias_of")) {
      EXPECT_EQ(tensor->alias_of, expected.at("alias_of").get<std::string>());
      EXPECT_TRUE(tensor->states.empty());
      continue;
    }
    EXPECT_EQ(tensor->alias_of, "") << name;
    // Parameters without elements are in the groups of a bare optimizer only.
    const bool empty = Product(tensor->shape) == 0 && inventory.wrapper != Wrapper::kFp32;
    const bool trained = expected.at("trainable").get<bool>() && !empty;
    EXPECT_EQ(tensor->role, trained ? Role::kTrainable : Role::kFrozen) << name;
    EXPECT_EQ(tensor->group >= 0, trained) << name;
    CompareTensor(inventory, *tensor, expected, tally);
  }
  for (const auto& [name, expected] : truth.at("buffers").items()) {
    if (!expected.value("persistent", true)) continue;
    names.insert(name);
    const LogicalTensor* tensor = Find(inventory, name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->role, Role::kBuffer) << name;
    ++tally.tensors;
    CompareState(*tensor, tensor->states.at("weight"), expected, name, tally);
  }
  for (const LogicalTensor& tensor : inventory.tensors)
    EXPECT_TRUE(names.contains(tensor.name)) << tensor.name << " is not in the truth";
}

std::vector<fs::path> Runs() {
  std::vector<fs::path> runs;
  for (const char* family : {"megatron_deepspeed", "deepspeed"}) {
    std::error_code code;
    for (const auto& entry : fs::directory_iterator(Corpus() / family, code)) {
      if (fs::exists(entry.path() / "truth.json")) runs.push_back(entry.path());
    }
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

bool IsLater(const std::string& run) {
  return run.starts_with("z3_") || run.starts_with("moe") || run.find("_z3_") != std::string::npos;
}

void ReadAndCompare(const fs::path& run, const ReadOptions& options, const char* label) {
  const json truth = ReadJson(run / "truth.json");
  auto result = ReadInventory(run / "checkpoint", options);
  ASSERT_TRUE(result.ok()) << run << ": " << result.error().ToString();
  const Inventory& inventory = result.value();
  Tally tally;
  if (truth.contains("driver_options")) {
    CompareMegatron(inventory, truth, tally);
  } else {
    ComparePlain(inventory, truth, tally);
  }
  EXPECT_GT(tally.states, 0);
  // Slice maps are false exactly where round-robin order is not undone by padded parameter starts.
  const bool false_maps =
      std::any_of(inventory.notices.begin(), inventory.notices.end(),
                  [](const Notice& notice) { return notice.kind == "false-slice-maps"; });
  EXPECT_EQ(false_maps, inventory.round_robin && !inventory.parameter_alignment);
  std::string kinds;
  for (const Notice& notice : inventory.notices) kinds += " " + notice.kind;
  fmt::print("{:<42} {:<10} tensors {:>3} states {:>4} wrong {} notices{}\n",
             run.filename().string(), label, tally.tensors, tally.states, tally.wrong,
             kinds.empty() ? " none" : kinds);
}

class CorpusInventoryTest : public testing::TestWithParam<fs::path> {};

TEST_P(CorpusInventoryTest, MeetsTheTruthOfTheWriter) {
  const fs::path run = GetParam();
  if (IsLater(run.filename().string())) {
    const auto result = ReadInventory(run / "checkpoint", ReadOptions{});
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, checkpoint::ErrorCode::kUnsupported)
        << result.error().ToString();
    return;
  }
  ReadAndCompare(run, ReadOptions{}, "native");
  for (const auto& entry : fs::directory_iterator(run / "checkpoint")) {
    if (!entry.path().filename().string().ends_with("_universal") || !entry.is_directory())
      continue;
    ReadOptions options;
    options.tag = entry.path().filename().string();
    ReadAndCompare(run, options, "universal");
  }
}

std::string TestName(const testing::TestParamInfo<fs::path>& info) {
  return info.param.filename().string();
}

INSTANTIATE_TEST_SUITE_P(Runs, CorpusInventoryTest, testing::ValuesIn(Runs()), TestName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CorpusInventoryTest);

}  // namespace
}  // namespace reshape
