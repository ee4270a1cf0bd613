// A reshaped checkpoint looks like one that the framework itself wrote at that topology: same
// files, same keys in the same order, same classes, types and shapes. Both sides are real: two runs
// of one model at different topologies.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "checkpoint/tensor.h"
#include "checkpoint/tree.h"
#include "reshape/plan_fixture.h"
#include "reshape/reshape.h"

namespace reshape {
namespace {

namespace fs = std::filesystem;
using checkpoint::DType;
using checkpoint::Value;

fs::path Corpus() { return fs::path(SHARDPROOF_SOURCE_DIR) / "fixtures" / "corpus"; }

// One line a leaf: path, kind, and for what a topology decides also the value. Values of training
// (rates, random states) differ between runs.
class Outline {
 public:
  std::vector<std::string> lines;

  void Add(const Value& value, const std::string& path, int depth = 0) {
    if (depth > 40) return;
    if (checkpoint::IsTensor(value)) {
      const auto view = checkpoint::DecodeTensor(value, path);
      std::string text =
          view.ok() ? std::string(checkpoint::DTypeName(view.value().storage->dtype)) : "?";
      if (view.ok()) {
        for (const int64_t extent : view.value().shape) text += fmt::format(" {}", extent);
        text += fmt::format(" at {} of {}{}", view.value().offset, view.value().storage->numel,
                            view.value().requires_grad ? " grad" : "");
      }
      lines.push_back(path + ": " + text);
      return;
    }
    const std::string name = checkpoint::ClassName(value);
    if (const checkpoint::Items* items = checkpoint::MappingItems(value)) {
      lines.push_back(path + ": " + (name.empty() ? "dict" : name));
      for (const auto& [key, entry] : *items) {
        if (Skipped(checkpoint::AsString(key).value_or(""))) continue;
        Add(entry, path + "/" + checkpoint::Render(key, 80), depth + 1);
      }
      return;
    }
    if (const auto numbers = checkpoint::AsIntList(value)) {
      lines.push_back(path + ": " + checkpoint::Render(value, 400));
      return;
    }
    if (const std::vector<Value>* items = checkpoint::SequenceItems(value)) {
      lines.push_back(path + ": sequence");
      for (size_t i = 0; i < items->size(); ++i)
        Add((*items)[i], path + "/" + std::to_string(i), depth + 1);
      return;
    }
    const bool number = checkpoint::As<double>(value) != nullptr;
    lines.push_back(path + ": " + (number ? "float" : checkpoint::Render(value, 120)));
  }

 private:
  static bool Skipped(const std::string& key) {
    static const std::set<std::string> kSkipped = {
        "rng_state",      "random_rng_state",         "np_rng_state",   "torch_rng_state",
        "cuda_rng_state", "rng_tracker_states",       "global_samples", "save",
        "attn_mask",      "allow_transformer_engine", "np_rng",         "client_tensor"};
    return kSkipped.contains(key);
  }
};

std::vector<std::string> OutlineOf(const fs::path& path) {
  const auto file = checkpoint::OpenTorchFile(path);
  EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().ToString());
  Outline outline;
  if (file.ok()) outline.Add(file.value().root, "");
  return outline.lines;
}

std::set<std::string> FilesBelow(const fs::path& folder) {
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      files.insert(entry.path().lexically_relative(folder).generic_string());
  }
  return files;
}

struct Pair {
  std::string source, expected;   // runs, with their family folder
  std::set<std::string> ignored;  // lines with one of these in them differ for a reason that is
                                  // stated where it is given
  std::optional<Wrapper> wrapper = std::nullopt;
  bool universal = false;
};

class CorpusStructureTest : public ::testing::Test {
 protected:
  static bool Ignored(const Pair& pair, const std::string& line) {
    for (const std::string& part : pair.ignored) {
      if (line.find(part) != std::string::npos) return true;
    }
    return false;
  }

  static std::vector<std::string> Kept(const Pair& pair, const std::vector<std::string>& lines) {
    std::vector<std::string> kept;
    for (const std::string& line : lines) {
      if (!Ignored(pair, line)) kept.push_back(line);
    }
    return kept;
  }

  void Check(const Pair& pair) {
    SCOPED_TRACE(pair.source + " -> " + pair.expected);
    ReadOptions read;
    read.qkv_layout = checkpoint::QkvLayout::kPerHeadGroup;
    const auto expected = ReadInventory(Corpus() / pair.expected / "checkpoint", read);
    ASSERT_TRUE(expected.ok()) << expected.error().ToString();
    ReshapeOptions options;
    options.read = read;
    options.flush = false;
    options.target.tensor_parallel_size = expected.value().topology.tensor_parallel_size;
    options.target.pipeline_parallel_size = expected.value().topology.pipeline_parallel_size;
    options.target.data_parallel_size = expected.value().topology.data_parallel_size;
    options.target.zero_stage = expected.value().topology.zero_stage;
    options.target.layout = expected.value().layout;
    options.target.dtype = expected.value().weight_dtype;
    options.target.wrapper = pair.wrapper;
    options.target.universal = pair.universal;
    const fs::path out = FreshFolder("corpus_structure") / "out";
    const auto report = Reshape(Corpus() / pair.source / "checkpoint", out, options);
    ASSERT_TRUE(report.ok()) << report.error().ToString();
    fs::path folder = expected.value().folder.step_folder;
    if (pair.universal) folder += "_universal";
    const fs::path made = out / report.value().step_folder_name;
    const std::set<std::string> files = FilesBelow(folder);
    EXPECT_EQ(FilesBelow(made), files);
    for (const std::string& file : files) Compare(pair, made / file, folder / file);
  }

