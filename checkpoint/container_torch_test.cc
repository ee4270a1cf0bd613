// torch.load judges what this room writes, and torch.save supplies what it reads
// (container_torch_test.py). Skipped only where torch cannot be imported.
#include <sys/wait.h>

#include <cstdlib>

#include "checkpoint/test_support.h"

namespace checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kNoTorch = 77;
constexpr int64_t kGib = int64_t{1} << 30;

int Python(const std::string& command, const fs::path& path) {
  const std::string line = "'" SHARDPROOF_PYTHON "' '" SHARDPROOF_SOURCE_DIR
                           "/checkpoint/container_torch_test.py' " +
                           command + " '" + path.string() + "'";
  const int status = std::system(line.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define EXPECT_PYTHON(command, path)                                                \
  do {                                                                              \
    const int code = Python(command, path);                                         \
    if (code == kNoTorch) GTEST_SKIP() << SHARDPROOF_PYTHON " cannot import torch"; \
    ASSERT_EQ(code, 0) << command;                                                  \
  } while (false)

void CopyStorage(const Storage& storage, std::span<std::byte> bytes) {
  const auto from = StorageBytes(storage);
  ASSERT_EQ(from.size(), bytes.size());
  if (!from.empty()) std::memcpy(bytes.data(), from.data(), from.size());
}

void Convert(const fs::path& from, const fs::path& to) {
  const auto file = OpenTorchFile(from);
  ASSERT_TRUE(file.ok()) << file.error().ToString();
  const auto tally = CheckCrc(file.value());
  ASSERT_TRUE(tally.ok()) << tally.error().ToString();
  const Status written =
      WriteTorchFile(to, file.value().root, StringMemo::kByIdentity, CopyStorage);
  ASSERT_TRUE(written.ok()) << written.error().ToString();
}

TEST(ContainerTorchTest, FilesOfTorchReadAndWrittenLoadTheSame) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "torch");
  fs::create_directories(folder / "ours");
  EXPECT_PYTHON("write", folder / "torch");
  int legacy = 0, without_sums = 0;
  for (const auto& entry : fs::directory_iterator(folder / "torch")) {
    const fs::path ours = folder / "ours" / entry.path().filename();
    Convert(entry.path(), ours);
    const TorchFile file = OpenTorchFile(entry.path()).value();
    legacy += file.legacy;
    without_sums += !file.legacy && !file.crc_written;
    EXPECT_TRUE(!file.crc_written || ReadBytes(ours) == ReadBytes(entry.path())) << ours;
  }
  EXPECT_EQ(legacy, 1);
  EXPECT_EQ(without_sums, 1);
  EXPECT_PYTHON("same", folder.path());
}

// The corpus' legacy files become zips that load to the same objects.
TEST(ContainerTorchTest, LegacyFilesOfTheCorpusBecomeZipsThatLoadTheSame) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "torch");
  fs::create_directories(folder / "ours");
  int count = 0;
  for (const fs::path& path : CorpusFiles()) {
    const auto file = OpenTorchFile(path);
    ASSERT_TRUE(file.ok()) << file.error().ToString();
    // Optimizer files hold classes of DeepSpeed, which this Python may not have.
    if (!file.value().legacy || path.filename().string().find("optim") != std::string::npos) {
      continue;
    }
    const std::string name = std::to_string(count++) + ".pt";
    fs::copy_file(path, folder / "torch" / name);
    Convert(path, folder / "ours" / name);
  }
  if (count == 0) GTEST_SKIP() << "this tree's corpus has no legacy files";
  EXPECT_PYTHON("same", folder.path());
}

// Byte i of the storage number `seed`, as container_torch_test.py expects it.
std::byte ByteAt(int64_t seed, int64_t i) {
  return static_cast<std::byte>((seed * 31 + i * 7 + 1) % 251);
}

