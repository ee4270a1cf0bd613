// The demands on every real checkpoint, one test a run: it is named rightly, its digests equal the
// truth from the memory of the writing process, its laws hold over exactly that many elements, it
// reaches other topologies, stages and layouts, each certified, and comes back the same.
//
// Nothing here knows a run by name: what is expected comes from truth.json and from the list of
// legal targets.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "certify/certify.h"
#include "reshape/reshape.h"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const fs::path kCorpus = SHARDPROOF_SOURCE_DIR "/fixtures/corpus";

std::vector<std::string> Runs() {
  std::vector<std::string> runs;
  for (const char* family : {"megatron_deepspeed", "deepspeed"}) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(kCorpus / family, ignored)) {
      if (fs::exists(entry.path() / "truth.json")) {
        runs.push_back(std::string(family) + "/" + entry.path().filename().string());
      }
    }
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

Json ReadJson(const fs::path& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

int64_t NumelOfJson(const Json& shape) {
  int64_t numel = 1;
  for (const auto& extent : shape) numel *= extent.get<int64_t>();
  return numel;
}

// What truth.json says, in one form for both families.
struct Truth {
  bool megatron = false;
  int32_t tensor_parallel = 1, pipeline_parallel = 1, data_parallel = 1, zero = 0;
  std::string dtype;
  bool supported = true;
  std::map<std::string, std::map<std::string, std::string>> digests;  // name -> state -> sha256
  int64_t numel = 0;  // elements of all states of all logical tensors
};

void ReadMegatron(const Json& json, Truth& truth) {
  const Json& options = json["driver_options"];
  truth.megatron = true;
  truth.tensor_parallel = options["tp"];
  truth.pipeline_parallel = options["pp"];
  truth.data_parallel = options["dp"];
  truth.zero = options["zero"];
  truth.dtype = options["dtype"];
  for (const Json& parameter : json["params"]) {
    for (const auto& [state, facts] : parameter["states"].items()) {
      const bool padded = facts.contains("unpadded_sha256");
      truth.digests[parameter["name"]][state == "fp32" ? "fp32_master" : state] =
          facts[padded ? "unpadded_sha256" : "sha256"];
      truth.numel += NumelOfJson(facts["shape"]);
    }
  }
}

void ReadPlain(const Json& json, Truth& truth) {
  const Json& options = json["run"];
  truth.pipeline_parallel = options["pp"];
  truth.data_parallel = options["dp"];
  truth.zero = options["stage"];
  truth.dtype = options["dtype"];
  if (options.value("moe", 0) != 0) truth.supported = false;
  for (const auto& [name, parameter] : json["params"].items()) {
    if (!parameter.contains("states")) continue;
    for (const auto& [state, facts] : parameter["states"].items()) {
      truth.digests[name][state == "fp32" ? "fp32_master" : state] = facts["sha256"];
      truth.numel += NumelOfJson(facts["shape"]);
    }
  }
  for (const auto& [name, facts] : json["buffers"].items()) {
    if (!facts.value("persistent", true)) continue;
    truth.digests[name]["weight"] = facts["sha256"];
    truth.numel += NumelOfJson(facts["shape"]);
  }
}

Truth ReadTruth(const fs::path& run) {
  const Json json = ReadJson(run / "truth.json");
  Truth truth;
  if (json.contains("driver_options")) {
    ReadMegatron(json, truth);
  } else {
    ReadPlain(json, truth);
  }
  if (truth.zero == 3) truth.supported = false;
  return truth;
}

// Runs whose code keeps [q | k | v] in each shard say so in nothing but their name: the order is
// the user's to declare.
checkpoint::QkvLayout DeclaredOrder(const std::string& run) {
  return run.find("_head_") != std::string::npos ? checkpoint::QkvLayout::kPerShard
                                                 : checkpoint::QkvLayout::kPerHeadGroup;
}

class CorpusAcceptanceTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    run_ = kCorpus / GetParam();
    source_ = run_ / "checkpoint";
    truth_ = ReadTruth(run_);
    work_ = fs::path(testing::TempDir()) / ("acceptance_" + std::to_string(getpid()));
    fs::remove_all(work_);
    fs::create_directories(work_);
    if (truth_.megatron) declared_.qkv_layout = DeclaredOrder(GetParam());
  }
  void TearDown() override { fs::remove_all(work_); }

  reshape::ReshapeOptions Options() const {
    reshape::ReshapeOptions options;
    options.flush = false;
    options.read.qkv_layout = declared_.qkv_layout;
    return options;
  }

  fs::path run_, source_, work_;
  Truth truth_;
  certify::Declared declared_;
};

