// Against Python's own pickler (pickle_peer.py): what it writes is read and written again byte for
// byte, and what is written here it loads to an equal object.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "checkpoint/pickle.h"
#include "checkpoint/tree.h"

namespace checkpoint {
namespace {

namespace fs = std::filesystem;

int Peer(const std::string& command, const fs::path& folder) {
  const std::string line = std::string(SHARDPROOF_PYTHON) + " " + SHARDPROOF_SOURCE_DIR +
                           "/checkpoint/pickle_peer.py " + command + " " + folder.string();
  return std::system(line.c_str());
}

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteAll(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

Value Read(const std::string& bytes, const std::string& where) {
  const Result<PickleResult> result = ReadPickle(std::as_bytes(std::span(bytes)), {}, where);
  if (!result.ok()) {
    ADD_FAILURE() << result.error().ToString();
    return MakeNone();
  }
  EXPECT_EQ(result.value().bytes_read, static_cast<int64_t>(bytes.size())) << where;
  return result.value().root;
}

class PickleTorchTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("pickle_peer_" + std::to_string(getpid()));
    fs::create_directories(folder_);
    ASSERT_EQ(Peer("dump", folder_), 0);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().extension() == ".p2") names.push_back(entry.path().stem().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  fs::path folder_;
};

TEST_F(PickleTorchTest, PythonAndWriterAgreeByteForByteAndInMeaning) {
  const std::vector<std::string> names = Names();
  EXPECT_GE(names.size(), 250u);
  for (const std::string& name : names) {
    const std::string protocol2 = ReadAll(folder_ / (name + ".p2"));
    const Value root = Read(protocol2, name);
    const std::string identity = WritePickle(root, StringMemo::kByIdentity).bytes;
    EXPECT_TRUE(identity == protocol2) << name << " is written otherwise than Python does";
    WriteAll(folder_ / (name + ".identity"), identity);

    // Protocol 4 has other opcodes for text, bytes, sets and classes: the object is the same.
    const Value root4 = Read(ReadAll(folder_ / (name + ".p4")), name + ".p4");
    const std::string content = WritePickle(root4, StringMemo::kByContent).bytes;
    WriteAll(folder_ / (name + ".content"), content);
    const Value again = Read(content, name + ".content");
    EXPECT_EQ(WritePickle(again, StringMemo::kByContent).bytes, content) << name;
  }
  EXPECT_EQ(Peer("compare", folder_), 0);
}

}  // namespace
}  // namespace checkpoint
