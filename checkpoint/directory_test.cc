#include "checkpoint/directory.h"

#include "checkpoint/test_support.h"

namespace checkpoint {
namespace {

namespace fs = std::filesystem;

FileName Parse(const std::string& name) { return ParseFileName("run/global_step3/" + name); }

TEST(FileNameTest, ModelStates) {
  const FileName file = Parse("mp_rank_07_model_states.pt");
  EXPECT_EQ(file.kind, FileKind::kModelStates);
  EXPECT_EQ(file.mp_number, 7);
  EXPECT_EQ(file.digits_mp, 2);
  EXPECT_EQ(file.zero_number, -1);
  EXPECT_EQ(file.layer_number, -1);
  EXPECT_EQ(file.name, "mp_rank_07_model_states.pt");
  EXPECT_EQ(file.path, "run/global_step3/mp_rank_07_model_states.pt");
  const FileName large = Parse("mp_rank_123_model_states.pt");
  EXPECT_EQ(large.mp_number, 123);
  EXPECT_EQ(large.digits_mp, 3);
}

TEST(FileNameTest, ZeroModelStates) {
  const FileName file = Parse("zero_pp_rank_12_mp_rank_03_model_states.pt");
  EXPECT_EQ(file.kind, FileKind::kZeroModelStates);
  EXPECT_EQ(file.zero_number, 12);
  EXPECT_EQ(file.mp_number, 3);
}

TEST(FileNameTest, OptimStatesWithEachPrefixAndTheOldForm) {
  for (const std::string prefix : {"", "bf16_", "fp16_"}) {
    for (const std::string separator : {"_", ""}) {
      const FileName file =
          Parse(prefix + "zero_pp_rank_10_mp_rank_102" + separator + "optim_states.pt");
      EXPECT_EQ(file.kind, FileKind::kOptimStates) << file.name;
      EXPECT_EQ(file.prefix, prefix);
      EXPECT_EQ(file.zero_number, 10);
      EXPECT_EQ(file.mp_number, 102);
      EXPECT_EQ(file.digits_mp, 3);
    }
  }
}

TEST(FileNameTest, LayerWithAndWithoutModelNumber) {
  const FileName file = Parse("layer_04-model_01-model_states.pt");
  EXPECT_EQ(file.kind, FileKind::kLayer);
  EXPECT_EQ(file.layer_number, 4);
  EXPECT_EQ(file.model_number, 1);
  EXPECT_EQ(file.digits_layer, 2);
  EXPECT_EQ(file.digits_model, 2);
  for (const char* name : {"layer_112-model_states.pt", "layer_112--model_states.pt"}) {
    const FileName bare = Parse(name);
    EXPECT_EQ(bare.kind, FileKind::kLayer) << name;
    EXPECT_EQ(bare.layer_number, 112);
    EXPECT_EQ(bare.model_number, -1);
    EXPECT_EQ(bare.digits_model, 0);
  }
}

TEST(FileNameTest, ExpertFiles) {
  const FileName file = Parse("layer_0_expert_13_mp_rank_01_model_states.pt");
  EXPECT_EQ(file.kind, FileKind::kExpert);
  EXPECT_EQ(file.layer_number, 0);
  EXPECT_EQ(file.expert_number, 13);
  EXPECT_EQ(file.mp_number, 1);
  const FileName old = Parse("expert_2_mp_rank_00_model_states.pt");
  EXPECT_EQ(old.kind, FileKind::kExpert);
  EXPECT_EQ(old.layer_number, -1);
  EXPECT_EQ(old.expert_number, 2);
  const FileName optim = Parse("expp_rank_3_mp_rank_00_optim_states.pt");
  EXPECT_EQ(optim.kind, FileKind::kExpertOptim);
  EXPECT_EQ(optim.expert_number, 3);
}

TEST(FileNameTest, KnownOthers) {
  for (const char* name : {"zero_to_fp32.py", "latest", "latest_universal",
                           "latest_checkpointed_iteration.txt", "certificate.shardproof.json"}) {
    EXPECT_EQ(Parse(name).kind, FileKind::kKnownOther) << name;
  }
}

TEST(FileNameTest, AlmostNamesAreUnknown) {
  for (const char* name : {"mp_rank__model_states.pt",
                           "mp_rank_0x1_model_states.pt",
                           "mp_rank_-1_model_states.pt",
                           "mp_rank_+1_model_states.pt",
                           "mp_rank_ 1_model_states.pt",
                           "mp_rank_00_model_states.pt.bak",
                           "xmp_rank_00_model_states.pt",
                           "mp_rank_00model_states.pt",
                           "Mp_rank_00_model_states.pt",
                           "mp_rank_1000001_model_states.pt",
                           "mp_rank_99999999999999999999_model_states.pt",
                           "fp32_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                           "bf16_bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                           "bf16_zero_pp_rank_0_mp_rank_00_model_states.pt",
                           "zero_pp_rank_0_mp_rank_00__optim_states.pt",
                           "layer_01-model_-model_states.pt",
                           "layer_01-model_00-model_states",
                           "layer_01---model_states.pt",
                           "layer_01model_states.pt",
                           "layer_0_expert_1_model_states.pt",
                           "layer_-model_states.pt",
                           "",
                           "latest.txt",
                           "shardproof.json.txt"}) {
    const FileName file = Parse(name);
    EXPECT_EQ(file.kind, FileKind::kUnknown) << name;
    EXPECT_EQ(file.mp_number, -1) << name;
    EXPECT_EQ(file.layer_number, -1) << name;
  }
}

// ---- Folders ----

class StepFolderTest : public testing::Test {
 protected:
  fs::path Run() const { return folder_.path(); }
  void Touch(const std::string& name, const std::string& content = "") {
    fs::create_directories((Run() / name).parent_path());
    WriteBytes(Run() / name, content);
  }
  void ExpectRefused(const fs::path& path, const std::string& tag, ErrorCode code) {
    const auto step = OpenStepFolder(path, tag);
    ASSERT_FALSE(step.ok());
    EXPECT_EQ(step.error().code, code) << step.error().ToString();
    EXPECT_FALSE(step.error().advice.empty());
  }

