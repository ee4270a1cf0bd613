// Two checkpoints in memory, sound and equal until a test changes one, and their judgement.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "certify/fake_oracle.h"
#include "certify/laws_fixture.h"
#include "certify/pair_laws.h"
#include "certify/root_cause.h"
#include "certify/single_laws.h"
#include "checkpoint/value.h"

namespace certify {

inline checkpoint::Value Dict(const std::string& key, int64_t value) {
  return checkpoint::MakeDict({{checkpoint::MakeString(key), checkpoint::MakeInt(value)}});
}

class PairLawsTest : public JudgementTest {
 protected:
  using JudgementTest::Judge;
  Judgement Judge(const std::string& only) override {
    const Subject source = SubjectOf(source_), target = SubjectOf(target_, only);
    StatesEqual states(source, target, factor_);
    SourceIsOne one(source);
    states.ShowSource(
        [&](size_t index, const std::string& state, const oracle::Assembled& assembled) {
          one.Visit(index, state, assembled);
        });
    SweepOptions options;
    options.also = [&](size_t index, const std::string& state, const oracle::Assembled& assembled) {
      states.Visit(index, state, assembled);
    };
    ScannedFile file;
    file.records_checked = 1;
    auto laws = JudgeSingle(target, {file}, options);
    EXPECT_TRUE(laws.ok());
    Judgement judgement;
    judgement.laws = {CompareTensorLists(source, target),
                      states.FinishWeights(),
                      states.FinishMasters(),
                      states.FinishMoments(),
                      CompareTrainingState(source, target),
                      JudgeTargetAlone(laws.value())};
    judgement.laws.push_back(ListTheRest(source, target, states.Rest()));
    auto source_is_one = one.Finish(source_scanned_, 1);
    EXPECT_TRUE(source_is_one.ok());
    judgement.laws.push_back(std::move(source_is_one).value());
    for (LawResult& law : laws.value()) judgement.laws.push_back(std::move(law));
    Conclude(judgement);
    return judgement;
  }
  Finding Broken(const std::string& number, const std::string& kind) {
    const Judgement judgement = Judge();
    EXPECT_EQ(judgement.verdict, Verdict::kBroken);
    EXPECT_EQ(judgement.root, number);
    return Listed(number, kind, true);
  }
  Finding Listed(const std::string& number, const std::string& kind, bool fault = false) {
    std::string all;
    for (const Finding& finding : Law(number).findings) {
      if (finding.fault == fault && finding.kind == kind) return finding;
      all += finding.kind + ": " + finding.text + "\n";
    }
    ADD_FAILURE() << number << " has no such finding as " << kind << ", but\n" << all;
    return {};
  }
  // Changes a state of the target so that the target's own laws hold.
  void SetMaster(const std::string& name, int64_t index, float value) {
    target_->Value(name, oracle::kMaster).view(-1)[index] = value;
    target_->SetWeightType(checkpoint::DType::kFloat16);
    target_->ShareOut();
  }

  std::shared_ptr<FakeOracle> source_ = SoundModel(), target_ = SoundModel();
  std::vector<ScannedFile> source_scanned_ = WholeFiles();
  std::optional<double> factor_;
};

}  // namespace certify