  static void Compare(const Pair& pair, const fs::path& made, const fs::path& real) {
    if (!fs::exists(made)) return;
    const auto a = Kept(pair, OutlineOf(made)), b = Kept(pair, OutlineOf(real));
    for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      const std::string left = i < a.size() ? a[i] : "(end)", right = i < b.size() ? b[i] : "(end)";
      if (left == right) continue;
      ADD_FAILURE() << real.filename() << ":\n  made " << left << "\n  real " << right;
      return;
    }
  }
};

// The step differs by one where the source's wrapper took a dummy step; scalers keep other
// counters.
const std::set<std::string> kSteps = {"'step': ", "/'step'"};

TEST_F(CorpusStructureTest, MegatronStagesAndTopologies) {
  const std::string m = "megatron_deepspeed/";
  Check({m + "r1_tp4pp4dp1_z0_fp16", m + "r1b_tp2pp2dp2_z0_fp16", {}});
  Check({m + "r1b_tp2pp2dp2_z0_fp16", m + "r1_tp4pp4dp1_z0_fp16", {}});
  Check({m + "r1_tp4pp4dp1_z0_fp16", m + "r7_tp1pp1dp1_z0_fp16", {}});
  Check({m + "r7_tp1pp1dp1_z0_fp16", m + "r1_tp4pp4dp1_z0_fp16", {}});
  Check({m + "r1_tp4pp4dp1_z0_fp16", m + "r2b_tp2pp2dp2_z1_fp16", kSteps});
  Check({m + "r2b_tp2pp2dp2_z1_fp16", m + "r1_tp4pp4dp1_z0_fp16", kSteps});
  Check({m + "r2a_tp2pp2dp2_z1_bf16", m + "r0_tp2pp2dp2_z0_bf16", {}});
  Check({m + "r0_tp2pp2dp2_z0_bf16", m + "r2a_tp2pp2dp2_z1_bf16", {}});
  Check({m + "r2a_tp2pp2dp2_z1_bf16", m + "r4_tp1pp2dp3_z1_bf16", {}});
  Check({m + "r4_tp1pp2dp3_z1_bf16", m + "r2a_tp2pp2dp2_z1_bf16", {}});
}

TEST_F(CorpusStructureTest, MegatronTypesAndLayouts) {
  const std::string m = "megatron_deepspeed/";
  // A section of a type that the source did not use has no more in it than that it is on.
  Check({m + "r2b_tp2pp2dp2_z1_fp16", m + "r2a_tp2pp2dp2_z1_bf16", {}, Wrapper::kBf16});
  Check({m + "r2a_tp2pp2dp2_z1_bf16", m + "r2b_tp2pp2dp2_z1_fp16", {"'fp16'", "loss_scaler"}});
  Check({m + "r2b_tp2pp2dp2_z1_fp16", m + "r3a_tp2pp1dp2_z2_fp16", {}});
  Check({m + "r3a_tp2pp1dp2_z2_fp16", m + "r2b_tp2pp2dp2_z1_fp16", {}});
}

TEST_F(CorpusStructureTest, MegatronUniversalFolders) {
  const std::string m = "megatron_deepspeed/";
  Check({m + "r2a_tp2pp2dp2_z1_bf16", m + "r2a_tp2pp2dp2_z1_bf16", {}, std::nullopt, true});
  Check(
      {m + "r6_llama_tp2pp2dp2_z1_bf16", m + "r6_llama_tp2pp2dp2_z1_bf16", {}, std::nullopt, true});
}

TEST_F(CorpusStructureTest, PlainStagesAndWrappers) {
  const std::string d = "deepspeed/";
  Check({d + "z0_fp16_dp2", d + "z1_fp16_dp3", {"'step'"}});
  Check({d + "z1_fp16_dp3",
         d + "z0_fp16_dp2",
         {"'step'", "'tr'", "fp32_groups/0/1", "state'/1/"}});  // the framework keeps strides there
  Check({d + "z1_fp16_dp3", d + "z2_fp16_dp3", {}});
  Check({d + "z0_bf16_dp2", d + "z1_bf16_gfp32_dp3", {"'step'"}, Wrapper::kBf16});
  Check({d + "z1_bf16_dp4", d + "z2_bf16_dp4", {}});
  Check({d + "z1_bf16_elastic_dp2", d + "z2_bf16_elastic_dp4", {}});
  Check({d + "pp2_z0_fp16_dp2", d + "pp2_z1_bf16_dp2", {"'step'"}});
  Check({d + "pp2_z1_bf16_dp2", d + "pp2_z1_bf16_gfp32_dp2", {}, Wrapper::kBf16});
}

}  // namespace
}  // namespace reshape
