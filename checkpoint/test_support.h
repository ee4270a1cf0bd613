// What the tests of this room share: temporary folders, whole files as strings, zips with one thing
// made wrong. For tests only.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/container.h"
#include "checkpoint/tensor.h"

namespace checkpoint {

// A folder that goes away with the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "shardproof_XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code code;
    std::filesystem::remove_all(path_, code);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string ReadBytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void WriteBytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  EXPECT_TRUE(out.good()) << path;
}

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The corpus of real checkpoints; empty where this tree has none.
inline std::vector<std::filesystem::path> CorpusFiles() {
  std::vector<std::filesystem::path> files;
  const std::filesystem::path folder = SHARDPROOF_SOURCE_DIR "/fixtures/corpus";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           folder, std::filesystem::directory_options::follow_directory_symlink)) {
    if (entry.path().extension() == ".pt") files.push_back(entry.path());
  }
  return files;
}

inline Value TensorOf(const StoragePtr& storage, std::vector<int64_t> shape, int64_t offset = 0) {
  TensorView view;
  view.storage = storage;
  view.offset = offset;
  view.strides = ContiguousStrides(shape);
  view.shape = std::move(shape);
  return MakeTensor(view);
}

// {"w": float32 [2, 3], "b": uint8 [200]}; storage bytes count up from 1 over both: 1, 2, ..., 24,
// 25, ..., 224.
inline Value SmallRoot() {
  const StoragePtr w = MakeStorage(DType::kFloat32, 6);
  const StoragePtr b = MakeStorage(DType::kUInt8, 200);
  return MakeDict({{MakeString("w"), TensorOf(w, {2, 3})}, {MakeString("b"), TensorOf(b, {200})}});
}

inline void WriteSmall(const std::filesystem::path& path) {
  uint8_t next = 0;
  const Status written = WriteTorchFile(path, SmallRoot(), StringMemo::kByContent,
                                        [&next](const Storage&, std::span<std::byte> bytes) {
                                          for (std::byte& byte : bytes) byte = std::byte{++next};
                                        });
  EXPECT_TRUE(written.ok());
}

// The bytes of a zip, and where its structures lie, found by their signatures in a sound file.
class ZipImage {
 public:
  explicit ZipImage(std::string sound) : bytes(std::move(sound)) {}

  size_t End() const { return bytes.size() - 22; }
  size_t Locator() const { return bytes.size() - 42; }
  size_t End64() const { return bytes.size() - 98; }
  // The directory entry of the record whose full name ends in `name`.
  size_t Central(const std::string& name) const { return Find("PK\x01\x02", name, 28, 46); }
  size_t Local(const std::string& name) const { return Find("PK\x03\x04", name, 26, 30); }
  size_t Payload(const std::string& name) const {
    const size_t local = Local(name);
    return local + 30 + Get<uint16_t>(local + 26) + Get<uint16_t>(local + 28);
  }

  template <typename Number>
  Number Get(size_t at) const {
    Number number;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    return number;
  }
  template <typename Number>
  void Set(size_t at, Number number) {
    std::memcpy(bytes.data() + at, &number, sizeof number);
  }

  std::string bytes;

 private:
  size_t Find(std::string_view signature, const std::string& name, size_t count_at,
              size_t name_at) const {
    for (size_t at = bytes.find(signature); at != std::string::npos;
         at = bytes.find(signature, at + 1)) {
      const std::string_view here(bytes.data() + at + name_at, Get<uint16_t>(at + count_at));
      if (here.ends_with("/" + name)) return at;
    }
    ADD_FAILURE() << "no " << name;
    return 0;
  }
};

}  // namespace checkpoint
