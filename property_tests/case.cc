#include "property_tests/case.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <map>

#include "checkpoint/tensor.h"
#include "checkpoint/tree.h"

namespace property_tests {

namespace fs = std::filesystem;

CaseFolder::CaseFolder() {
  static std::atomic<int64_t> next{0};
  path_ = fs::temp_directory_path() / fmt::format("shardproof_case_{}_{}", getpid(), next++);
  fs::remove_all(path_);
  fs::create_directories(path_);
}

CaseFolder::~CaseFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

reshape::ReshapeOptions OptionsFor(const fixtures::FixtureSpec& target) {
  reshape::ReshapeOptions options;
  options.flush = false;
  options.threads = 1;
  options.target.tensor_parallel_size = target.tensor_parallel;
  options.target.pipeline_parallel_size = target.pipeline_parallel;
  options.target.data_parallel_size = target.data_parallel;
  options.target.zero_stage = target.zero_stage;
  options.target.dtype = target.dtype;
  options.target.layout =
      target.pipeline_layout ? reshape::NameLayout::kPipeline : reshape::NameLayout::kPlain;
  options.target.elastic = target.elastic;
  constexpr reshape::Wrapper kWrappers[] = {reshape::Wrapper::kFp32, reshape::Wrapper::kFused,
                                            reshape::Wrapper::kUnfused, reshape::Wrapper::kZero,
                                            reshape::Wrapper::kBf16};
  options.target.wrapper = kWrappers[static_cast<size_t>(target.wrapper)];
  options.read.qkv_layout = target.model.qkv_layout;
  return options;
}

certify::Declared DeclaredFor(const fixtures::FixtureSpec& spec) {
  certify::Declared declared;
  declared.qkv_layout = spec.model.qkv_layout;
  declared.threads = 1;
  return declared;
}

bool WrapperTakesDummyStep(const fixtures::FixtureSpec& spec) {
  return spec.wrapper == fixtures::OptimizerWrapper::kFused ||
         spec.wrapper == fixtures::OptimizerWrapper::kUnfused;
}

fixtures::BaseOptimizer BaseOptimizerOf(const fixtures::FixtureSpec& spec) {
  if (spec.base_optimizer != fixtures::BaseOptimizer::kDefault) return spec.base_optimizer;
  const bool shaped = spec.wrapper == fixtures::OptimizerWrapper::kFp32 ||
                      spec.wrapper == fixtures::OptimizerWrapper::kUnfused;
  return shaped ? fixtures::BaseOptimizer::kTorchAdam : fixtures::BaseOptimizer::kFusedAdam;
}

std::string DigestDifference(const fs::path& a, const fs::path& b,
                             const certify::Declared& declared) {
  const auto first = certify::Digest(a, declared, "xxh3-128");
  if (!first.ok()) return first.error().ToString();
  const auto second = certify::Digest(b, declared, "xxh3-128");
  if (!second.ok()) return second.error().ToString();
  std::string difference;
  // By canonical name: two layouts name one tensor differently.
  std::map<std::string, std::string> states[2];
  const nlohmann::ordered_json* const sides[2] = {&first.value(), &second.value()};
  for (int side = 0; side < 2; ++side) {
    for (const auto& [name, entries] : (*sides[side])["tensors"].items()) {
      for (const auto& [state, hex] : entries.items()) {
        if (state == "canonical") continue;
        states[side][entries["canonical"].get<std::string>() + " " + state] = hex;
      }
    }
  }
  for (const int side : {0, 1}) {
    for (const auto& [name, hex] : states[side]) {
      const auto other = states[1 - side].find(name);
      if (other == states[1 - side].end())
        difference += name + " is missing on one side\n";
      else if (side == 0 && other->second != hex)
        difference += name + " differs\n";
    }
  }
  return difference;
}

namespace {

class LineWriter {
 public:
  explicit LineWriter(const std::vector<std::string>& ignored_keys) : ignored_keys_(ignored_keys) {}

  void Write(const checkpoint::Value& value, const std::string& path) {
    if (checkpoint::IsTensor(value)) {
      const auto view = checkpoint::DecodeTensor(value, path);
      if (!view.ok()) {
        lines_.push_back(path + " bad tensor");
        return;
      }
      std::string shape;
      for (const int64_t extent : view.value().shape) shape += fmt::format("{},", extent);
      lines_.push_back(fmt::format("{} tensor {} [{}] of storage {}", path,
                                   checkpoint::DTypeName(view.value().storage->dtype), shape,
                                   view.value().storage->numel));
      return;
    }
    if (const auto* items = checkpoint::MappingItems(value)) {
      lines_.push_back(path + " mapping " + checkpoint::ClassName(value));
      for (const auto& [key, entry] : *items) {
        const std::string name = checkpoint::Render(key, 200);
        if (std::count(ignored_keys_.begin(), ignored_keys_.end(), name) > 0) continue;
        Write(entry, path + "/" + name);
      }
    } else if (const auto* sequence = checkpoint::SequenceItems(value)) {
      lines_.push_back(fmt::format("{} sequence of {}", path, sequence->size()));
      for (size_t i = 0; i < sequence->size(); ++i) {
        Write((*sequence)[i], fmt::format("{}/{}", path, i));
      }
    } else {
      lines_.push_back(path + " " + checkpoint::Render(value, 200));
    }
  }

  std::vector<std::string> Take() { return std::move(lines_); }

 private:
  const std::vector<std::string>& ignored_keys_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> TreeLines(const checkpoint::Value& root,
                                   const std::vector<std::string>& ignored_keys) {
  LineWriter writer(ignored_keys);
  writer.Write(root, "");
  return writer.Take();
}

std::vector<std::string> FilesBelow(const fs::path& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(fs::relative(entry.path(), folder).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool SameBytes(const fs::path& a, const fs::path& b) {
  std::ifstream first(a, std::ios::binary), second(b, std::ios::binary);
  return std::equal(std::istreambuf_iterator<char>(first), std::istreambuf_iterator<char>(),
                    std::istreambuf_iterator<char>(second), std::istreambuf_iterator<char>());
}

}  // namespace property_tests
