// Certificates of real checkpoints: content, digests, the page, and what verify sees.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "certify/certify.h"
#include "certify/schema_check.h"

namespace certify {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const fs::path kRun = SHARDPROOF_SOURCE_DIR "/fixtures/corpus/deepspeed/z1_bf16_dp4/checkpoint";

Json ReadJson(const fs::path& path) {
  std::ifstream file(path);
  return Json::parse(file, nullptr, false);
}

// Two copies of a real run to change.
class CertificateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kRun)) GTEST_SKIP() << "the real checkpoints are not unpacked";
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    work_ = fs::temp_directory_path() / ("certificate_test_" + name);
    fs::remove_all(work_);
    fs::create_directories(work_);
    fs::copy(kRun, source_ = work_ / "source", fs::copy_options::recursive);
    fs::copy(kRun, target_ = work_ / "target", fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(work_))
      fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
  }
  void TearDown() override { fs::remove_all(work_); }

  Json Make() {
    auto judgement = Certify(source_, target_, {}, {});
    EXPECT_TRUE(judgement.ok()) << judgement.error().ToString();
    judgement_ = judgement.value();
    auto certificate = MakeCertificate(judgement_, source_, target_, {}, {});
    EXPECT_TRUE(certificate.ok()) << certificate.error().ToString();
    return certificate.value();
  }
  // Kinds of the findings of verify.
  std::vector<std::string> Verify(const Json& certificate) {
    const auto verified = VerifyCertificate(certificate, source_, target_);
    EXPECT_TRUE(verified.ok());
    std::vector<std::string> kinds;
    for (const Finding& finding : verified.value().laws.at(0).findings)
      kinds.push_back(finding.kind);
    EXPECT_EQ(verified.value().verdict, kinds.empty() ? Verdict::kHeld : Verdict::kBroken);
    return kinds;
  }
  fs::path OptimizerFile() const {
    return target_ / "global_step3" / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt";
  }
  void FlipByte(const fs::path& path, int64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(offset);
    file.put(byte);
  }

  fs::path work_, source_, target_;
  Judgement judgement_;
};

TEST_F(CertificateTest, IsTheSameTwiceAndFitsItsSchema) {
  const Json certificate = Make();
  EXPECT_EQ(certificate["verdict"], "certified");
  EXPECT_EQ(certificate, Make());
  const Json schema = ReadJson(SHARDPROOF_SOURCE_DIR "/docs/certificate.schema.json");
  ASSERT_TRUE(schema.is_object());
  EXPECT_EQ(SchemaProblem(schema, certificate), "");
  // One pointer, one model file, four optimizer files a side, and the script that DeepSpeed adds.
  EXPECT_GE(certificate["source"]["files"].size(), 6u);
}

TEST_F(CertificateTest, JudgementsFitTheirSchema) {
  Make();
  const Json schema = ReadJson(SHARDPROOF_SOURCE_DIR "/docs/check.schema.json");
  ASSERT_TRUE(schema.is_object());
  EXPECT_EQ(SchemaProblem(schema, JudgementJson(judgement_, true)), "");
  EXPECT_EQ(SchemaProblem(schema, JudgementJson(judgement_, false)), "");
}

TEST_F(CertificateTest, PythonsJsonSchemaAgrees) {
  const fs::path file = work_ / "certificate.json";
  std::ofstream(file) << Make().dump();
  const std::string code =
      "import sys, json, jsonschema; "
      "jsonschema.validate(json.load(open(sys.argv[1])), json.load(open(sys.argv[2])))";
  for (const std::string python : {SHARDPROOF_PYTHON, "python3"}) {
    if (std::system((python + " -c 'import jsonschema' 2>/dev/null").c_str()) != 0) continue;
    const std::string command = python + " -c '" + code + "' " + file.string() + " ";
    const std::string schema = SHARDPROOF_SOURCE_DIR "/docs/certificate.schema.json";
    EXPECT_EQ(std::system((command + schema).c_str()), 0);
    return;
  }
  GTEST_SKIP() << "no Python has jsonschema; IsTheSameTwiceAndFitsItsSchema checks the schema";
}

TEST_F(CertificateTest, ThePageNeedsNothingElse) {
  const std::string html = CertificateHtml(Make());
  EXPECT_NE(html.find("CERTIFIED"), std::string::npos);
  EXPECT_NE(html.find("masters are fresh"), std::string::npos);
  EXPECT_NE(html.find("bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt"), std::string::npos);
  for (const char* word : {"<script", "<link", "<img", "http:", "https:", "@import", "url("})
    EXPECT_EQ(html.find(word), std::string::npos) << word;
}

TEST_F(CertificateTest, ThePageOfAnythingIsAPage) {
  for (const char* text : {"{}", "[]", "{\"laws\": [1, {\"findings\": 3}], \"source\": []}",
                           "{\"verdict\": \"<script>\"}"}) {
    const std::string html = CertificateHtml(Json::parse(text));
    EXPECT_NE(html.find("</html>"), std::string::npos) << text;
    EXPECT_EQ(html.find("<script"), std::string::npos) << text;
  }
}

