// The oracle against real checkpoints with truth taken from the memory of the processes that wrote
// them: every tensor, every state, bit for bit. Runs are found by listing the corpus; nothing here
// knows their names but for what README.md of the corpus promises.
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "oracle/oracle.h"

namespace oracle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string Sha256(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.contiguous();
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(static_cast<const unsigned char*>(bytes.const_data_ptr()), bytes.nbytes(), digest);
  std::string text;
  for (const unsigned char byte : digest) {
    char pair[3];
    std::snprintf(pair, sizeof(pair), "%02x", byte);
    text += pair;
  }
  return text;
}

std::vector<fs::path> Runs(const char* family) {
  std::vector<fs::path> runs;
  const fs::path root = fs::path(SHARDPROOF_SOURCE_DIR) / "fixtures/corpus" / family;
  if (!fs::exists(root)) return runs;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (fs::exists(entry.path() / "truth.json")) runs.push_back(entry.path());
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

json Truth(const fs::path& run) {
  std::ifstream file(run / "truth.json");
  return json::parse(file);
}

bool Unsupported(const fs::path& run, const json& truth) {
  if (truth.contains("run")) return truth["run"]["stage"] == 3 || truth["run"]["moe"] != 0;
  return truth["driver_options"]["zero"] == 3 || run.filename().string().rfind("moe", 0) == 0;
}

struct Tally {
  int64_t tensors = 0, states = 0, wrong = 0, elements = 0;
};

std::string OurState(const std::string& state) { return state == "fp32" ? kMaster : state; }

size_t IndexOf(const Oracle& oracle, const std::string& name) {
  for (size_t i = 0; i < oracle.tensors().size(); ++i) {
    if (oracle.tensors()[i].name == name) return i;
  }
  return oracle.tensors().size();
}

// One state against its digest. `truth` has sha256, and for vocabulary tensors unpadded_sha256.
void ExpectState(const Oracle& oracle, size_t index, const std::string& state, const json& truth,
                 Tally& tally) {
  const TensorInfo& info = oracle.tensors()[index];
  const std::string where = info.name + " " + state;
  ASSERT_EQ(info.states.count(state), 1u) << where;
  auto assembled = oracle.Assemble(index, state);
  ASSERT_TRUE(assembled.ok()) << where << ": " << assembled.error().ToString();
  at::Tensor value = assembled.value().value;
  EXPECT_EQ(assembled.value().covered, value.numel()) << where;
  EXPECT_EQ(assembled.value().held_twice, 0) << where;
  EXPECT_EQ(value.sizes().vec(), info.shape) << where;
  for (const Disagreement& disagreement : assembled.value().disagreements) {
    EXPECT_TRUE(disagreement.known_stale)
        << where << " " << disagreement.first.file << " and " << disagreement.second.file;
  }
  std::string expected = truth["sha256"];
  if (truth.contains("unpadded_sha256")) {
    expected = truth["unpadded_sha256"];
    value = value.narrow(0, 0, info.vocabulary_rows);
  }
  EXPECT_EQ(Sha256(value), expected) << where;
  tally.wrong += Sha256(value) != expected;
  tally.states += 1;
  tally.elements += value.numel();
}

void ExpectSound(const Oracle& oracle) {
  for (const PaddingAccount& account : oracle.summary().padding) {
    EXPECT_EQ(account.problem, "") << account.place.file << " group " << account.group;
    EXPECT_EQ(account.nonzero, 0) << account.place.file;
  }
  for (const FileFact& file : oracle.summary().files) {
    EXPECT_TRUE(file.present || !file.expected) << file.name;
  }
  for (const Finding& finding : oracle.summary().findings) {
    EXPECT_FALSE(finding.fault) << finding.kind << ": " << finding.text;
  }
}

void Print(const fs::path& run, const Oracle& oracle, const Tally& tally) {
  std::set<std::string> kinds;
  for (const Finding& finding : oracle.summary().findings) kinds.insert(finding.kind);
  std::string findings;
  for (const std::string& kind : kinds) findings += " " + kind;
  std::cout << "[ corpus   ] " << run.filename().string() << " tensors " << tally.tensors
            << " states " << tally.states << " elements " << tally.elements
            << (tally.wrong == 0 ? " ok" : " WRONG") << " " << oracle.summary().wrapper << findings
            << "\n";
}

std::string DType(const json& options) { return options["dtype"]; }

void ExpectMegatronRun(const fs::path& run, const json& truth, bool universal) {
  OpenOptions options;
  options.universal = universal;
  auto opened = Oracle::Open(run / "checkpoint", options);
  ASSERT_TRUE(opened.ok()) << opened.error().ToString();
  const Oracle& oracle = *opened.value();
  const json& driver = truth["driver_options"];
  EXPECT_EQ(oracle.summary().tensor_parallel, driver["tp"]);
  EXPECT_EQ(oracle.summary().pipeline_parallel, driver["pp"]);
  EXPECT_EQ(oracle.summary().data_parallel, driver["dp"]);
  EXPECT_EQ(oracle.summary().zero_stage, driver["zero"]);
  EXPECT_EQ(oracle.summary().dtype, DType(driver));
  EXPECT_EQ(oracle.summary().wrapper, truth["engine"]["optimizer"]);
  EXPECT_EQ(oracle.summary().global_steps, truth["engine"]["global_steps"]);
  EXPECT_EQ(oracle.summary().format, universal ? "deepspeed-universal" : "megatron-deepspeed");
  EXPECT_EQ(oracle.tensors().size(), truth["params"].size());
  Tally tally;
  for (const json& parameter : truth["params"]) {
    const std::string name = parameter["name"];
    const size_t index = IndexOf(oracle, name);
    ASSERT_LT(index, oracle.tensors().size()) << name;
    const TensorInfo& info = oracle.tensors()[index];
    EXPECT_EQ(info.canonical, parameter["canonical"]) << name;
    std::string parallel = parameter["parallel"];
    if (parallel == "vocab") parallel = "vocabulary";
    if (parallel == "column_swiglu") parallel = "column";
    EXPECT_EQ(info.parallel, parallel) << name;
    EXPECT_EQ(info.partition_dim, parameter["partition_dim"]) << name;
    EXPECT_EQ(info.step.value_or(-1), parameter["step"].get<double>()) << name;
    EXPECT_EQ(info.role, Role::kTrainable) << name;
    EXPECT_GE(info.group, 0) << name;
    ++tally.tensors;
    for (const auto& [state, digest] : parameter["states"].items()) {
      if (universal && state == "weight")
        continue;  // a universal folder of a pipeline holds no weights
      ExpectState(oracle, index, OurState(state), digest, tally);
    }
  }
  ExpectSound(oracle);
  Print(run, oracle, tally);
}

void ExpectStaleCopies(const fs::path& run, const json& truth) {
  auto opened = Oracle::Open(run / "checkpoint", {});
  ASSERT_TRUE(opened.ok());
  const Oracle& oracle = *opened.value();
  for (const json& parameter : truth["params"]) {
    const size_t index = IndexOf(oracle, parameter["name"]);
    auto copies = oracle.StaleCopy(index);
    ASSERT_TRUE(copies.ok());
    std::map<std::string, std::string> expected;
    if (parameter.contains("tied_copies") && parameter["tied_copies"].is_object()) {
      for (const auto& [stage, states] : parameter["tied_copies"].items()) {
        for (const auto& [state, copy] : states.items()) {
          if (copy.contains("sha256") && state != "weight")
            expected[OurState(state)] = copy["sha256"];
        }
      }
    }
    EXPECT_EQ(copies.value().size(), expected.size()) << parameter["name"];
    for (const auto& [state, digest] : expected)
      EXPECT_EQ(Sha256(copies.value().at(state)), digest) << parameter["name"] << state;
  }
}

TEST(CorpusMegatronTest, EveryStateOfEveryRunEqualsTruth) {
  const std::vector<fs::path> runs = Runs("megatron_deepspeed");
  ASSERT_FALSE(runs.empty());
  for (const fs::path& run : runs) {
    SCOPED_TRACE(run.filename().string());
    const json truth = Truth(run);
    if (Unsupported(run, truth)) {
      auto opened = Oracle::Open(run / "checkpoint", {});
      ASSERT_FALSE(opened.ok());
      EXPECT_EQ(opened.error().code, checkpoint::ErrorCode::kUnsupported);
      continue;
    }
    ExpectMegatronRun(run, truth, false);
    ExpectStaleCopies(run, truth);
    if (fs::exists(run / "checkpoint/latest_universal")) ExpectMegatronRun(run, truth, true);
  }
}

std::string PlainWrapper(const json& truth) {
  const std::string wrapper = truth["optimizer_class"][0];
  const bool known = wrapper.find("Optimizer") != std::string::npos;
  return known ? wrapper : "torch";
}

void ExpectFindings(const Oracle& oracle, const json& options) {
  const bool false_maps = options["round_robin"].get<bool>() && !options["align"].get<bool>();
  bool found = false;
  for (const Finding& finding : oracle.summary().findings)
    found = found || finding.kind == "false-slice-maps";
  EXPECT_EQ(found, false_maps);
}

void ExpectBuffers(const Oracle& oracle, const json& truth, Tally& tally) {
  for (const auto& [name, buffer] : truth["buffers"].items()) {
    const size_t index = IndexOf(oracle, name);
    if (!buffer.value("persistent", true)) continue;
    ASSERT_LT(index, oracle.tensors().size()) << name;
    EXPECT_EQ(oracle.tensors()[index].role, Role::kBuffer) << name;
    ++tally.tensors;
    ExpectState(oracle, index, kWeight, buffer, tally);
  }
}

void ExpectPlainParameter(const Oracle& oracle, const std::string& name, const json& parameter,
                          Tally& tally) {
  const size_t index = IndexOf(oracle, name);
  ASSERT_LT(index, oracle.tensors().size()) << name;
  const TensorInfo& info = oracle.tensors()[index];
  ++tally.tensors;
  if (parameter.contains("alias_of")) {
    EXPECT_EQ(info.alias_of, parameter["alias_of"]) << name;
    return;
  }
  const json& states = parameter["states"];
  EXPECT_EQ(info.states.size(), states.size()) << name;
  if (info.role == Role::kTrainable && parameter.contains("step") && !parameter["step"].is_null()) {
    EXPECT_EQ(info.step.value_or(-1), parameter["step"].get<double>()) << name;
  }
  EXPECT_EQ(info.role == Role::kTrainable, states.size() > 1) << name;
  EXPECT_EQ(info.group >= 0, states.size() > 1) << name;
  for (const auto& [state, digest] : states.items())
    ExpectState(oracle, index, OurState(state), digest, tally);
}

TEST(CorpusDeepSpeedTest, EveryStateOfEveryRunEqualsTruth) {
  const std::vector<fs::path> runs = Runs("deepspeed");
  ASSERT_FALSE(runs.empty());
  for (const fs::path& run : runs) {
    SCOPED_TRACE(run.filename().string());
    const json truth = Truth(run);
    auto opened = Oracle::Open(run / "checkpoint", {});
    if (Unsupported(run, truth)) {
      ASSERT_FALSE(opened.ok());
      EXPECT_EQ(opened.error().code, checkpoint::ErrorCode::kUnsupported);
      continue;
    }
    ASSERT_TRUE(opened.ok()) << opened.error().ToString();
    const Oracle& oracle = *opened.value();
    const json& options = truth["run"];
    EXPECT_EQ(oracle.summary().tensor_parallel, 1);
    EXPECT_EQ(oracle.summary().pipeline_parallel, options["pp"]);
    EXPECT_EQ(oracle.summary().data_parallel, options["dp"]);
    EXPECT_EQ(oracle.summary().zero_stage, options["stage"]);
    EXPECT_EQ(oracle.summary().dtype, DType(options));
    EXPECT_EQ(oracle.summary().wrapper, PlainWrapper(truth));
    EXPECT_EQ(oracle.summary().elastic, options["elastic"]);
    EXPECT_EQ(oracle.summary().legacy_container, options["legacy"]);
    EXPECT_EQ(oracle.summary().round_robin, options["round_robin"]);
    EXPECT_EQ(oracle.summary().global_steps, truth["global_steps"]);
    EXPECT_EQ(oracle.summary().skipped_steps, truth["skipped_steps"]);
    Tally tally;
    for (const auto& [name, parameter] : truth["params"].items())
      ExpectPlainParameter(oracle, name, parameter, tally);
    ExpectBuffers(oracle, truth, tally);
    EXPECT_EQ(oracle.tensors().size(), static_cast<size_t>(tally.tensors));
    ExpectFindings(oracle, options);
    ExpectSound(oracle);
    Print(run, oracle, tally);
  }
}

}  // namespace
}  // namespace oracle
