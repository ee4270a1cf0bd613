// The laws on real checkpoints: all hold on every run at stages 0 to 2, over exactly the elements
// that the writing process had in memory, with no notice but those that the runs are known for; a
// checkpoint certified against itself is certified.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "certify/certify.h"
#include "certify/schema_check.h"

namespace certify {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const fs::path kCorpus = SHARDPROOF_SOURCE_DIR "/fixtures/corpus";

Json ReadJson(const fs::path& path) {
  std::ifstream file(path);
  return Json::parse(file, nullptr, false);
}

std::vector<std::string> Runs() {
  std::vector<std::string> runs;
  for (const char* family : {"megatron_deepspeed", "deepspeed"}) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(kCorpus / family, ignored)) {
      const std::string name = entry.path().filename().string();
      const bool later = name.find("z3_") != std::string::npos || name.rfind("moe", 0) == 0;
      if (!later && fs::exists(entry.path() / "truth.json"))
        runs.push_back(std::string(family) + "/" + name);
    }
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

int64_t NumelOf(const Json& shape) {
  int64_t numel = 1;
  for (const Json& extent : shape) numel *= extent.get<int64_t>();
  return numel;
}

// Elements of each state, from truth.json.
std::map<std::string, int64_t> CountStates(const Json& truth) {
  std::map<std::string, int64_t> counts;
  for (const auto& [key, parameter] : truth["params"].items()) {
    if (!parameter.contains("states")) continue;
    for (const auto& [state, facts] : parameter["states"].items())
      counts[state] += NumelOf(facts["shape"]);
  }
  if (truth.contains("buffers"))
    for (const auto& [key, facts] : truth["buffers"].items())
      if (facts.value("persistent", true)) counts["weight"] += NumelOf(facts["shape"]);
  return counts;
}

class CorpusLawsTest : public ::testing::TestWithParam<std::string> {
 protected:
  fs::path Path() const { return kCorpus / GetParam() / "checkpoint"; }
  Json Truth() const { return ReadJson(kCorpus / GetParam() / "truth.json"); }
  bool Is(const char* word) const { return GetParam().find(word) != std::string::npos; }

  // Kinds of notices that this run must have.
  std::set<std::string> KnownNotices() const {
    std::set<std::string> known;
    const bool megatron = GetParam().rfind("megatron", 0) == 0;
    const bool stale_copy = megatron && !Is("pp1") && !Is("llama");
    if (stale_copy) known.insert("stale-tied-copy");
    if (Is("_rr_") && !Is("align")) known.insert("false-slice-maps");
    if (Is("legacy")) known.insert("no-checksums");
    // Optimizer states without names: how each got its name. BF16_Optimizer writes names at stage 0
    // too.
    if (!Is("z0_") || (megatron && Is("bf16"))) return known;
    if (Is("fp32")) {
      known.insert({"order-not-provable", "order-ambiguous"});
    } else {
      known.insert("order-proved");
    }
    if (stale_copy) known.insert("unproved-stale-tied-copy");
    if (Is("pp2_")) known.insert("tied-name-assumed");
    return known;
  }
  // Kinds that it may have.
  bool MayHave(const std::string& kind) const { return Is("edge") && kind == "never-trained"; }
};

TEST_P(CorpusLawsTest, AllHoldOverExactlyTheElementsOfTheTruth) {
  const auto judgement = Check(Path(), {});
  ASSERT_TRUE(judgement.ok()) << judgement.error().ToString();
  EXPECT_EQ(judgement.value().verdict, Verdict::kHeld)
      << JudgementJson(judgement.value(), false).dump(1);
  auto counts = CountStates(Truth());
  const int64_t all = counts["weight"] + counts["fp32"] + counts["exp_avg"] + counts["exp_avg_sq"];
  for (const LawResult& law : judgement.value().laws) {
    if (law.law == "S2") {
      EXPECT_EQ(law.compared, all);
    } else if (law.law == "S4" && law.verdict == Verdict::kHeld) {
      EXPECT_EQ(law.compared, counts["fp32"]);
    } else if (law.law == "S5") {
      EXPECT_EQ(law.compared, counts["exp_avg"] + counts["exp_avg_sq"]);
    }
  }
}

TEST_P(CorpusLawsTest, NoNoticesButTheKnownOnes) {
  const auto judgement = Check(Path(), {});
  ASSERT_TRUE(judgement.ok()) << judgement.error().ToString();
  const std::set<std::string> known = KnownNotices();
  std::set<std::string> met;
  for (const LawResult& law : judgement.value().laws)
    for (const Finding& finding : law.findings) {
      met.insert(finding.kind);
      EXPECT_TRUE(known.count(finding.kind) > 0 || MayHave(finding.kind))
          << law.law << " " << finding.kind << ": " << finding.text;
    }
  for (const std::string& kind : known)
    EXPECT_TRUE(met.count(kind) > 0) << kind << " is not reported";
}

TEST_P(CorpusLawsTest, DigestsEqualTheTruth) {
  const auto digest = Digest(Path(), {}, "sha256");
  ASSERT_TRUE(digest.ok()) << digest.error().ToString();
  const Json& tensors = digest.value()["tensors"];
  const Json truth = Truth();
  int64_t compared = 0;
  for (const auto& [key, parameter] : truth["params"].items()) {
    if (!parameter.contains("states")) continue;
    const std::string name =
        parameter.contains("name") ? parameter["name"].get<std::string>() : key;
    for (const auto& [state, facts] : parameter["states"].items()) {
      const std::string ours = state == "fp32" ? "fp32_master" : state;
      const char* field = facts.contains("unpadded_sha256") ? "unpadded_sha256" : "sha256";
      ASSERT_TRUE(tensors.contains(name) && tensors[name].contains(ours)) << name << " " << ours;
      EXPECT_EQ(tensors[name][ours], facts[field]) << name << " " << ours;
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

TEST_P(CorpusLawsTest, ACheckpointIsCertifiedAgainstItself) {
  const auto judgement = Certify(Path(), Path(), {}, {});
  ASSERT_TRUE(judgement.ok()) << judgement.error().ToString();
  EXPECT_EQ(judgement.value().verdict, Verdict::kHeld)
      << JudgementJson(judgement.value(), true).dump(1);
  const auto certificate = MakeCertificate(judgement.value(), Path(), Path(), {}, {});
  ASSERT_TRUE(certificate.ok()) << certificate.error().ToString();
  const Json schema = ReadJson(SHARDPROOF_SOURCE_DIR "/docs/certificate.schema.json");
  EXPECT_EQ(SchemaProblem(schema, certificate.value()), "");
  const auto verified = VerifyCertificate(certificate.value(), Path(), Path());
  ASSERT_TRUE(verified.ok()) << verified.error().ToString();
  EXPECT_EQ(verified.value().verdict, Verdict::kHeld)
      << JudgementJson(verified.value(), false).dump(1);
}

TEST_P(CorpusLawsTest, ComparesEqualWithItself) {
  const auto comparison = Compare(Path(), Path(), {}, {});
  ASSERT_TRUE(comparison.ok()) << comparison.error().ToString();
  EXPECT_EQ(comparison.value()["equal"], true);
  auto counts = CountStates(Truth());
  EXPECT_EQ(comparison.value()["compared"],
            counts["weight"] + counts["fp32"] + counts["exp_avg"] + counts["exp_avg_sq"]);
}

std::string TestName(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param.substr(info.param.find('/') + 1);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Runs, CorpusLawsTest, ::testing::ValuesIn(Runs()), TestName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CorpusLawsTest);

}  // namespace
}  // namespace certify
