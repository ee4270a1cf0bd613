// Small hand-made checkpoints for the oracle's tests: trees with tensors of given values, written
// by checkpoint/.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/container.h"
#include "checkpoint/tensor.h"
#include "checkpoint/value.h"

namespace oracle {

// A folder that is gone when the test ends.
class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "oracle_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Makes tensors and remembers their values until the file is written.
class TreeWriter {
 public:
  // Row-major fp32 tensor.
  checkpoint::Value Floats(const std::vector<float>& values, std::vector<int64_t> shape) {
    checkpoint::TensorView view;
    view.storage =
        checkpoint::MakeStorage(checkpoint::DType::kFloat32, static_cast<int64_t>(values.size()));
    view.strides = checkpoint::ContiguousStrides(shape);
    view.shape = std::move(shape);
    values_[view.storage.get()] = values;
    return checkpoint::MakeTensor(view);
  }
  checkpoint::Value Flat(const std::vector<float>& values) {
    return Floats(values, {static_cast<int64_t>(values.size())});
  }

  // bfloat16 tensor: the upper halves of the values, which must be exact.
  checkpoint::Value BFloats(const std::vector<float>& values, std::vector<int64_t> shape) {
    checkpoint::TensorView view;
    view.storage =
        checkpoint::MakeStorage(checkpoint::DType::kBFloat16, static_cast<int64_t>(values.size()));
    view.strides = checkpoint::ContiguousStrides(shape);
    view.shape = std::move(shape);
    values_[view.storage.get()] = values;
    return checkpoint::MakeTensor(view);
  }

  void Write(const std::filesystem::path& path, const checkpoint::Value& root) {
    std::filesystem::create_directories(path.parent_path());
    const auto status = checkpoint::WriteTorchFile(
        path, root, checkpoint::StringMemo::kByContent,
        [this](const checkpoint::Storage& storage, std::span<std::byte> bytes) {
          const std::vector<float>& values = values_.at(&storage);
          for (size_t i = 0; i < values.size(); ++i) {
            uint32_t bits = 0;
            std::memcpy(&bits, &values[i], 4);
            const auto half = static_cast<uint16_t>(bits >> 16);
            if (storage.dtype == checkpoint::DType::kFloat32)
              std::memcpy(bytes.data() + 4 * i, &bits, 4);
            if (storage.dtype == checkpoint::DType::kBFloat16)
              std::memcpy(bytes.data() + 2 * i, &half, 2);
          }
        });
    ASSERT_TRUE(status.ok()) << status.error().ToString();
  }

 private:
  std::map<const checkpoint::Storage*, std::vector<float>> values_;
};

inline checkpoint::Value Key(const std::string& name) { return checkpoint::MakeString(name); }

using Entries = std::vector<std::pair<std::string, checkpoint::Value>>;
inline checkpoint::Value Dict(const Entries& entries) {
  std::vector<std::pair<checkpoint::Value, checkpoint::Value>> items;
  for (const auto& [name, value] : entries) items.emplace_back(Key(name), value);
  return checkpoint::MakeDict(std::move(items));
}
inline checkpoint::Value Numbered(const std::vector<checkpoint::Value>& values) {
  std::vector<std::pair<checkpoint::Value, checkpoint::Value>> items;
  for (size_t i = 0; i < values.size(); ++i)
    items.emplace_back(checkpoint::MakeInt(static_cast<int64_t>(i)), values[i]);
  return checkpoint::MakeDict(std::move(items));
}
inline checkpoint::Value Ints(const std::vector<int64_t>& numbers) {
  std::vector<checkpoint::Value> items;
  for (const int64_t number : numbers) items.push_back(checkpoint::MakeInt(number));
  return checkpoint::MakeList(std::move(items));
}

inline void WriteText(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

// The whole of a file that was just written, as a tree with mapped tensors.
inline checkpoint::TorchFile Reopen(const std::filesystem::path& path) {
  auto file = checkpoint::OpenTorchFile(path);
  EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().ToString());
  return std::move(file).value();
}

}  // namespace oracle
