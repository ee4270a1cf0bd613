#include "cli/options.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/tree.h"
#include "cli/report.h"

namespace cli {
namespace {

using checkpoint::ErrorCode;

std::string FileWith(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

TEST(OptionsTest, CutsAreNumbersWithCommas) {
  const auto cuts = ParseCuts("0,4,9");
  ASSERT_TRUE(cuts.ok());
  EXPECT_EQ(cuts.value(), (std::vector<int64_t>{0, 4, 9}));
  EXPECT_TRUE(ParseCuts("").value().empty());
}

TEST(OptionsTest, CutsWithLettersGapsOrATrailingCommaAreUsageErrors) {
  for (const char* text : {"0,x,9", "0,,9", "0,4,", ",4", "0 4"}) {
    const auto cuts = ParseCuts(text);
    ASSERT_FALSE(cuts.ok()) << text;
    EXPECT_EQ(cuts.error().code, ErrorCode::kUsage) << text;
  }
}

TEST(OptionsTest, TypesHaveThreeNames) {
  EXPECT_EQ(ParseDType("fp16").value(), checkpoint::DType::kFloat16);
  EXPECT_EQ(ParseDType("bf16").value(), checkpoint::DType::kBFloat16);
  EXPECT_EQ(ParseDType("fp32").value(), checkpoint::DType::kFloat32);
  EXPECT_EQ(ParseDType("float16").error().code, ErrorCode::kUsage);
}

TEST(OptionsTest, UnknownWordsAreUsageErrors) {
  TargetFlags flags;
  flags.wrapper = "fast";
  EXPECT_EQ(ToTargetSpec(flags).error().code, ErrorCode::kUsage);
  flags = TargetFlags();
  flags.layout = "flat";
  EXPECT_EQ(ToTargetSpec(flags).error().code, ErrorCode::kUsage);
  flags = TargetFlags();
  flags.format = "zip";
  EXPECT_EQ(ToTargetSpec(flags).error().code, ErrorCode::kUsage);
  flags = TargetFlags();
  flags.moments = "zero";
  EXPECT_EQ(ToTargetSpec(flags).error().code, ErrorCode::kUsage);
  DeclarationFlags declarations;
  declarations.qkv_layout = "guess";
  EXPECT_EQ(ToDeclared(declarations).error().code, ErrorCode::kUsage);
}

TEST(OptionsTest, ParamGroupsBecomeDictionariesWithBetasAsATuple) {
  const std::string path = FileWith(
      "groups.json", R"([{"lr": 0.5, "betas": [0.9, 0.95], "name": "decay", "fused": null}])");
  const auto groups = ReadParamGroups(path);
  ASSERT_TRUE(groups.ok());
  const auto* list = checkpoint::SequenceItems(groups.value());
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(list->size(), 1u);
  EXPECT_EQ(checkpoint::AsNumber(checkpoint::Get((*list)[0], "lr")), 0.5);
  EXPECT_NE(checkpoint::As<checkpoint::TupleNode>(checkpoint::Get((*list)[0], "betas")), nullptr);
  EXPECT_TRUE(checkpoint::IsNone(checkpoint::Get((*list)[0], "fused")));
}

TEST(OptionsTest, ParamGroupsThatAreNoListOfFlatDictionariesAreUsageErrors) {
  for (const char* text : {"{}", "[]", "[1]", R"([{"a": {"b": 1}}])", "[{", R"([{"a": [[1]]}])"}) {
    EXPECT_EQ(ReadParamGroups(FileWith("bad.json", text)).error().code, ErrorCode::kUsage) << text;
  }
  EXPECT_EQ(ReadParamGroups("/nonexistent/groups.json").error().code, ErrorCode::kNotFound);
}

TEST(ReportPathsTest, NeverLieInsideACheckpoint) {
  const std::string folder = testing::TempDir() + "run";
  std::filesystem::create_directories(folder + "/global_step4");
  const ReportFiles inside{.json = folder + "/global_step4/c.json", .html = "", .junit = ""};
  EXPECT_EQ(CheckReportPaths(inside, {"", folder}).error().code, ErrorCode::kUsage);
  const ReportFiles beside{.json = folder + ".json", .html = "", .junit = ""};
  EXPECT_TRUE(CheckReportPaths(beside, {folder}).ok());
  const ReportFiles nowhere{.json = "", .html = folder + "/none/c.html", .junit = ""};
  EXPECT_EQ(CheckReportPaths(nowhere, {}).error().code, ErrorCode::kNotFound);
}

TEST(OptionsTest, ARulesFileThatDoesNotParseIsMalformedRules) {
  DeclarationFlags declarations;
  declarations.rules_file = FileWith("rules.json", "{\"schema\": ");
  EXPECT_EQ(ToDeclared(declarations).error().code, ErrorCode::kMalformedRules);
}

}  // namespace
}  // namespace cli
