#include "reshape/plan_fixture.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "checkpoint/container.h"
#include "checkpoint/tensor.h"

namespace reshape {

namespace fs = std::filesystem;

fs::path FreshFolder(const std::string& name) {
  const fs::path folder =
      fs::temp_directory_path() / ("shardproof_" + name + "_" + std::to_string(::getpid()));
  std::error_code error;
  fs::remove_all(folder, error);
  fs::create_directories(folder);
  return folder;
}

checkpoint::Value TreeOf(const std::vector<checkpoint::StoragePtr>& storages) {
  std::vector<checkpoint::Value> tensors;
  for (const auto& storage : storages) {
    checkpoint::TensorView view;
    view.storage = storage;
    view.shape = {storage->numel};
    view.strides = {1};
    tensors.push_back(checkpoint::MakeTensor(view));
  }
  return checkpoint::MakeList(std::move(tensors));
}

checkpoint::StoragePtr StoredNumbers(const fs::path& folder, const std::string& name,
                                     const std::vector<float>& numbers) {
  const auto storage =
      checkpoint::MakeStorage(checkpoint::DType::kFloat32, static_cast<int64_t>(numbers.size()));
  const fs::path path = folder / (name + ".pt");
  const auto status =
      checkpoint::WriteTorchFile(path, TreeOf({storage}), checkpoint::StringMemo::kByContent,
                                 [&](const checkpoint::Storage&, std::span<std::byte> bytes) {
                                   std::memcpy(bytes.data(), numbers.data(), bytes.size());
                                 });
  EXPECT_TRUE(status.ok());
  const auto file = checkpoint::OpenTorchFile(path);
  EXPECT_TRUE(file.ok());
  return file.value().storages.at(0);
}

std::vector<float> NumbersOf(const fs::path& path, size_t storage) {
  const auto file = checkpoint::OpenTorchFile(path);
  EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().ToString());
  if (!file.ok()) return {};
  const auto bytes = checkpoint::StorageBytes(*file.value().storages.at(storage));
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  EXPECT_TRUE(checkpoint::CheckCrc(file.value()).ok());
  return numbers;
}

Piece MakePiece(std::vector<int64_t> start, std::vector<int64_t> extent,
                const checkpoint::StoragePtr& storage, int64_t offset) {
  Piece piece;
  piece.box = {std::move(start), std::move(extent)};
  piece.end = piece.box.numel();
  piece.storage = storage;
  piece.offset = offset;
  return piece;
}

TargetFile FileOf(const std::string& path, const std::vector<checkpoint::StoragePtr>& storages) {
  return {path, TreeOf(storages), {}};
}

}  // namespace reshape
