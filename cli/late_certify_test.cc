#include "cli/late_certify.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace cli {
namespace {

using checkpoint::ErrorCode;

TEST(LateCertify, ModuleBesideTheProgramIsLoadedOnce) {
  const auto first = LoadJudge(), second = LoadJudge();
  ASSERT_TRUE(first.ok()) << first.error().ToString();
  EXPECT_EQ(first.value(), second.value());
  // A call goes through: the folder is not there, and the module's own word says so.
  const auto judgement = certify::Check("/nonexistent/checkpoint", {});
  ASSERT_FALSE(judgement.ok());
  EXPECT_EQ(judgement.error().code, ErrorCode::kNotFound);
}

TEST(LateCertify, FileThatIsNoModuleIsNotFound) {
  const auto missing = LoadJudgeFrom("/nonexistent/libshardproof_judge.so");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(missing.error().where, "/nonexistent/libshardproof_judge.so");
}

TEST(LateCertify, LibraryWithoutTheTableIsOfAnotherBuild) {
  const auto other = LoadJudgeFrom("libm.so.6");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::kInconsistent);
}

// What the late loading is for: a program that does not judge does not load libtorch.
TEST(LateCertify, ProgramDoesNotNeedLibtorchToStart) {
  const std::string program = std::string(SHARDPROOF_BINARY_DIR) + "/shardproof";
  if (!std::ifstream(program)) GTEST_SKIP() << "shardproof is not built";
  EXPECT_EQ(std::system(("LD_LIBRARY_PATH= ldd " + program + " | grep -q libc.so").c_str()), 0);
  EXPECT_NE(std::system(("LD_LIBRARY_PATH= ldd " + program + " | grep -q libtorch").c_str()), 0);
}

}  // namespace
}  // namespace cli