TEST_F(CertificateTest, VerifySeesEveryChangeOfAFile) {
  const Json certificate = Make();
  EXPECT_EQ(Verify(certificate), std::vector<std::string>{});
  FlipByte(OptimizerFile(), 3000);
  EXPECT_EQ(Verify(certificate), std::vector<std::string>{"changed"});
  FlipByte(OptimizerFile(), 3000);
  EXPECT_EQ(Verify(certificate), std::vector<std::string>{});
  std::ofstream(source_ / "global_step3" / "more.pt") << "x";
  EXPECT_EQ(Verify(certificate), std::vector<std::string>{"appeared"});
  fs::remove(source_ / "global_step3" / "more.pt");
  fs::resize_file(OptimizerFile(), 100);
  EXPECT_EQ(Verify(certificate), std::vector<std::string>{"changed"});
  fs::remove(OptimizerFile());
  EXPECT_EQ(Verify(certificate), std::vector<std::string>{"vanished"});
}

TEST_F(CertificateTest, VerifySeesAChangeOfTheCertificate) {
  Json certificate = Make();
  certificate["laws"][0]["compared"] = 1;
  EXPECT_EQ(Verify(certificate), std::vector<std::string>{"certificate-changed"});
}

TEST_F(CertificateTest, VerifyAlsoTakesStepFolders) {
  const Json certificate = Make();
  const auto verified =
      VerifyCertificate(certificate, source_ / "global_step3", target_ / "global_step3");
  ASSERT_TRUE(verified.ok()) << verified.error().ToString();
  EXPECT_EQ(verified.value().verdict, Verdict::kHeld);
}

TEST_F(CertificateTest, VerifyRefusesWhatIsNoCertificate) {
  for (const char* text : {"{}", "[]", "{\"format\": 3}",
                           "{\"format\": \"shardproof-certificate\", \"format_version\": 2}",
                           "{\"format\": \"shardproof-certificate\", \"format_version\": 1}"}) {
    const auto verified = VerifyCertificate(Json::parse(text), source_, target_);
    ASSERT_FALSE(verified.ok()) << text;
    EXPECT_EQ(verified.error().code, checkpoint::ErrorCode::kUsage);
  }
}

TEST_F(CertificateTest, AFlippedByteOfTheTargetRefutesWithRootS8) {
  FlipByte(OptimizerFile(), static_cast<int64_t>(fs::file_size(OptimizerFile())) / 2);
  const Json certificate = Make();
  EXPECT_EQ(certificate["verdict"], "refuted");
  EXPECT_EQ(certificate["root"], "S8");
  EXPECT_EQ(Verify(certificate), std::vector<std::string>{"not-certified"});
}

TEST_F(CertificateTest, ATruncatedTargetRefutesWithRootS8) {
  fs::resize_file(OptimizerFile(), fs::file_size(OptimizerFile()) * 2 / 3);
  const Json certificate = Make();
  EXPECT_EQ(certificate["verdict"], "refuted");
  EXPECT_EQ(certificate["root"], "S8");
  EXPECT_TRUE(certificate["target"]["checkpoint"].is_null());
  const Json schema = ReadJson(SHARDPROOF_SOURCE_DIR "/docs/certificate.schema.json");
  EXPECT_EQ(SchemaProblem(schema, certificate), "");
}

TEST_F(CertificateTest, ATruncatedSourceIsAnError) {
  std::swap(source_, target_);
  fs::resize_file(source_ / "global_step3" / "mp_rank_00_model_states.pt", 1000);
  const auto judgement = Certify(source_, target_, {}, {});
  ASSERT_FALSE(judgement.ok());
}

TEST_F(CertificateTest, AMissingFileOfTheTargetRefutesWithRootS1) {
  fs::remove(OptimizerFile());
  const Json certificate = Make();
  EXPECT_EQ(certificate["verdict"], "refuted");
  EXPECT_EQ(certificate["root"], "S1");
}

TEST_F(CertificateTest, EverythingDeclaredIsNamed) {
  Declared declared;
  declared.param_groups = "groups.json";
  declared.moments_rescale = true;
  const auto judgement = Certify(source_, target_, {}, declared);
  ASSERT_TRUE(judgement.ok());
  const auto certificate = MakeCertificate(judgement.value(), source_, target_, {}, declared);
  ASSERT_TRUE(certificate.ok());
  EXPECT_EQ(certificate.value()["source"]["declared"], Json::object());
  EXPECT_EQ(certificate.value()["target"]["declared"],
            Json({{"param_groups", "groups.json"}, {"moments", "rescale"}}));
  const Json schema = ReadJson(SHARDPROOF_SOURCE_DIR "/docs/certificate.schema.json");
  EXPECT_EQ(SchemaProblem(schema, certificate.value()), "");
}

