// Every kept input of the fuzz targets, without clang: a finding that was mended stays mended.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/entry.h"

namespace fuzz {
namespace {

namespace fs = std::filesystem;

void Replay(const std::string& target, void (*run)(Bytes)) {
  std::vector<fs::path> inputs;
  for (const auto& entry :
       fs::directory_iterator(fs::path(SHARDPROOF_SOURCE_DIR) / "fuzz/corpus" / target))
    inputs.push_back(entry.path());
  std::sort(inputs.begin(), inputs.end());
  ASSERT_GE(inputs.size(), 4U) << target;
  for (const fs::path& path : inputs) {
    SCOPED_TRACE(path.string());
    std::ifstream file(path, std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    ASSERT_FALSE(input.empty());
    run(std::as_bytes(std::span(input)));
    // Cut and damaged: what lies near a kept input.
    for (const size_t step : {size_t{1}, size_t{7}}) {
      std::string damaged = input;
      for (size_t i = step; i < damaged.size(); i += damaged.size() / 16 + 1) damaged[i] ^= 0x41;
      run(std::as_bytes(std::span(damaged)));
      run(std::as_bytes(std::span(input)).first(input.size() * step / 8));
    }
  }
}

TEST(ReplayTest, ZipInputs) { Replay("zip", Zip); }
TEST(ReplayTest, PickleInputs) { Replay("pickle", Pickle); }
TEST(ReplayTest, RulesInputs) { Replay("rules", Rules); }
TEST(ReplayTest, TorchFileInputs) { Replay("torch_file", TorchFile); }

}  // namespace
}  // namespace fuzz
