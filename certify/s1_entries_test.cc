// Entries of model files and the ranks they name: part of law S1.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "certify/format.h"
#include "certify/laws_fixture.h"
#include "checkpoint/tree.h"

namespace certify {
namespace {

namespace fs = std::filesystem;
using checkpoint::Value;

Value Dictionary(std::vector<std::pair<std::string, Value>> entries) {
  checkpoint::Items items;
  for (auto& [key, value] : entries) items.emplace_back(checkpoint::MakeString(key), value);
  return checkpoint::MakeDict(std::move(items));
}

class ModelEntriesTest : public LawsTest {
 protected:
  void SetUp() override {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = fs::temp_directory_path() / ("s1_entries_test_" + name);
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // The model files of a pipeline, one a root.
  void SetFiles(const std::vector<Value>& roots) {
    fake_->facts.pipeline_parallel = static_cast<int32_t>(roots.size());
    fake_->files.clear();
    for (size_t i = 0; i < roots.size(); ++i) {
      const fs::path path = folder_ / Format("mp_rank_{:02d}_model_states.pt", i);
      fs::remove(path);
      ASSERT_TRUE(
          checkpoint::WriteTorchFile(path, roots[i], checkpoint::StringMemo::kByContent, {}).ok());
      auto file = checkpoint::OpenTorchFile(path);
      ASSERT_TRUE(file.ok());
      fake_->files.push_back(std::move(file).value());
    }
  }
  static Value Engine() {
    return Dictionary(
        {{"module", checkpoint::MakeNone()}, {"global_steps", checkpoint::MakeInt(4)}});
  }
  static Value OfRank(int64_t rank) {
    return checkpoint::WithEntry(Engine(), "args",
                                 Dictionary({{"rank", checkpoint::MakeInt(rank)}}));
  }
  void SetRanks(const std::vector<int64_t>& ranks) {
    std::vector<Value> roots;
    for (const int64_t rank : ranks) roots.push_back(OfRank(rank));
    SetFiles(roots);
  }

  fs::path folder_;
};

TEST_F(ModelEntriesTest, AnEmptiedFileBreaksS1) {
  SetFiles({Engine(), Dictionary({})});
  const Finding finding = Broken("S1", "missing-entries");
  EXPECT_EQ(finding.entries, (std::vector<std::string>{"global_steps", "module"}));
  EXPECT_NE(finding.file.find("mp_rank_01"), std::string::npos);
  EXPECT_NE(finding.text.find("mp_rank_00"), std::string::npos) << finding.text;
}

TEST_F(ModelEntriesTest, AFileAloneNeedsAModule) {
  SetFiles({Dictionary({{"global_steps", checkpoint::MakeInt(4)}})});
  EXPECT_EQ(Broken("S1", "missing-entries").entries, std::vector<std::string>{"module"});
}

TEST_F(ModelEntriesTest, AnEntryOfTheUserMayBeOnSomeRanksAlone) {
  SetFiles({checkpoint::WithEntry(Engine(), "iteration", checkpoint::MakeInt(4)), Engine()});
  EXPECT_EQ(Notice("S1", "entries-of-some-files").entries, std::vector<std::string>{"iteration"});
}

TEST_F(ModelEntriesTest, AnEntryOfMegatronIsOnEveryRank) {
  SetFiles({checkpoint::WithEntry(OfRank(0), "iteration", checkpoint::MakeInt(4)), OfRank(1)});
  EXPECT_EQ(Broken("S1", "missing-entries").entries, std::vector<std::string>{"iteration"});
}

TEST_F(ModelEntriesTest, FilesThatTradedNamesBreakS1) {
  SetRanks({1, 0, 2, 3});
  const Finding finding = Broken("S1", "file-of-another-rank");
  EXPECT_NE(finding.file.find("mp_rank_01"), std::string::npos);
}

TEST_F(ModelEntriesTest, AFileBesideItsOwnCopyBreaksS1) {
  SetRanks({0, 1, 1, 5});
  Broken("S1", "file-of-another-rank");
}

// Ranks rise with the number in any order of the axes; gaps are the data ranks that wrote nothing.
TEST_F(ModelEntriesTest, RisingRanksHold) {
  SetRanks({0, 1, 4, 5});
  EXPECT_EQ(Law("S1").verdict, Verdict::kHeld);
}

TEST_F(ModelEntriesTest, OneRanksArgsInEveryFileSayNothingOfTheOrder) {
  SetRanks({0, 0, 0, 0});
  EXPECT_EQ(Law("S1").verdict, Verdict::kHeld);
}

TEST_F(ModelEntriesTest, RanksOfSomeFilesAloneSayNothing) {
  const Value silent = checkpoint::WithEntry(Engine(), "args", Dictionary({}));
  SetFiles({OfRank(4), silent, OfRank(1)});
  EXPECT_EQ(Law("S1").verdict, Verdict::kHeld);
}

TEST_F(ModelEntriesTest, ArgsOfAnotherModelBreakS1) {
  const auto of = [](int64_t heads) {
    return checkpoint::WithEntry(Engine(), "args",
                                 Dictionary({{"num_attention_heads", checkpoint::MakeInt(heads)}}));
  };
  SetFiles({of(4), of(4), of(2)});
  const Finding finding = Broken("S1", "args-differ");
  EXPECT_NE(finding.file.find("mp_rank_02"), std::string::npos);
  EXPECT_NE(finding.text.find("num_attention_heads 2, not 4"), std::string::npos) << finding.text;
  SetFiles({of(4), of(4), of(4)});
  EXPECT_EQ(Law("S1").verdict, Verdict::kHeld);
}

TEST_F(ModelEntriesTest, ArgsOfAnotherTopologyBreakS1) {
  const auto of = [](int64_t ranks) {
    return checkpoint::WithEntry(
        Engine(), "args",
        Dictionary({{"pipeline_model_parallel_size", checkpoint::MakeInt(ranks)}}));
  };
  SetFiles({of(3), of(3)});
  EXPECT_NE(Broken("S1", "args-of-another-topology").text.find("is 3; the files are of 2"),
            std::string::npos);
  SetFiles({of(2), of(2)});
  EXPECT_EQ(Law("S1").verdict, Verdict::kHeld);
}

}  // namespace
}  // namespace certify