TEST_F(CertificateTest, WhatIsNoCertificateSaysWhichEntryIsWrong) {
  const auto where = [&](const Json& json) {
    const auto verified = VerifyCertificate(json, source_, target_);
    return verified.ok() ? "verified" : verified.error().where;
  };
  Json json = Json::object();
  EXPECT_EQ(where(json), "format");
  json["format"] = "shardproof-certificate";
  EXPECT_EQ(where(json), "format_version");
  json["format_version"] = 1;
  EXPECT_EQ(where(json), "source.files");
}

TEST_F(CertificateTest, OnlyLeavesUndecided) {
  Declared declared;
  declared.only = "ln[.].*";
  const auto judgement = Certify(source_, target_, declared, declared);
  ASSERT_TRUE(judgement.ok());
  EXPECT_EQ(judgement.value().verdict, Verdict::kUndecided);
  declared.only = "(";
  const auto refused = Check(source_, declared);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, checkpoint::ErrorCode::kUsage);
}

TEST_F(CertificateTest, DigestNamesItsAlgorithms) {
  const auto refused = Digest(source_, {}, "md5");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, checkpoint::ErrorCode::kUsage);
  const auto digest = Digest(source_, {}, "xxh3-128");
  ASSERT_TRUE(digest.ok());
  EXPECT_EQ(digest.value()["whole"].get<std::string>().size(), 32u);
  // An alias is listed under its own name, with the digests of what it is.
  EXPECT_EQ(digest.value()["tensors"]["head.weight"]["weight"],
            digest.value()["tensors"]["emb.weight"]["weight"]);
}

TEST_F(CertificateTest, APatternThatMatchesNothingIsAUsageErrorOfDigestAndCompare) {
  Declared declared;
  declared.only = "eight";
  const auto digest = Digest(source_, declared, "xxh3-128");
  ASSERT_FALSE(digest.ok());
  EXPECT_EQ(digest.error().code, checkpoint::ErrorCode::kUsage);
  EXPECT_NE(digest.error().found.find("no tensor of"), std::string::npos);
  const auto comparison = Compare(source_, target_, declared, declared);
  ASSERT_FALSE(comparison.ok());
  EXPECT_EQ(comparison.error().code, checkpoint::ErrorCode::kUsage);
  declared.only = "emb.weight";
  const auto partial = Digest(source_, declared, "xxh3-128");
  ASSERT_TRUE(partial.ok());
  EXPECT_FALSE(partial.value().contains("whole"));
  EXPECT_TRUE(partial.value().contains("whole_of_selection"));
}

TEST_F(CertificateTest, InspectSaysWhatItIs) {
  const auto json = Inspect(source_, {});
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json.value()["format"], "deepspeed");
  EXPECT_EQ(json.value()["topology"]["dp"], 4);
  EXPECT_EQ(json.value()["zero_stage"], 1);
  EXPECT_EQ(json.value()["dtype"], "bf16");
  EXPECT_EQ(json.value()["step"], 3);
  bool found = false;
  for (const Json& tensor : json.value()["tensors"]) {
    if (tensor["name"] != "up.weight") continue;
    found = true;
    EXPECT_EQ(tensor["shape"], Json({211, 13}));
    EXPECT_EQ(tensor["dtype"], "bfloat16");
    EXPECT_EQ(tensor["states"], Json({"weight", "fp32_master", "exp_avg", "exp_avg_sq"}));
  }
  EXPECT_TRUE(found);
}

TEST_F(CertificateTest, InspectNamesMissingFilesAndFilesOfNoRank) {
  const auto sound = Inspect(source_, {});
  ASSERT_TRUE(sound.ok());
  EXPECT_EQ(sound.value()["complete"], true);
  EXPECT_EQ(sound.value()["missing_files"], Json::array());
  const fs::path step = source_ / sound.value()["tag"].get<std::string>();
  std::string name;
  for (const auto& entry : fs::directory_iterator(step))
    if (entry.path().filename().string().find("zero_pp_rank_1_") != std::string::npos)
      name = entry.path().filename().string();
  fs::copy_file(step / name, step / "mp_rank_999999_model_states.pt");
  fs::remove(step / name);
  const auto json = Inspect(source_, {});
  ASSERT_TRUE(json.ok()) << json.error().ToString();
  EXPECT_EQ(json.value()["complete"], false);
  EXPECT_EQ(json.value()["missing_files"], Json({name}));
  std::map<std::string, std::string> kinds;
  for (const Json& finding : json.value()["file_findings"])
    kinds[finding["file"].get<std::string>()] = finding["kind"].get<std::string>();
  EXPECT_EQ(kinds[name], "missing-file");
  EXPECT_EQ(kinds["mp_rank_999999_model_states.pt"], "extra-file");
}

}  // namespace
}  // namespace certify
