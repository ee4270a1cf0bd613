// Damaged object trees: whatever a readable file says, the oracle answers with tensors or an error,
// and never stops the program.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "checkpoint/tensor.h"
#include "checkpoint/tree.h"
#include "oracle/oracle.h"
#include "oracle/test_files.h"

namespace oracle {
namespace {

namespace fs = std::filesystem;
using checkpoint::Value;

class TreeMutator {
 public:
  explicit TreeMutator(uint32_t seed) : random_(seed) {}

  size_t Below(size_t bound) {
    return std::uniform_int_distribution<size_t>(0, bound - 1)(random_);
  }

  // A copy of the tree with one node exchanged, dropped or doubled; the path goes down at random.
  Value Mutate(const Value& value, int depth) {
    if (!value || depth > 12) return Something();
    if (const auto* dict = checkpoint::As<checkpoint::DictNode>(value)) {
      auto items = dict->items;
      MutateItems(items, depth);
      return checkpoint::MakeDict(std::move(items));
    }
    if (const auto* list = checkpoint::As<checkpoint::ListNode>(value)) {
      auto items = list->items;
      MutateList(items, depth);
      return checkpoint::MakeList(std::move(items));
    }
    if (const auto* tuple = checkpoint::As<checkpoint::TupleNode>(value)) {
      auto items = tuple->items;
      MutateList(items, depth);
      return checkpoint::MakeTuple(std::move(items));
    }
    if (const auto* object = checkpoint::As<checkpoint::ObjectNode>(value)) {
      checkpoint::ObjectNode copy = *object;
      if (!copy.items.empty()) {
        MutateItems(copy.items, depth);
      } else if (copy.state && Below(2) == 0) {
        copy.state = Mutate(copy.state, depth + 1);
      } else {
        copy.args = Mutate(copy.args, depth + 1);
        if (checkpoint::As<checkpoint::TupleNode>(copy.args) == nullptr)
          copy.args = checkpoint::MakeTuple({copy.args});
      }
      auto node = std::make_shared<checkpoint::Node>();
      node->content = std::move(copy);
      return node;
    }
    return Something();
  }

 private:
  Value Something() {
    static constexpr int64_t kNumbers[] = {
        -1, 0, 1, 2, 3, 7, 1000, 1'000'000, int64_t{1} << 40, INT64_MAX, INT64_MIN};
    switch (Below(8)) {
      case 0:
        return checkpoint::MakeNone();
      case 1:
        return checkpoint::MakeList({});
      case 2:
        return checkpoint::MakeDict({});
      case 3:
        return checkpoint::MakeString("x");
      case 4:
        return checkpoint::MakeBool(true);
      case 5:
        return checkpoint::MakeFloat(-0.5);
      default:
        return checkpoint::MakeInt(kNumbers[Below(std::size(kNumbers))]);
    }
  }

  void MutateItems(std::vector<std::pair<Value, Value>>& items, int depth) {
    if (items.empty()) return;
    const size_t index = Below(items.size());
    const size_t what = Below(12);
    if (what == 0)
      items.erase(items.begin() + static_cast<int64_t>(index));
    else if (what == 1)
      items[index].second = items[Below(items.size())].second;
    else if (what == 2)
      items[index].first = Below(2) == 0 ? checkpoint::MakeString("x") : checkpoint::MakeInt(7);
    else if (what == 3)
      std::swap(items[index], items[Below(items.size())]);
    else
      items[index].second = Mutate(items[index].second, depth + 1);
  }

  void MutateList(std::vector<Value>& items, int depth) {
    if (items.empty()) return;
    const size_t index = Below(items.size());
    const size_t what = Below(12);
    if (what == 0)
      items.erase(items.begin() + static_cast<int64_t>(index));
    else if (what == 1)
      items.push_back(items[index]);
    else if (what == 2)
      std::swap(items[index], items[Below(items.size())]);
    else
      items[index] = Mutate(items[index], depth + 1);
  }

  std::mt19937 random_;
};

// Writes a tree that was read, with its storages' bytes.
void Rewrite(const fs::path& path, const Value& root) {
  const fs::path target = path.string() + ".new";
  const auto status = checkpoint::WriteTorchFile(
      target, root, checkpoint::StringMemo::kByContent,
      [](const checkpoint::Storage& storage, std::span<std::byte> bytes) {
        if (!storage.file) return;
        const auto source = checkpoint::StorageBytes(storage);
        std::copy_n(source.begin(), std::min(source.size(), bytes.size()), bytes.begin());
      });
  ASSERT_TRUE(status.ok());
  fs::rename(target, path);
}

// Everything that the oracle answers, asked.
void AskAll(const fs::path& run, const OpenOptions& options, int64_t& opened_count) {
  auto opened = Oracle::Open(run, options);
  if (!opened.ok()) {
    EXPECT_NE(opened.error().found, "");
    return;
  }
  ++opened_count;
  const Oracle& oracle = *opened.value();
  for (size_t i = 0; i < oracle.tensors().size(); ++i) {
    (void)oracle.StaleCopy(i).ok();
    for (const auto& [state, dtype] : oracle.tensors()[i].states) {
      auto assembled = oracle.Assemble(i, state);
      EXPECT_TRUE(!assembled.ok() || assembled.value().covered <= assembled.value().value.numel());
      (void)oracle.PartOfEachHolder(i, state).ok();
    }
  }
}

void MutateRun(const fs::path& run, uint32_t seed, int rounds) {
  TestFolder folder;
  fs::copy(run / "checkpoint", folder.path() / "run", fs::copy_options::recursive);
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path() / "run")) {
    fs::permissions(entry.path(), fs::perms::owner_all, fs::perm_options::add);
    if (entry.path().extension() == ".pt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  TreeMutator mutator(seed);
  OpenOptions options;
  options.universal = fs::exists(folder.path() / "run" / "latest_universal") && seed % 2 == 1;
  int64_t opened = 0;
  for (int round = 0; round < rounds; ++round) {
    const fs::path& path = files[mutator.Below(files.size())];
    const std::string kept = path.string() + ".kept";
    fs::rename(path, kept);
    auto file = checkpoint::OpenTorchFile(kept);
    ASSERT_TRUE(file.ok());
    Rewrite(path, mutator.Mutate(file.value().root, 0));
    SCOPED_TRACE(path.string() + " seed " + std::to_string(seed) + " round " +
                 std::to_string(round));
    AskAll(folder.path() / "run", options, opened);
    fs::rename(kept, path);
  }
  EXPECT_GT(opened, 0);
}

TEST(MutationTest, NoTreeStopsTheProgram) {
  const fs::path corpus = fs::path(SHARDPROOF_SOURCE_DIR) / "fixtures/corpus";
  const int rounds = std::getenv("SHARDPROOF_MUTATIONS") != nullptr
                         ? std::atoi(std::getenv("SHARDPROOF_MUTATIONS"))
                         : 5;
  uint32_t seed = 0;
  for (const char* family : {"deepspeed", "megatron_deepspeed"}) {
    std::vector<fs::path> runs;
    for (const auto& entry : fs::directory_iterator(corpus / family)) runs.push_back(entry.path());
    std::sort(runs.begin(), runs.end());
    for (const fs::path& run : runs) {
      if (Oracle::Open(run / "checkpoint", {}).ok()) MutateRun(run, ++seed, rounds);
    }
  }
}

}  // namespace
}  // namespace oracle
