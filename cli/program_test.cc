#include "cli/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace cli {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int exit_code = -1;
  std::string output, errors;
  nlohmann::json Json() const { return nlohmann::json::parse(output, nullptr, false); }
};

Outcome RunWords(std::vector<std::string> words) {
  std::vector<const char*> arguments = {"shardproof"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.exit_code = RunProgram(static_cast<int>(arguments.size()), arguments.data(), "1.2.3");
  outcome.output = testing::internal::GetCapturedStdout();
  outcome.errors = testing::internal::GetCapturedStderr();
  return outcome;
}

// One bit of the payload that lies in the middle of the file.
void FlipByteInTheMiddle(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
  file.seekg(middle);
  const int byte = file.get();
  file.seekp(middle);
  file.put(static_cast<char>(byte ^ 4));
}

class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    base_ = fs::path(testing::TempDir()) / (std::string("program-") + test->name());
    fs::remove_all(base_);
    fs::create_directories(base_);
  }
  ~ProgramTest() override { fs::remove_all(base_); }

  std::string Path(const std::string& name) const { return (base_ / name).string(); }
  fs::path base_;
};

// Runs with standard output on a device that takes nothing.
Outcome RunIntoFullDevice(std::vector<std::string> words) {
  const int kept = ::dup(STDOUT_FILENO), full = ::open("/dev/full", O_WRONLY);
  std::fflush(stdout);
  ::dup2(full, STDOUT_FILENO);
  testing::internal::CaptureStderr();
  std::vector<const char*> arguments = {"shardproof"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  Outcome outcome;
  outcome.exit_code = RunProgram(static_cast<int>(arguments.size()), arguments.data(), "1.2.3");
  outcome.errors = testing::internal::GetCapturedStderr();
  ::dup2(kept, STDOUT_FILENO);
  std::clearerr(stdout);
  ::close(kept);
  ::close(full);
  return outcome;
}

TEST_F(ProgramTest, OutputThatCannotBeWrittenIsAnError) {
  ASSERT_EQ(RunWords({"fixture", Path("run"), "--dp", "2", "--zero", "1"}).exit_code, 0);
  for (const char* command : {"inspect", "check", "digest"}) {
    const Outcome outcome = RunIntoFullDevice({command, Path("run")});
    EXPECT_EQ(outcome.exit_code, 2) << command;
    EXPECT_NE(outcome.errors.find("standard output"), std::string::npos) << outcome.errors;
  }
  EXPECT_EQ(RunIntoFullDevice({"compare", Path("run"), Path("run")}).exit_code, 2);
  EXPECT_EQ(RunIntoFullDevice({"certify", Path("run"), Path("run")}).exit_code, 2);
}

TEST_F(ProgramTest, EmptyCutsAreAUsageError) {
  ASSERT_EQ(RunWords({"fixture", Path("run"), "--pp", "2", "--zero", "1"}).exit_code, 0);
  const Outcome outcome =
      RunWords({"reshape", Path("run"), Path("target"), "--pp", "2", "--cuts", "", "--dry-run"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.errors.find("--cuts"), std::string::npos) << outcome.errors;
}

TEST_F(ProgramTest, ReportsGoThroughLinksAndIntoPipesAndDevices) {
  ASSERT_EQ(RunWords({"fixture", Path("run"), "--dp", "2", "--zero", "1"}).exit_code, 0);
  const auto certify = [&](const std::string& report) {
    return RunWords({"certify", Path("run"), Path("run"), "--certificate", report});
  };
  fs::create_symlink("later.json", Path("link.json"));
  fs::create_symlink(Path("link.json"), Path("second.json"));
  for (int round = 0; round < 2; ++round) {  // a link to nothing yet, then to a file
    EXPECT_EQ(certify(Path("second.json")).exit_code, 0);
    EXPECT_TRUE(fs::is_symlink(Path("second.json")));
    EXPECT_TRUE(fs::is_symlink(Path("link.json")));
    EXPECT_GT(fs::file_size(Path("later.json")), 1000u);
  }
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  const int reader = ::open(Path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  (void)::fcntl(reader, F_SETPIPE_SZ, 1 << 20);
  EXPECT_EQ(certify(Path("pipe")).exit_code, 0);
  EXPECT_TRUE(fs::is_fifo(Path("pipe")));
  char begin = 0;
  EXPECT_EQ(::read(reader, &begin, 1), 1);
  EXPECT_EQ(begin, '{');
  ::close(reader);
  EXPECT_EQ(certify("/dev/full").exit_code, 2);
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  EXPECT_NE(certify("/dev/stdout").output.find("\"verdict\""), std::string::npos);
}

TEST_F(ProgramTest, TwoReportsIntoOneFileAreRefusedBeforeAnythingRuns) {
  const Outcome outcome = RunWords({"certify", Path("a"), Path("b"), "--certificate", Path("one"),
                                    "--html", Path("./one"), "--json"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.Json()["error"]["code"], "Usage");
  EXPECT_FALSE(fs::exists(Path("one")));
}

TEST_F(ProgramTest, HelpAndVersionAreNoErrors) {
  EXPECT_EQ(RunWords({"--version"}).output, "1.2.3\n");
  EXPECT_EQ(RunWords({"--version"}).exit_code, 0);
  const Outcome help = RunWords({"reshape", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.output.find("--tp"), std::string::npos);
}

TEST_F(ProgramTest, AnUnknownCommandIsAnsweredWithTheKnownOnes) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"reshap"}, std::vector<std::string>{"--fast", "reshap", "x"}}) {
    const Outcome outcome = RunWords(words);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_NE(outcome.errors.find("'reshap'"), std::string::npos) << outcome.errors;
    EXPECT_NE(outcome.errors.find("inspect, check, reshape, certify"), std::string::npos);
  }
  EXPECT_NE(RunWords({}).errors.find("no command"), std::string::npos);
  EXPECT_EQ(RunWords({}).exit_code, 2);
}

TEST_F(ProgramTest, WrongArgumentsAreOneObjectWithJson) {
  const std::vector<std::vector<std::string>> lines = {
      {"--json"},
      {"reshap", "--json"},
      {"check", "--json"},
      {"check", "a", "b", "--json"},
      {"reshape", "a", "b", "--tp", "x", "--json"},
      {"reshape", "a", "b", "--json", "--no-such-flag"},
      {"fixture", "--json"},
      {"fixture", "a", "--bytes", "9223372036854775807", "--json"},
  };
  for (const std::vector<std::string>& words : lines) {
    const Outcome outcome = RunWords(words);
    EXPECT_EQ(outcome.exit_code, 2) << words.front();
    EXPECT_EQ(outcome.errors, "") << words.front();
    const nlohmann::json json = outcome.Json();
    ASSERT_TRUE(json.is_object() && json.contains("error")) << outcome.output;
    EXPECT_EQ(json["error"]["code"], "Usage") << words.front();
    for (const char* key : {"found", "expected", "where", "advice"})
      EXPECT_NE(json["error"][key].get<std::string>(), "") << key << " of " << words.front();
  }
}

TEST_F(ProgramTest, WrongArgumentsNameTheCommandAndTheArgument) {
  const Outcome outcome = RunWords({"check", "a", "b"});
  EXPECT_NE(outcome.errors.find("not expected: b"), std::string::npos) << outcome.errors;
  EXPECT_NE(outcome.errors.find("shardproof check --help"), std::string::npos);
}

TEST_F(ProgramTest, InspectOfAnIncompleteCheckpointNamesTheFileAndEndsWithTwo) {
  const std::string run = Path("run");
  ASSERT_EQ(RunWords({"fixture", run, "--tp", "2", "--layers", "1", "--json"}).exit_code, 0);
  EXPECT_EQ(RunWords({"inspect", run}).exit_code, 0);
  EXPECT_EQ(RunWords({"inspect", run, "--json"}).Json()["complete"], true);
  fs::remove(base_ / "run/global_step4/mp_rank_01_model_states.pt");
  const Outcome text = RunWords({"inspect", run});
  EXPECT_EQ(text.exit_code, 2);
  EXPECT_NE(text.output.find("mp_rank_01_model_states.pt is not there"), std::string::npos);
  EXPECT_NE(text.output.find("TP=2"), std::string::npos) << "the rest is described all the same";
  const Outcome json = RunWords({"inspect", run, "--json"});
  EXPECT_EQ(json.exit_code, 2);
  EXPECT_EQ(json.Json()["missing_files"], nlohmann::json({"mp_rank_01_model_states.pt"}));
}

TEST_F(ProgramTest, CompareEndsWithZeroOneTwoOrThree) {
  const std::string a = Path("a"), b = Path("b"), c = Path("c");
  ASSERT_EQ(RunWords({"fixture", a, "--tp", "2", "--layers", "1"}).exit_code, 0);
  ASSERT_EQ(RunWords({"fixture", b, "--tp", "1", "--layers", "1"}).exit_code, 0);
  ASSERT_EQ(RunWords({"fixture", c, "--tp", "2", "--layers", "1", "--seed", "2"}).exit_code, 0);
  const Outcome same = RunWords({"compare", a, a});
  EXPECT_EQ(same.exit_code, 0) << same.output;
  EXPECT_NE(same.output.find("verdict: same\n"), std::string::npos);
  const Outcome different = RunWords({"compare", a, c});
  EXPECT_EQ(different.exit_code, 1);
  EXPECT_NE(different.output.find(" %) differ"), std::string::npos) << different.output;
  EXPECT_NE(different.output.find("verdict: different\n"), std::string::npos);
  const Outcome undecided = RunWords({"compare", a, b});
  EXPECT_EQ(undecided.exit_code, 3) << undecided.output;
  EXPECT_NE(undecided.output.find("layers.0.self_attention.query_key_value.weight\n"),
            std::string::npos);
  EXPECT_EQ(RunWords({"compare", a, b, "--json"}).Json()["verdict"], "undecided");
  EXPECT_EQ(RunWords({"compare", a, b, "--qkv-layout", "per-head-group"}).exit_code, 0);
  EXPECT_EQ(RunWords({"compare", a, Path("none")}).exit_code, 2);
}

TEST_F(ProgramTest, CompareOfAWithItsUniversalFolderIsTheSameOnceDeclared) {
  const std::string run = Path("run"), universal = Path("universal");
  ASSERT_EQ(RunWords({"fixture", run, "--tp", "2", "--zero", "1", "--dtype", "bf16", "--layers",
                      "1", "--qkv-layout", "per-shard"})
                .exit_code,
            0);
  ASSERT_EQ(RunWords({"reshape", run, universal, "--format", "universal", "--qkv-layout",
                      "per-shard", "--no-certify"})
                .exit_code,
            0);
  const std::string step = universal + "/global_step4_universal";
  EXPECT_EQ(RunWords({"compare", run, step}).exit_code, 3);
  const Outcome declared = RunWords({"compare", run, step, "--qkv-layout", "per-shard"});
  EXPECT_EQ(declared.exit_code, 0) << declared.output;
}

TEST_F(ProgramTest, DigestOfAnIncompleteOrDamagedCheckpointEndsWithTwo) {
  const std::string run = Path("run");
  ASSERT_EQ(RunWords({"fixture", run, "--tp", "2", "--zero", "1", "--layers", "1"}).exit_code, 0);
  const Outcome assumed = RunWords({"digest", run, "--json"});
  EXPECT_EQ(assumed.exit_code, 0);
  EXPECT_EQ(assumed.Json()["complete"], true);
  EXPECT_EQ(assumed.Json()["notices"][0]["kind"], "qkv-order-assumed");
  EXPECT_NE(assumed.errors.find("2.self_attention.query_key_value.weight"), std::string::npos);
  const Outcome declared = RunWords({"digest", run, "--qkv-layout", "per-head-group"});
  EXPECT_EQ(declared.errors, "");
  const fs::path step = base_ / "run/global_step4";
  const fs::path model = step / "mp_rank_00_model_states.pt", kept = base_ / "kept.pt";
  fs::copy_file(model, kept);
  FlipByteInTheMiddle(model);
  const Outcome damaged = RunWords({"digest", run, "--json"});
  EXPECT_EQ(damaged.exit_code, 2);
  EXPECT_EQ(damaged.Json()["error"]["code"], "ChecksumMismatch") << damaged.output;
  EXPECT_EQ(RunWords({"compare", run, run, "--json"}).Json()["error"]["code"], "ChecksumMismatch");
  fs::copy_file(kept, model, fs::copy_options::overwrite_existing);
  for (const auto& entry : fs::directory_iterator(step))
    if (entry.path().filename().string().find("optim_states") != std::string::npos)
      fs::remove(entry.path());
  const Outcome incomplete = RunWords({"digest", run, "--json"});
  EXPECT_EQ(incomplete.exit_code, 2);
  EXPECT_EQ(incomplete.Json()["complete"], false);
  EXPECT_FALSE(incomplete.Json().contains("whole"));
  EXPECT_TRUE(incomplete.Json().contains("whole_of_what_is_there"));
  EXPECT_NE(incomplete.errors.find("INCOMPLETE"), std::string::npos);
}

TEST_F(ProgramTest, FilesWithAbsurdRankNumbersAreReportedByInspect) {
  const std::string run = Path("run");
  ASSERT_EQ(RunWords({"fixture", run, "--layers", "1"}).exit_code, 0);
  const fs::path step = base_ / "run/global_step4";
  fs::copy_file(step / "mp_rank_00_model_states.pt", step / "mp_rank_999999_model_states.pt");
  fs::copy_file(step / "mp_rank_00_model_states.pt",
                step / "mp_rank_99999999999999999999_model_states.pt");
  const Outcome outcome = RunWords({"inspect", run});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.output.find("mp_rank_999999_model_states.pt belongs to no rank"),
            std::string::npos);
  EXPECT_NE(outcome.output.find("mp_rank_99999999999999999999_model_states.pt is no file"),
            std::string::npos);
}

TEST_F(ProgramTest, FixtureThatFailsLeavesNoFolder) {
  const Outcome outcome = RunWords({"fixture", Path("run"), "--hidden", "1000000", "--json"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.Json()["error"]["code"], "Usage");
  EXPECT_EQ(RunWords({"fixture", Path("run"), "--fault", "no-such-fault"}).exit_code, 2);
  EXPECT_TRUE(fs::is_empty(base_));
}

}  // namespace
}  // namespace cli
