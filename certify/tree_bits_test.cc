#include "certify/tree_bits.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/container.h"
#include "checkpoint/tensor.h"

namespace certify {
namespace {

namespace fs = std::filesystem;
using checkpoint::Value;

// {"t": a tensor of 4 bytes that start at `first`}, written and read again.
Value Stored(uint8_t first) {
  checkpoint::TensorView view;
  view.storage = checkpoint::MakeStorage(checkpoint::DType::kUInt8, 4);
  view.shape = {4};
  view.strides = {1};
  const Value root =
      checkpoint::MakeDict({{checkpoint::MakeString("t"), checkpoint::MakeTensor(view)}});
  const fs::path path =
      fs::temp_directory_path() / ("tree_bits_test_" + std::to_string(first) + ".pt");
  fs::remove(path);
  const auto fill = [first](const checkpoint::Storage&, std::span<std::byte> bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(first + i);
  };
  EXPECT_TRUE(
      checkpoint::WriteTorchFile(path, root, checkpoint::StringMemo::kByContent, fill).ok());
  auto file = checkpoint::OpenTorchFile(path);
  EXPECT_TRUE(file.ok());
  fs::remove(path);
  return file.value().root;
}

TEST(TreeBitsTest, BytesOfTensorsCount) {
  EXPECT_TRUE(SameTree(Stored(1), Stored(1)));
  EXPECT_FALSE(SameTree(Stored(1), Stored(2)));
  EXPECT_EQ(StoragesBelow(Stored(1)).size(), 1u);
}

TEST(TreeBitsTest, StructureCounts) {
  EXPECT_TRUE(SameTree(checkpoint::MakeInt(1), checkpoint::MakeInt(1)));
  EXPECT_FALSE(SameTree(checkpoint::MakeInt(1), checkpoint::MakeFloat(1)));
  EXPECT_FALSE(SameTree(nullptr, checkpoint::MakeInt(1)));
  EXPECT_TRUE(SameTree(nullptr, nullptr));
}

}  // namespace
}  // namespace certify
