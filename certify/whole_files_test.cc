// What a digest or a comparison must say of files that are missing or unproved.
#include "certify/whole_files.h"

#include <gtest/gtest.h>

#include "certify/fake_oracle.h"

namespace certify {
namespace {

TEST(WholeFilesTest, AWholeCheckpointLacksNothing) {
  EXPECT_TRUE(WhatIsMissing(SubjectOf(SoundModel())).empty());
}

TEST(WholeFilesTest, AMissingFileIsNamed) {
  auto fake = SoundModel();
  fake->facts.files[0].present = false;
  const auto missing = WhatIsMissing(SubjectOf(fake));
  ASSERT_EQ(missing.size(), 1U);
  EXPECT_EQ(missing[0].kind, "missing-file");
  EXPECT_NE(missing[0].text.find(fake->facts.files[0].name), std::string::npos);
}

TEST(WholeFilesTest, AStateThatOneTrainableTensorLacksIsMissing) {
  auto fake = SoundModel();
  fake->Info("dense.bias").states.erase(oracle::kExpAvg);
  const auto missing = WhatIsMissing(SubjectOf(fake));
  ASSERT_EQ(missing.size(), 1U);
  EXPECT_EQ(missing[0].kind, "state-missing");
  EXPECT_EQ(missing[0].names, std::vector<std::string>{"dense.bias"});
}

TEST(WholeFilesTest, WeightsWithoutAnyOptimizerLackNothing) {
  auto fake = SoundModel();
  for (oracle::TensorInfo& info : fake->infos)
    for (const char* state : {oracle::kMaster, oracle::kExpAvg, oracle::kExpAvgSq})
      info.states.erase(state);
  EXPECT_TRUE(WhatIsMissing(SubjectOf(fake)).empty());
}

TEST(WholeFilesTest, RowsOfAUniversalFolderAreDealtOutToNobody) {
  oracle::Summary summary;
  summary.tensor_parallel = 2;
  EXPECT_EQ(QkvShards(summary), 2);
  summary.format = "deepspeed-universal";
  EXPECT_EQ(QkvShards(summary), 1);
}

}  // namespace
}  // namespace certify