  TemporaryFolder folder_;
};

TEST_F(StepFolderTest, FollowsLatest) {
  Touch("latest", "global_step4");
  Touch("zero_to_fp32.py");
  Touch("global_step4/mp_rank_00_model_states.pt");
  Touch("global_step3/mp_rank_00_model_states.pt");
  for (const fs::path& path : {Run(), Run() / ""}) {
    const StepFolder step = OpenStepFolder(path, "").value();
    EXPECT_EQ(step.tag, "global_step4");
    EXPECT_EQ(step.step_folder, Run() / "global_step4");
    EXPECT_EQ(step.run_folder, Run());
    EXPECT_EQ(step.files.size(), 1u);
    EXPECT_FALSE(step.universal);
    EXPECT_EQ(step.run_files,
              (std::vector<std::string>{"global_step3", "latest", "zero_to_fp32.py"}));
  }
}

TEST_F(StepFolderTest, TagWinsOverLatest) {
  Touch("latest", "global_step4");
  Touch("global_step4/mp_rank_00_model_states.pt");
  Touch("global_step3/mp_rank_00_model_states.pt");
  EXPECT_EQ(OpenStepFolder(Run(), "global_step3").value().tag, "global_step3");
}

TEST_F(StepFolderTest, StepFolderItself) {
  Touch("latest", "global_step4");
  Touch("global_step3/mp_rank_00_model_states.pt");
  for (const fs::path& path : {Run() / "global_step3", Run() / "global_step3/"}) {
    const StepFolder step = OpenStepFolder(path, "").value();
    EXPECT_EQ(step.tag, "global_step3");
    EXPECT_EQ(step.run_folder, Run());
    EXPECT_EQ(step.run_files, (std::vector<std::string>{"latest"}));
  }
  fs::remove(Run() / "latest");
  EXPECT_TRUE(OpenStepFolder(Run() / "global_step3", "").value().run_files.empty());
}

TEST_F(StepFolderTest, DotIsTheFolderItStandsFor) {
  Touch("global_step3/mp_rank_00_model_states.pt");
  const fs::path before = fs::current_path();
  fs::current_path(Run() / "global_step3");
  const auto step = OpenStepFolder(".", "");
  fs::current_path(Run());
  const auto relative = OpenStepFolder("global_step3", "");
  fs::current_path(before);
  EXPECT_EQ(step.value().tag, "global_step3");
  EXPECT_EQ(relative.value().run_folder, ".");
}

// Sorted as text, 10 and 11 would stand before 2, and 100 before 99.
TEST_F(StepFolderTest, FilesAreInOrderOfNumbersNotOfText) {
  for (const int rank : {10, 2, 0, 11, 1}) {
    Touch("s/zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt");
  }
  for (const char* rank : {"100", "99", "101", "00", "09"}) {
    Touch("s/mp_rank_" + std::string(rank) + "_model_states.pt");
  }
  Touch("s/layer_10-model_00-model_states.pt");
  Touch("s/layer_09-model_01-model_states.pt");
  Touch("s/layer_09-model_00-model_states.pt");
  Touch("s/surprise.bin");
  const StepFolder step = OpenStepFolder(Run() / "s", "").value();
  std::vector<int64_t> model, zero;
  std::vector<std::string> layers;
  for (const FileName& file : step.files) {
    if (file.kind == FileKind::kModelStates) model.push_back(file.mp_number);
    if (file.kind == FileKind::kOptimStates) zero.push_back(file.zero_number);
    if (file.kind == FileKind::kLayer) layers.push_back(file.name.substr(0, 17));
  }
  EXPECT_EQ(model, (std::vector<int64_t>{0, 9, 99, 100, 101}));
  EXPECT_EQ(zero, (std::vector<int64_t>{0, 1, 2, 10, 11}));
  EXPECT_EQ(layers, (std::vector<std::string>{"layer_09-model_00", "layer_09-model_01",
                                              "layer_10-model_00"}));
  EXPECT_EQ(step.files.back().kind, FileKind::kUnknown);
}

TEST_F(StepFolderTest, LatestOfAMissingStepNamesThoseThatExist) {
  Touch("latest", "global_step9");
  Touch("global_step3/mp_rank_00_model_states.pt");
  Touch("global_step10/mp_rank_00_model_states.pt");
  ExpectRefused(Run(), "", ErrorCode::kMissingFile);
  const auto step = OpenStepFolder(Run(), "");
  EXPECT_NE(step.error().expected.find("global_step10, global_step3"), std::string::npos);
  EXPECT_NE(step.error().found.find("latest"), std::string::npos);
  ExpectRefused(Run(), "global_step8", ErrorCode::kMissingFile);
}

TEST_F(StepFolderTest, WhiteSpaceAroundTheTagIsIgnored) {
  Touch("latest", " \tglobal_step3\r\n");
  Touch("global_step3/mp_rank_00_model_states.pt");
  EXPECT_EQ(OpenStepFolder(Run(), "").value().tag, "global_step3");
}

TEST_F(StepFolderTest, PathTricksInTagsAreRefused) {
  Touch("global_step3/mp_rank_00_model_states.pt");
  Touch("run/global_step3/mp_rank_00_model_states.pt");
  for (const std::string& tag :
       {std::string(".."), std::string("."), std::string("../global_step3"), std::string("/etc"),
        std::string("a/b"), std::string("a\\b"), std::string("global\nstep3"),
        std::string("global_step3\0x", 14), std::string(256, 'x')}) {
    Touch("run/latest", tag);
    ExpectRefused(Run() / "run", "", ErrorCode::kNotACheckpoint);
    ExpectRefused(Run() / "run", tag, ErrorCode::kNotACheckpoint);
  }
  for (const char* empty : {"", " \n"}) {
    Touch("run/latest", empty);
    ExpectRefused(Run() / "run", "", ErrorCode::kNotACheckpoint);
  }
  Touch("run/latest", std::string(5000, 'x'));
  ExpectRefused(Run() / "run", "", ErrorCode::kLimitExceeded);
}

TEST_F(StepFolderTest, FoldersWithoutCheckpointAreRefused) {
  ExpectRefused(Run() / "none", "", ErrorCode::kNotFound);
  ExpectRefused(Run(), "", ErrorCode::kNotACheckpoint);
  Touch("file");
  ExpectRefused(Run() / "file", "", ErrorCode::kNotACheckpoint);
  Touch("global_step3/mp_rank_00_model_states.pt");
  ExpectRefused(Run(), "", ErrorCode::kNotACheckpoint);
  EXPECT_NE(OpenStepFolder(Run(), "").error().advice.find("global_step3"), std::string::npos);
}

TEST_F(StepFolderTest, UniversalFolder) {
  Touch("latest_universal", "global_step3_universal");
  Touch("global_step3_universal/zero/b.weight/fp32.pt");
  Touch("global_step3_universal/zero/a.weight/fp32.pt");
  Touch("global_step3_universal/zero/optimizer_state.pt");
  Touch("global_step3_universal/mp_rank_00_model_states.pt");
  const StepFolder step = OpenStepFolder(Run(), "").value();
  EXPECT_EQ(step.tag, "global_step3_universal");
  EXPECT_TRUE(step.universal);
  EXPECT_EQ(step.universal_parameters, (std::vector<std::string>{"a.weight", "b.weight"}));
  Touch("global_step4/zero/readme/text");
  Touch("global_step4/mp_rank_00_model_states.pt");
  EXPECT_FALSE(OpenStepFolder(Run() / "global_step4", "").value().universal);
  // Beside a native step it is not followed: whoever lost `latest` must say which is meant.
  ExpectRefused(Run(), "", ErrorCode::kMissingFile);
  EXPECT_TRUE(OpenStepFolder(Run(), "global_step3_universal").ok());
}

TEST_F(StepFolderTest, EveryCorpusFileHasAKnownName) {
  const fs::path corpus = SHARDPROOF_SOURCE_DIR "/fixtures/corpus";
  int steps = 0, files = 0;
  for (const auto& family : fs::directory_iterator(corpus)) {
    if (!family.is_directory()) continue;
    for (const auto& run : fs::directory_iterator(family.path())) {
      if (!fs::exists(run.path() / "checkpoint/latest")) continue;
      const auto step = OpenStepFolder(run.path() / "checkpoint", "");
      ASSERT_TRUE(step.ok()) << step.error().ToString();
      ++steps;
      for (const FileName& file : step.value().files) {
        EXPECT_NE(file.kind, FileKind::kUnknown) << file.path;
        ++files;
      }
    }
  }
  EXPECT_GE(steps, 3);
  EXPECT_GE(files, 3 * steps);
}

}  // namespace
}  // namespace checkpoint
