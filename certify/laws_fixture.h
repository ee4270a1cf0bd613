// What the tests of laws S1-S8 share: a sound model, and ways to ask for one law's result.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "certify/fake_oracle.h"
#include "certify/root_cause.h"
#include "certify/single_laws.h"

namespace certify {

inline std::vector<ScannedFile> WholeFiles() {
  ScannedFile file;
  file.digest.name = "global_step4/mp_rank_00_model_states.pt";
  file.torch = true;
  file.records_checked = 5;
  return {file};
}

// Asks a judgement for one law.
class JudgementTest : public ::testing::Test {
 protected:
  virtual Judgement Judge(const std::string& only) = 0;
  Judgement Judge() { return Judge(""); }
  LawResult Law(const std::string& number, const std::string& only = "") {
    for (const LawResult& law : Judge(only).laws)
      if (law.law == number) return law;
    ADD_FAILURE() << "no law " << number;
    return {};
  }
};

class LawsTest : public JudgementTest {
 protected:
  using JudgementTest::Judge;
  Judgement Judge(const std::string& only) override {
    const Subject subject = SubjectOf(fake_, only);
    auto laws = JudgeSingle(subject, files_, {});
    EXPECT_TRUE(laws.ok());
    Judgement judgement;
    judgement.laws = std::move(laws).value();
    Conclude(judgement);
    return judgement;
  }
  // The first finding of the law, which must be a fault of this kind and make this law the root.
  Finding Broken(const std::string& number, const std::string& kind) {
    const Judgement judgement = Judge();
    EXPECT_EQ(judgement.verdict, Verdict::kBroken);
    EXPECT_EQ(judgement.root, number);
    for (const LawResult& law : judgement.laws) {
      if (law.law != number) continue;
      EXPECT_EQ(law.verdict, Verdict::kBroken);
      for (const Finding& finding : law.findings)
        if (finding.fault && finding.kind == kind) return finding;
    }
    ADD_FAILURE() << number << " has no fault of kind " << kind;
    return {};
  }
  // The law holds, with a notice of this kind.
  Finding Notice(const std::string& number, const std::string& kind) {
    const LawResult law = Law(number);
    EXPECT_EQ(law.verdict, Verdict::kHeld) << law.reason;
    for (const Finding& finding : law.findings) {
      EXPECT_FALSE(finding.fault) << finding.text;
      if (finding.kind == kind) return finding;
    }
    ADD_FAILURE() << number << " has no notice of kind " << kind;
    return {};
  }

  std::shared_ptr<FakeOracle> fake_ = SoundModel();
  std::vector<ScannedFile> files_ = WholeFiles();
};

// A replica on tensor rank 1 that differs by one unit in the last place.
inline oracle::Disagreement OneUlp(bool stale) {
  oracle::Disagreement disagreement;
  disagreement.first = {"layer_03-model_00-model_states.pt", "data/1", {0, 0, 0}};
  disagreement.second = {"layer_03-model_01-model_states.pt", "data/1", {1, 0, 0}};
  disagreement.differing = 1;
  disagreement.compared = 16;
  disagreement.first_index = 5;
  disagreement.max_ulp = 1;
  disagreement.known_stale = stale;
  return disagreement;
}

}  // namespace certify