TEST_P(CorpusAcceptanceTest, IsNamedRightlyOrRefusedByName) {
  const auto summary = certify::Inspect(source_, certify::Declared());
  if (!truth_.supported) {
    ASSERT_FALSE(summary.ok());
    EXPECT_EQ(summary.error().code, checkpoint::ErrorCode::kUnsupported);
    return;
  }
  ASSERT_TRUE(summary.ok()) << summary.error().ToString();
  const Json& json = summary.value();
  EXPECT_EQ(json["topology"]["tp"], truth_.tensor_parallel);
  EXPECT_EQ(json["topology"]["pp"], truth_.pipeline_parallel);
  EXPECT_EQ(json["topology"]["dp"], truth_.data_parallel);
  EXPECT_EQ(json["zero_stage"], truth_.zero);
  EXPECT_EQ(json["dtype"], truth_.dtype);
  EXPECT_GE(json["tensors"].size(), truth_.digests.size());
}

TEST_P(CorpusAcceptanceTest, DigestsEqualTheTruth) {
  if (!truth_.supported) GTEST_SKIP() << "refused by name; see IsNamedRightlyOrRefusedByName";
  const auto digest = certify::Digest(source_, certify::Declared(), "sha256");
  ASSERT_TRUE(digest.ok()) << digest.error().ToString();
  int64_t compared = 0;
  for (const auto& [name, states] : truth_.digests) {
    for (const auto& [state, sha256] : states) {
      ASSERT_TRUE(digest.value()["tensors"].contains(name)) << name;
      ASSERT_TRUE(digest.value()["tensors"][name].contains(state)) << name << " " << state;
      EXPECT_EQ(digest.value()["tensors"][name][state], sha256) << name << " " << state;
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

TEST_P(CorpusAcceptanceTest, LawsHoldOverEveryElementOfTheTruth) {
  if (!truth_.supported) GTEST_SKIP() << "refused by name; see IsNamedRightlyOrRefusedByName";
  const auto judgement = certify::Check(source_, certify::Declared());
  ASSERT_TRUE(judgement.ok()) << judgement.error().ToString();
  EXPECT_EQ(judgement.value().verdict, certify::Verdict::kHeld)
      << certify::JudgementJson(judgement.value(), false).dump(1);
  for (const certify::LawResult& law : judgement.value().laws) {
    if (law.law == "S2") {
      EXPECT_EQ(law.compared, truth_.numel);
    }
  }
}

// The targets tried: spread over the legal ones, and the crossings of layout, type and format
// beside them.
std::vector<reshape::TargetSpec> Targets(const reshape::Inventory& source) {
  std::vector<reshape::TargetSpec> specs;
  const auto legal = reshape::LegalTargets(source, {}, /*ranks_max=*/16);
  const size_t wanted = 7;
  const size_t stride = std::max<size_t>(1, legal.size() / wanted);
  for (size_t i = 0; i < legal.size(); i += stride) {
    if (legal[i] == source.topology) continue;
    specs.push_back({.tensor_parallel_size = legal[i].tensor_parallel_size,
                     .pipeline_parallel_size = legal[i].pipeline_parallel_size,
                     .data_parallel_size = legal[i].data_parallel_size,
                     .zero_stage = legal[i].zero_stage});
  }
  return specs;
}

std::string Describe(const reshape::TargetSpec& spec) {
  const auto number = [](const std::optional<int32_t>& of) {
    return of ? std::to_string(*of) : std::string("-");
  };
  return "tp" + number(spec.tensor_parallel_size) + "-pp" + number(spec.pipeline_parallel_size) +
         "-dp" + number(spec.data_parallel_size) + " zero" + number(spec.zero_stage) +
         (spec.universal ? " universal" : "") + (spec.layout ? " other layout" : "");
}

// The rules of `source` with the layers declared that its files show to share a tied module.
checkpoint::Rules WithTiesDeclared(const reshape::Inventory& source) {
  checkpoint::Rules rules = source.rules;
  for (const reshape::LogicalTensor& tensor : source.tensors) {
    if (!tensor.name.starts_with("tied_modules.")) continue;
    rules.tied.push_back({.canonical = tensor.canonical, .layers = tensor.layers});
  }
  return rules;
}

TEST_P(CorpusAcceptanceTest, ReachesOtherTopologiesCertifiedAndComesBackTheSame) {
  if (!truth_.supported) GTEST_SKIP() << "refused by name; see IsNamedRightlyOrRefusedByName";
  const auto source = reshape::ReadInventory(source_, Options().read);
  ASSERT_TRUE(source.ok()) << source.error().ToString();
  const auto digest = certify::Digest(source_, declared_, "xxh3-128");
  ASSERT_TRUE(digest.ok()) << digest.error().ToString();
  int reached = 0;
  for (const reshape::TargetSpec& spec : Targets(source.value())) {
    SCOPED_TRACE(Describe(spec));
    const fs::path there = work_ / ("there" + std::to_string(reached));
    const fs::path back = work_ / ("back" + std::to_string(reached));
    reshape::ReshapeOptions options = Options();
    options.target = spec;
    const auto out = reshape::Reshape(source_, there, options);
    ASSERT_TRUE(out.ok()) << out.error().ToString();
    const auto judgement = certify::Certify(source_, there, declared_, declared_);
    ASSERT_TRUE(judgement.ok()) << judgement.error().ToString();
    ASSERT_EQ(judgement.value().verdict, certify::Verdict::kHeld)
        << certify::JudgementJson(judgement.value(), true).dump(1);
    const auto target_digest = certify::Digest(there, declared_, "xxh3-128");
    ASSERT_TRUE(target_digest.ok()) << target_digest.error().ToString();
    EXPECT_EQ(target_digest.value()["whole"], digest.value()["whole"]);

    options.target = {.tensor_parallel_size = truth_.tensor_parallel,
                      .pipeline_parallel_size = truth_.pipeline_parallel,
                      .data_parallel_size = truth_.data_parallel,
                      .zero_stage = truth_.zero};
    options.target.wrapper = source.value().wrapper;
    options.target.elastic = source.value().elastic;
    options.target.cuts = source.value().cuts;
    auto home = reshape::Reshape(there, back, options);
    if (!home.ok() && !truth_.megatron && spec.pipeline_parallel_size == 1 &&
        truth_.pipeline_parallel > 1) {
      // One stage does not say which layers share a tied module: refused until it is declared.
      EXPECT_EQ(home.error().code, checkpoint::ErrorCode::kUndeclared);
      options.read.rules = WithTiesDeclared(source.value());
      home = reshape::Reshape(there, back, options);
    }
    ASSERT_TRUE(home.ok()) << home.error().ToString();
    const auto back_digest = certify::Digest(back, declared_, "xxh3-128");
    ASSERT_TRUE(back_digest.ok()) << back_digest.error().ToString();
    // Notices aside: a legacy source carries no checksums, what is written does.
    EXPECT_EQ(back_digest.value()["tensors"], digest.value()["tensors"]);
    EXPECT_EQ(back_digest.value()["whole"], digest.value()["whole"]);
    ++reached;
  }
  EXPECT_GE(reached, 3);
  RecordProperty("targets", reached);
}

// Why a universal folder cannot hold this run; nothing where it can.
std::optional<checkpoint::ErrorCode> NoUniversalForm(const reshape::Inventory& source) {
  if (source.elastic) return checkpoint::ErrorCode::kUndeclared;  // no hyper-parameters
  if (source.layout != reshape::NameLayout::kPipeline) return std::nullopt;
  for (const reshape::LogicalTensor& tensor : source.tensors) {
    if (tensor.group < 0 && tensor.alias_of.empty()) return checkpoint::ErrorCode::kUnsupported;
  }
  return std::nullopt;
}

TEST_P(CorpusAcceptanceTest, ReachesTheUniversalFolderCertifiedOrIsRefusedBeforeWriting) {
  if (!truth_.supported) GTEST_SKIP() << "refused by name; see IsNamedRightlyOrRefusedByName";
  const auto source = reshape::ReadInventory(source_, Options().read);
  ASSERT_TRUE(source.ok()) << source.error().ToString();
  const auto refusal = NoUniversalForm(source.value());
  reshape::ReshapeOptions options = Options();
  options.target = {.data_parallel_size = 2, .zero_stage = 1, .universal = true};
  const auto out = reshape::Reshape(source_, work_ / "there", options);
  if (refusal) {
    ASSERT_FALSE(out.ok());
    EXPECT_EQ(out.error().code, *refusal);
    EXPECT_FALSE(fs::exists(work_ / "there"));
    return;
  }
  ASSERT_TRUE(out.ok()) << out.error().ToString();
  certify::Declared universal = declared_;
  universal.universal = true;
  const auto judgement = certify::Certify(source_, work_ / "there", declared_, universal);
  ASSERT_TRUE(judgement.ok()) << judgement.error().ToString();
  EXPECT_EQ(judgement.value().verdict, certify::Verdict::kHeld)
      << certify::JudgementJson(judgement.value(), true).dump(1);
}

INSTANTIATE_TEST_SUITE_P(Corpus, CorpusAcceptanceTest, testing::ValuesIn(Runs()),
                         [](const testing::TestParamInfo<std::string>& run) {
                           std::string name = run.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

}  // namespace