TEST(ContainerTorchTest, EveryTypeAndEveryKindOfViewIsWhatWasMeant) {
  constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64,
                               DType::kInt64,   DType::kInt32,   DType::kInt16,    DType::kInt8,
                               DType::kUInt8,   DType::kBool};
  std::vector<std::pair<Value, Value>> items;
  for (const DType dtype : kDTypes) {
    const StoragePtr storage = MakeStorage(dtype, 24);
    const auto strided = [&storage](std::vector<int64_t> shape, std::vector<int64_t> strides,
                                    int64_t offset) {
      return MakeTensor({storage, offset, std::move(shape), std::move(strides), false});
    };
    items.emplace_back(MakeString(std::string(DTypeName(dtype))),
                       MakeList({strided({2, 3, 4}, {12, 4, 1}, 0), strided({}, {}, 5),
                                 strided({3, 4}, {1, 3}, 6), strided({0}, {1}, 24),
                                 strided({3, 0, 2}, {2, 2, 1}, 0), strided({4, 2}, {0, 1}, 1)}));
  }
  items.emplace_back(MakeString("nothing"), TensorOf(MakeStorage(DType::kFloat32, 0), {0}));
  const TemporaryFolder folder;
  int64_t seed = 0;
  const auto fill = [&seed](const Storage& storage, std::span<std::byte> bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = ByteAt(seed, static_cast<int64_t>(i));
      if (storage.dtype == DType::kBool) bytes[i] &= std::byte{1};
    }
    ++seed;
  };
  ASSERT_TRUE(WriteTorchFile(folder / "meant.pt", MakeOrderedDict(std::move(items)),
                             StringMemo::kByContent, fill)
                  .ok());
  EXPECT_PYTHON("meant", folder / "meant.pt");
}

uint32_t CrcOfZeros(int64_t count) {
  const std::vector<std::byte> window(static_cast<size_t>(1 << 20));
  const uint32_t one = Crc32(0, window);
  uint32_t crc = 0;
  for (int64_t done = 0; done < count; done += 1 << 20) crc = Crc32Combine(crc, one, 1 << 20);
  return crc;
}

// A file of more than 5 GiB without 5 GiB on the disk: the large storage stays a hole.
TEST(ContainerTorchTest, OffsetsAbove4GibAreReachedByTorch) {
  const StoragePtr first = MakeStorage(DType::kUInt8, 5 * kGib);
  const StoragePtr behind = MakeStorage(DType::kInt16, 6);
  const StoragePtr last = MakeStorage(DType::kUInt8, 1);
  const Value root = MakeDict({{MakeString("first"), TensorOf(first, {5 * kGib})},
                               {MakeString("behind"), TensorOf(behind, {2, 3})},
                               {MakeString("last"), TensorOf(last, {1})}});
  const auto layout = TorchFileLayout::Plan(root, StringMemo::kByContent, "big");
  ASSERT_EQ(layout.storages().size(), 3u);
  EXPECT_GT(layout.StorageOffset(1), 5 * kGib);
  const TemporaryFolder folder;
  const auto file = OutputFile::Create(folder / "big.pt", layout.file_bytes()).value();
  const std::string numbers("\1\0\2\0\3\0\4\0\5\0\6\0", 12);
  ASSERT_TRUE(file->Write(layout.StorageOffset(1), AsBytes(numbers)).ok());
  ASSERT_TRUE(file->Write(layout.StorageOffset(2), AsBytes("M")).ok());
  const std::vector<uint32_t> sums = {CrcOfZeros(5 * kGib), Crc32(0, AsBytes(numbers)),
                                      Crc32(0, AsBytes("M"))};
  ASSERT_TRUE(layout.WriteFrame(*file, sums).ok());
  ASSERT_TRUE(file->Close(false).ok());

  const TorchFile opened = OpenTorchFile(folder / "big.pt").value();
  EXPECT_EQ(opened.storages[0]->bytes(), 5 * kGib);
  EXPECT_EQ(opened.storages[2]->file_offset, layout.StorageOffset(2));
  EXPECT_EQ(StorageBytes(*opened.storages[2])[0], std::byte{'M'});
  EXPECT_PYTHON("big", folder / "big.pt");
}

}  // namespace
}  // namespace checkpoint
