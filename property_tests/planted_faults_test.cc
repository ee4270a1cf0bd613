// Every planted fault is refuted, with its own law as the root, in generated checkpoints and in
// real ones; and the sound checkpoint before it was not. A fault that a checkpoint has no place for
// (kUsage) is counted, and each fault must find a place somewhere.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "certify/certify.h"
#include "fixtures/fixture.h"

namespace {

namespace fs = std::filesystem;

const fs::path kCorpus = SHARDPROOF_SOURCE_DIR "/fixtures/corpus";

struct Ground {  // a sound checkpoint into which faults are planted
  std::string name;
  fs::path folder;
};

class PlantedFaultsTest : public testing::Test {
 protected:
  void SetUp() override {
    work_ = fs::path(testing::TempDir()) / ("faults_" + std::to_string(getpid()));
    fs::remove_all(work_);
    fs::create_directories(work_);
  }
  void TearDown() override { fs::remove_all(work_); }

  // Damages a copy of the ground and returns the judgement; nothing where the fault has no place
  // there.
  std::optional<certify::Judgement> Damaged(const Ground& ground, const fixtures::Fault& fault) {
    const fs::path copy = work_ / "damaged";
    fs::remove_all(copy);
    fs::copy(ground.folder, copy, fs::copy_options::recursive);
    const auto planted = fixtures::PlantFault(copy, fault.name, /*seed=*/7);
    if (!planted.ok()) {
      EXPECT_EQ(planted.error().code, checkpoint::ErrorCode::kUsage)
          << fault.name << " in " << ground.name << ": " << planted.error().ToString();
      return std::nullopt;
    }
    const auto judgement =
        fault.needs_pair ? certify::Certify(ground.folder, copy, {}, {}) : certify::Check(copy, {});
    if (!judgement.ok()) {
      // A checkpoint that cannot be read as one is refused with an error, which is no verdict but
      // no pass either.
      if (fault.law == "S1" || fault.law == "S8") return std::nullopt;
      ADD_FAILURE() << fault.name << " in " << ground.name << ": " << judgement.error().ToString();
      return std::nullopt;
    }
    return judgement.value();
  }

  void ExpectRefuted(const std::vector<Ground>& grounds, size_t places_min) {
    std::map<std::string, size_t> places;
    for (const Ground& ground : grounds) {
      const auto sound = certify::Check(ground.folder, {});
      ASSERT_TRUE(sound.ok()) << ground.name << ": " << sound.error().ToString();
      ASSERT_EQ(sound.value().verdict, certify::Verdict::kHeld)
          << ground.name << certify::JudgementJson(sound.value(), false).dump(1);
      for (const fixtures::Fault& fault : fixtures::Faults()) {
        const auto judgement = Damaged(ground, fault);
        if (!judgement) continue;
        ++places[fault.name];
        EXPECT_EQ(judgement->verdict, certify::Verdict::kBroken)
            << fault.name << " in " << ground.name;
        EXPECT_EQ(judgement->root, fault.law) << fault.name << " in " << ground.name
                                              << certify::JudgementJson(*judgement, false).dump(1);
      }
    }
    for (const fixtures::Fault& fault : fixtures::Faults()) {
      EXPECT_GE(places[fault.name], places_min) << fault.name << " found no place";
    }
  }

  Ground Generated(const std::string& name, const fixtures::FixtureSpec& spec) {
    const Ground ground{name, work_ / name};
    const auto written = fixtures::WriteFixture(ground.folder, spec);
    EXPECT_TRUE(written.ok()) << written.error().ToString();
    return ground;
  }

