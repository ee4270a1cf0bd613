// Small torch files composed by tests of this room: tensors from lists of numbers, and a folder
// that goes away with the test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/container.h"
#include "checkpoint/tensor.h"
#include "reshape/rounding.h"

namespace reshape {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string(info->test_suite_name()) + "." + info->name();
    for (char& letter : name) letter = letter == '/' ? '_' : letter;
    path_ = std::filesystem::temp_directory_path() / (name + "." + std::to_string(getpid()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Tensors with content, and files made of them.
class TorchComposer {
 public:
  using DType = checkpoint::DType;

  checkpoint::Value Tensor(const std::vector<int64_t>& shape, const std::vector<float>& numbers,
                           DType dtype = DType::kFloat32) {
    auto storage = checkpoint::MakeStorage(dtype, static_cast<int64_t>(numbers.size()));
    auto& bytes = content_[storage.get()];
    bytes.resize(static_cast<size_t>(storage->bytes()));
    for (size_t i = 0; i < numbers.size(); ++i) Store(numbers[i], dtype, i, bytes);
    storages_.push_back(storage);
    return View(storage, 0, shape);
  }
  // A further view of the storage of `tensor`.
  static checkpoint::Value View(const checkpoint::StoragePtr& storage, int64_t offset,
                                const std::vector<int64_t>& shape) {
    return checkpoint::MakeTensor(
        {storage, offset, shape, checkpoint::ContiguousStrides(shape), false});
  }
  static checkpoint::StoragePtr StorageOf(const checkpoint::Value& tensor) {
    return checkpoint::DecodeTensor(tensor, "test").value().storage;
  }
  void Write(const std::filesystem::path& path, const checkpoint::Value& root) const {
    std::filesystem::create_directories(path.parent_path());
    const auto status = checkpoint::WriteTorchFile(
        path, root, checkpoint::StringMemo::kByContent,
        [&](const checkpoint::Storage& storage, std::span<std::byte> bytes) {
          std::ranges::copy(content_.at(&storage), bytes.begin());
        });
    ASSERT_TRUE(status.ok()) << status.error().ToString();
  }

 private:
  static void Store(float number, DType dtype, size_t index, std::vector<std::byte>& bytes) {
    if (dtype == DType::kFloat32) {
      std::memcpy(bytes.data() + index * 4, &number, 4);
      return;
    }
    const uint16_t bits =
        dtype == DType::kFloat16 ? RoundToFloat16(number) : RoundToBFloat16(number);
    std::memcpy(bytes.data() + index * 2, &bits, 2);
  }

  std::vector<checkpoint::StoragePtr> storages_;
  std::map<const checkpoint::Storage*, std::vector<std::byte>> content_;
};

inline checkpoint::Value Dict(std::vector<std::pair<std::string, checkpoint::Value>> items) {
  std::vector<std::pair<checkpoint::Value, checkpoint::Value>> values;
  for (auto& [key, value] : items)
    values.emplace_back(checkpoint::MakeString(key), std::move(value));
  return checkpoint::MakeDict(std::move(values));
}

}  // namespace reshape