  fs::path work_;
};

fixtures::FixtureSpec Spec(int32_t tensor_parallel, int32_t pipeline_parallel,
                           int32_t data_parallel) {
  fixtures::FixtureSpec spec;
  spec.tensor_parallel = tensor_parallel;
  spec.pipeline_parallel = pipeline_parallel;
  spec.data_parallel = data_parallel;
  return spec;
}

TEST_F(PlantedFaultsTest, AreRefutedByTheirOwnLawInGeneratedCheckpoints) {
  fixtures::FixtureSpec zero = Spec(2, 2, 2);
  zero.zero_stage = 1;
  zero.wrapper = fixtures::OptimizerWrapper::kZero;
  fixtures::FixtureSpec bf16 = Spec(2, 2, 3);
  bf16.zero_stage = 1;
  bf16.dtype = checkpoint::DType::kBFloat16;
  bf16.wrapper = fixtures::OptimizerWrapper::kBf16;
  fixtures::FixtureSpec stage2 = Spec(2, 1, 2);
  stage2.zero_stage = 2;
  stage2.wrapper = fixtures::OptimizerWrapper::kZero;
  stage2.pipeline_layout = false;
  fixtures::FixtureSpec llama = Spec(2, 2, 2);
  llama.model.architecture = fixtures::Architecture::kLlama;
  llama.model.key_value_heads = 4;
  llama.zero_stage = 1;
  llama.wrapper = fixtures::OptimizerWrapper::kZero;
  fixtures::FixtureSpec plain = Spec(1, 1, 3);
  plain.model.architecture = fixtures::Architecture::kPlainDeepSpeed;
  plain.pipeline_layout = false;
  plain.zero_stage = 1;
  plain.wrapper = fixtures::OptimizerWrapper::kZero;
  ExpectRefuted(
      {Generated("fused", Spec(2, 2, 1)), Generated("zero", zero), Generated("bf16", bf16),
       Generated("stage2", stage2), Generated("llama", llama), Generated("plain", plain)},
      1);
}

// A source that contradicts itself is no one checkpoint, however sound the target is.
TEST_F(PlantedFaultsTest, InASourceRefuteASoundTarget) {
  fixtures::FixtureSpec zero = Spec(2, 2, 3);  // which leaves alignment padding
  zero.zero_stage = 1;
  zero.wrapper = fixtures::OptimizerWrapper::kZero;
  const Ground ground = Generated("sound", zero);
  const std::set<std::string> laws = {"S1", "S2", "S3", "S6", "S8"};
  std::set<std::string> refuted_by;
  for (const fixtures::Fault& fault : fixtures::Faults()) {
    if (fault.needs_pair || laws.count(fault.law) == 0) continue;
    const fs::path copy = work_ / "source";
    fs::remove_all(copy);
    fs::copy(ground.folder, copy, fs::copy_options::recursive);
    if (!fixtures::PlantFault(copy, fault.name, /*seed=*/7).ok()) continue;
    const auto judgement = certify::Certify(copy, ground.folder, {}, {});
    if (!judgement.ok()) continue;  // it cannot be read at all
    EXPECT_EQ(judgement.value().verdict, certify::Verdict::kBroken) << fault.name;
    EXPECT_EQ(judgement.value().root, "R8") << fault.name;
    for (const certify::LawResult& law : judgement.value().laws) {
      if (law.law != "R8") continue;
      ASSERT_FALSE(law.findings.empty()) << fault.name;
      bool own = false;
      for (const certify::Finding& finding : law.findings)
        own = own || (finding.fault && finding.kind == fault.law);
      EXPECT_TRUE(own) << fault.name << " is not said to break " << fault.law;
    }
    refuted_by.insert(fault.law);
  }
  EXPECT_EQ(refuted_by, laws);
}

TEST_F(PlantedFaultsTest, AreRefutedByTheirOwnLawInRealCheckpoints) {
  std::vector<Ground> grounds;
  for (const char* family : {"megatron_deepspeed", "deepspeed"}) {
    std::set<fs::path> runs;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(kCorpus / family, ignored))
      runs.insert(entry.path());
    for (const fs::path& run : runs) {
      const fs::path folder = run / "checkpoint";
      const auto summary = certify::Inspect(folder, {});
      if (summary.ok()) grounds.push_back({run.filename().string(), folder});
    }
  }
  ASSERT_GE(grounds.size(), 10u) << "the real checkpoints are not unpacked";
  ExpectRefuted(grounds, 1);
}

}  // namespace
