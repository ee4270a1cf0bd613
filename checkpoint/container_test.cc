#include "checkpoint/container.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "checkpoint/test_support.h"

namespace checkpoint {
namespace {

void CopyStorage(const Storage& storage, std::span<std::byte> bytes) {
  const auto from = StorageBytes(storage);
  ASSERT_EQ(from.size(), bytes.size());
  if (!from.empty()) std::memcpy(bytes.data(), from.data(), from.size());
}

void ExpectOpenRefused(const std::filesystem::path& path, ErrorCode code,
                       const std::string& found) {
  const auto file = OpenTorchFile(path);
  ASSERT_FALSE(file.ok()) << found;
  EXPECT_EQ(file.error().code, code) << file.error().ToString();
  EXPECT_NE(file.error().found.find(found), std::string::npos) << file.error().ToString();
  EXPECT_NE(file.error().where.find(path.string()), std::string::npos) << file.error().ToString();
}

// A small file with other content for one of its records, of the same length, with a mended CRC.
void WriteWithRecord(const std::filesystem::path& path, const std::string& record,
                     const std::string& content) {
  WriteSmall(path);
  ZipImage image(ReadBytes(path));
  const size_t bytes = image.Get<uint32_t>(image.Central(record) + 24);
  ASSERT_EQ(content.size(), bytes);
  image.bytes.replace(image.Payload(record), bytes, content);
  image.Set<uint32_t>(image.Central(record) + 16, Crc32(0, AsBytes(content)));
  WriteBytes(path, image.bytes);
}

TEST(Crc32Test, KnownValueAndSeed) {
  EXPECT_EQ(Crc32(0, AsBytes("123456789")), 0xcbf43926u);
  EXPECT_EQ(Crc32(0, {}), 0u);
  EXPECT_EQ(Crc32(Crc32(0, AsBytes("1234")), AsBytes("56789")), 0xcbf43926u);
}

TEST(Crc32Test, CombinesAtEveryCut) {
  const std::string text = "123456789";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const uint32_t first = Crc32(0, AsBytes(text).first(cut));
    const uint32_t second = Crc32(0, AsBytes(text).subspan(cut));
    EXPECT_EQ(Crc32Combine(first, second, static_cast<int64_t>(text.size() - cut)), 0xcbf43926u);
  }
}

TEST(ContainerTest, ReadsBackWhatItWrote) {
  const TemporaryFolder folder;
  WriteSmall(folder / "small.pt");
  const TorchFile file = OpenTorchFile(folder / "small.pt").value();
  EXPECT_FALSE(file.legacy);
  EXPECT_TRUE(file.crc_written);
  EXPECT_EQ(file.root_name, "small");
  EXPECT_EQ(file.serialization_id.size(), 40u);
  ASSERT_EQ(file.storages.size(), 2u);
  EXPECT_EQ(file.storages[0]->dtype, DType::kFloat32);
  EXPECT_EQ(file.storages[0]->numel, 6);
  EXPECT_EQ(StorageBytes(*file.storages[0])[23], std::byte{24});
  EXPECT_EQ(StorageBytes(*file.storages[1])[0], std::byte{25});
  const DictNode* root = As<DictNode>(file.root);
  ASSERT_NE(root, nullptr);
  const TensorView w = DecodeTensor(root->items[0].second, "w").value();
  EXPECT_EQ(w.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(w.storage, file.storages[0]);
  const CrcTally tally = CheckCrc(file).value();
  EXPECT_EQ(tally.records_checked, 8);
  EXPECT_GT(tally.bytes_checked, 24 + 200);
}

// What the framework wrote comes back byte for byte. Corpus files in which text inside the pickle
// was replaced keep the serialization id of the original bytes: there, everything else is equal.
TEST(ContainerTest, CorpusFilesReadAndWrittenAgainAreIdentical) {
  const TemporaryFolder folder;
  int identical = 0, identical_but_id = 0, legacy = 0;
  for (const auto& path : CorpusFiles()) {
    const auto opened = OpenTorchFile(path);
    ASSERT_TRUE(opened.ok()) << opened.error().ToString();
    const TorchFile& file = opened.value();
    const auto tally = CheckCrc(file);
    ASSERT_TRUE(tally.ok()) << tally.error().ToString();
    if (file.legacy) {
      EXPECT_EQ(tally.value().records_checked, 0);
      ++legacy;
      continue;
    }
    EXPECT_EQ(tally.value().records_checked, static_cast<int64_t>(file.records.size()));
    const auto again = folder / path.filename().string();
    std::filesystem::remove(again);
    ASSERT_TRUE(WriteTorchFile(again, file.root, StringMemo::kByIdentity, CopyStorage).ok());
    ZipImage ours(ReadBytes(again)), theirs(ReadBytes(path));
    ASSERT_EQ(ours.bytes.size(), theirs.bytes.size()) << path;
    if (ours.bytes == theirs.bytes) {
      ++identical;
      continue;
    }
    ++identical_but_id;
    const std::string id = ".data/serialization_id";
    const size_t payload = ours.Payload(id), central = ours.Central(id);
    ours.bytes.replace(payload, 48, theirs.bytes.substr(payload, 48));  // and its descriptor's CRC
    ours.Set<uint32_t>(central + 16, theirs.Get<uint32_t>(central + 16));
    EXPECT_EQ(ours.bytes == theirs.bytes, true) << path;
  }
  RecordProperty("identical", identical);
  std::cout << identical << " files identical, " << identical_but_id
            << " identical but for a serialization id of other text, " << legacy << " legacy\n";
  EXPECT_GE(identical, 20);
}

TEST(ContainerTest, EveryTruncationIsRefused) {
  const TemporaryFolder folder;
  WriteSmall(folder / "small.pt");
  const std::string bytes = ReadBytes(folder / "small.pt");
  for (size_t count = 0; count < bytes.size(); ++count) {
    WriteBytes(folder / "cut.pt", bytes.substr(0, count));
    const auto file = OpenTorchFile(folder / "cut.pt");
    ASSERT_FALSE(file.ok()) << count;
    EXPECT_EQ(file.error().code, ErrorCode::kTruncated) << count;
  }
}

// Law: a damaged byte is found by Open or by CheckCrc, or changes neither tree nor tensors.
TEST(ContainerTest, EveryDamagedByteIsFoundOrHarmless) {
  const TemporaryFolder folder;
  WriteSmall(folder / "small.pt");
  const TorchFile sound = OpenTorchFile(folder / "small.pt").value();
  const std::string bytes = ReadBytes(folder / "small.pt");
  int found = 0, harmless = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    WriteBytes(folder / "damaged.pt", damaged);
    const auto file = OpenTorchFile(folder / "damaged.pt");
    if (!file.ok() || !CheckCrc(file.value()).ok()) {
      ++found;
      continue;
    }
    ++harmless;
    ASSERT_EQ(file.value().storages.size(), 2u) << at;
    for (size_t i = 0; i < 2; ++i) {
      const auto before = StorageBytes(*sound.storages[i]);
      const auto now = StorageBytes(*file.value().storages[i]);
      EXPECT_TRUE(std::equal(before.begin(), before.end(), now.begin(), now.end())) << at;
    }
  }
  // Harmless: filler, dates, attributes, a descriptor's CRC.
  EXPECT_GT(found, 900);
  EXPECT_GT(harmless, 100);
}

TEST(ContainerTest, DamagedTensorOpensAndIsFoundByCrc) {
  const TemporaryFolder folder;
  WriteSmall(folder / "small.pt");
  ZipImage image(ReadBytes(folder / "small.pt"));
  image.bytes[image.Payload("data/1") + 77] ^= 1;
  WriteBytes(folder / "small.pt", image.bytes);
  const auto file = OpenTorchFile(folder / "small.pt");
  ASSERT_TRUE(file.ok());  // tensor bytes are not looked at
  const auto tally = CheckCrc(file.value());
  ASSERT_FALSE(tally.ok());
  EXPECT_EQ(tally.error().code, ErrorCode::kChecksumMismatch);
  EXPECT_NE(tally.error().where.find("record data/1"), std::string::npos);
  EXPECT_NE(tally.error().found, tally.error().expected);
}

// Pages of the file that the kernel holds, after those of its writing were dropped.
int64_t CachedBytesAfterOpen(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY);
  EXPECT_EQ(::fsync(descriptor), 0);
  EXPECT_EQ(::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED), 0);
  ::close(descriptor);
  const auto file = OpenTorchFile(path).value().file;
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> cached((file->bytes().size() + static_cast<size_t>(page) - 1) /
                                    static_cast<size_t>(page));
  EXPECT_EQ(::mincore(const_cast<std::byte*>(file->bytes().data()), file->bytes().size(),
                      cached.data()),
            0);
  return page * std::count_if(cached.begin(), cached.end(), [](auto flags) { return flags & 1; });
}

TEST(ContainerTest, OpeningReadsNoTensorBytesAhead) {
  const TemporaryFolder folder;
  constexpr int kTensors = 20;
  constexpr int64_t kTensorBytes = 4 << 20;
  std::vector<Value> tensors;
  for (int i = 0; i < kTensors; ++i) {
    const auto storage = std::make_shared<Storage>();
    storage->dtype = DType::kUInt8;
    storage->numel = kTensorBytes;
    TensorView view;
    view.storage = storage;
    view.shape = {kTensorBytes};
    view.strides = {1};
    tensors.push_back(MakeTensor(view));
  }
  ASSERT_TRUE(WriteTorchFile(folder / "large.pt", MakeList(tensors), StringMemo::kByContent,
                             [](const Storage&, std::span<std::byte>) {})
                  .ok());
  // A page or two at each of 20 records, 64 KiB at either end.
  EXPECT_LE(CachedBytesAfterOpen(folder / "large.pt"), 2 << 20);
}

TEST(ContainerTest, DamagedPickleIsFoundByOpen) {
  const TemporaryFolder folder;
  WriteSmall(folder / "small.pt");
  ZipImage image(ReadBytes(folder / "small.pt"));
  image.bytes[image.Payload("data.pkl") + 10] ^= 1;
  WriteBytes(folder / "small.pt", image.bytes);
  ExpectOpenRefused(folder / "small.pt", ErrorCode::kChecksumMismatch, "other bytes");
}

TEST(ContainerTest, FileWithoutSumsIsReadAndNothingIsCompared) {
  const TemporaryFolder folder;
  WriteSmall(folder / "small.pt");
  ZipImage image(ReadBytes(folder / "small.pt"));
  for (const char* record : {"data.pkl", ".format_version", ".storage_alignment", "byteorder",
                             "data/0", "data/1", "version", ".data/serialization_id"}) {
    image.Set<uint32_t>(image.Central(record) + 16, 0);
  }
  WriteBytes(folder / "small.pt", image.bytes);
  const TorchFile file = OpenTorchFile(folder / "small.pt").value();
  EXPECT_FALSE(file.crc_written);
  EXPECT_EQ(CheckCrc(file).value().records_checked, 0);
}

TEST(ContainerTest, ForeignByteOrderIsUnsupported) {
  const TemporaryFolder folder;
  WriteSmall(folder / "small.pt");
  ZipImage image(ReadBytes(folder / "small.pt"));
  // A record of six bytes becomes one of three; the rest of its room turns into a gap.
  const std::string big = "big";
  const size_t payload = image.Payload("byteorder");
  const size_t central = image.Central("byteorder");
  image.bytes.replace(payload, 3, big);
  image.bytes.replace(payload + 3, 16, image.bytes.substr(payload + 6, 16));
  image.Set<uint32_t>(payload + 3 + 8, 3);
  image.Set<uint32_t>(payload + 3 + 12, 3);
  image.Set<uint32_t>(central + 16, Crc32(0, AsBytes(big)));
  image.Set<uint32_t>(central + 20, 3);
  image.Set<uint32_t>(central + 24, 3);
  WriteBytes(folder / "small.pt", image.bytes);
  ExpectOpenRefused(folder / "small.pt", ErrorCode::kUnsupported, "byteorder \"big\"");
  WriteWithRecord(folder / "other.pt", "byteorder", "middle");
  ExpectOpenRefused(folder / "other.pt", ErrorCode::kMalformedContainer, "byteorder");
}

TEST(ContainerTest, SmallRecordsOfOtherContentAreRefused) {
  const TemporaryFolder folder;
  WriteWithRecord(folder / "format.pt", ".format_version", "2");
  ExpectOpenRefused(folder / "format.pt", ErrorCode::kUnsupported, ".format_version");
  WriteWithRecord(folder / "version.pt", "version", "x\n");
  ExpectOpenRefused(folder / "version.pt", ErrorCode::kMalformedContainer, "version");
}

// Renames a record in both of its headers. Where the new name is shorter, what is left of the old
// one becomes part of the local extra field, and of the directory entry's comment.
void Rename(const std::filesystem::path& path, const std::string& from, const std::string& to) {
  ASSERT_LE(to.size(), from.size());
  ZipImage image(ReadBytes(path));
  const size_t central = image.Central(from), local = image.Local(from);
  const uint16_t name_bytes = image.Get<uint16_t>(central + 28);
  const uint16_t less = static_cast<uint16_t>(from.size() - to.size());
  image.bytes.replace(central + 46 + name_bytes - from.size(), to.size(), to);
  image.bytes.replace(local + 30 + name_bytes - from.size(), to.size(), to);
  const uint16_t shorter = static_cast<uint16_t>(name_bytes - less);
  image.Set<uint16_t>(central + 28, shorter);
  image.Set<uint16_t>(central + 32, less);
  image.Set<uint16_t>(local + 26, shorter);
  image.Set<uint16_t>(local + 28, static_cast<uint16_t>(image.Get<uint16_t>(local + 28) + less));
  WriteBytes(path, image.bytes);
}

TEST(ContainerTest, MissingRecordsAreNamed) {
  const TemporaryFolder folder;
  for (const auto& [from, to] :
       {std::pair{"data/1", "data/7"}, {"data.pkl", "data.pkx"}, {"version", "versiom"}}) {
    const auto path = folder / (std::string("without_") + std::string(from).substr(0, 4) + ".pt");
    WriteSmall(path);
    Rename(path, from, to);
    ExpectOpenRefused(path, ErrorCode::kMalformedContainer,
                      "no record \"" + std::string(from) + "\"");
    std::filesystem::remove(path);
  }
}

TEST(ContainerTest, TorchScriptIsUnsupported) {
  const TemporaryFolder folder;
  WriteSmall(folder / "small.pt");
  Rename(folder / "small.pt", ".format_version", "constants.pkl");
  ExpectOpenRefused(folder / "small.pt", ErrorCode::kUnsupported, "a TorchScript archive");
}

TEST(ContainerTest, RecordOfAnotherLengthThanThePickleSays) {
  const TemporaryFolder folder;
  // float32 [6] on a record of 24 bytes; the pickle is made to say 5, then 7.
  for (const auto& [numel, code] :
       {std::pair{5, ErrorCode::kMalformedContainer}, std::pair{7, ErrorCode::kTruncated}}) {
    WriteSmall(folder / "small.pt");
    ZipImage image(ReadBytes(folder / "small.pt"));
    const size_t payload = image.Payload("data.pkl");
    const size_t bytes = image.Get<uint32_t>(image.Central("data.pkl") + 24);
    // "cpu", its memo entry, then numel as BININT1.
    const size_t numel_at =
        image.bytes.find(std::string("K\x06"), image.bytes.find("cpu", payload));
    ASSERT_LT(numel_at, payload + bytes);
    image.bytes[numel_at + 1] = static_cast<char>(numel);
    const std::string pickle = image.bytes.substr(payload, bytes);
    image.Set<uint32_t>(image.Central("data.pkl") + 16, Crc32(0, AsBytes(pickle)));
    WriteBytes(folder / "small.pt", image.bytes);
    ExpectOpenRefused(folder / "small.pt", code, "24 bytes");
    std::filesystem::remove(folder / "small.pt");
  }
}

TEST(ContainerTest, OtherFilesAreRefused) {
  const TemporaryFolder folder;
  ExpectOpenRefused(folder / "none.pt", ErrorCode::kNotFound, "No such file");
  ExpectOpenRefused(folder.path(), ErrorCode::kIo, "a folder");
  WriteBytes(folder / "empty.pt", "");
  ExpectOpenRefused(folder / "empty.pt", ErrorCode::kTruncated, "0 bytes");
  WriteBytes(folder / "page.pt", "<!DOCTYPE html><html></html>");
  ExpectOpenRefused(folder / "page.pt", ErrorCode::kMalformedContainer, "neither a zip nor");
  WriteBytes(folder / "pickle.pt", "\x80\x02K\x01.");
  ExpectOpenRefused(folder / "pickle.pt", ErrorCode::kMalformedContainer, "magic number");
}

TEST(TorchFileLayoutTest, FrameMayBeWrittenBeforeOrAfterThePayloads) {
  const TemporaryFolder folder;
  WriteSmall(folder / "small.pt");
  const std::string expected = ReadBytes(folder / "small.pt");
  const auto layout = TorchFileLayout::Plan(SmallRoot(), StringMemo::kByContent, "small");
  ASSERT_EQ(layout.storages().size(), 2u);
  std::vector<std::string> payloads(2);
  uint8_t next = 0;
  for (size_t i = 0; i < 2; ++i) {
    for (int64_t k = 0; k < layout.storages()[i]->bytes(); ++k) {
      payloads[i] += static_cast<char>(++next);
    }
  }
  const std::vector<uint32_t> sums = {Crc32(0, AsBytes(payloads[0])),
                                      Crc32(0, AsBytes(payloads[1]))};
  for (const bool frame_first : {true, false}) {
    const auto path = folder / (frame_first ? "first.pt" : "last.pt");
    const auto file = OutputFile::Create(path, layout.file_bytes()).value();
    if (frame_first) {
      ASSERT_TRUE(layout.WriteFrame(*file, sums).ok());
    }
    for (const size_t i : {size_t{1}, size_t{0}}) {
      ASSERT_TRUE(file->Write(layout.StorageOffset(i), AsBytes(payloads[i])).ok());
    }
    if (!frame_first) {
      ASSERT_TRUE(layout.WriteFrame(*file, sums).ok());
    }
    ASSERT_TRUE(file->Close(false).ok());
    EXPECT_TRUE(ReadBytes(path) == expected);
  }
}

TEST(TorchFileLayoutTest, EmptyRecordsHaveNoDescriptor) {
  const TemporaryFolder folder;
  const Value root = MakeList({TensorOf(MakeStorage(DType::kFloat32, 0), {0}),
                               TensorOf(MakeStorage(DType::kInt64, 1), {})});
  const auto fill = [](const Storage&, std::span<std::byte> bytes) {
    std::fill(bytes.begin(), bytes.end(), std::byte{9});
  };
  ASSERT_TRUE(WriteTorchFile(folder / "a.pt", root, StringMemo::kByContent, fill).ok());
  const ZipImage image(ReadBytes(folder / "a.pt"));
  EXPECT_EQ(image.Get<uint16_t>(image.Central("data/0") + 8), 0x0800);
  EXPECT_EQ(image.Get<uint16_t>(image.Central("data/1") + 8), 0x0808);
  EXPECT_EQ(image.Payload("data/0"), image.Local("data/1"));
  const TorchFile file = OpenTorchFile(folder / "a.pt").value();
  EXPECT_EQ(file.storages[0]->bytes(), 0);
  EXPECT_EQ(CheckCrc(file).value().records_checked, 8);
}

// 65536 records and more do not fit the plain end record, which then says 65535.
TEST(TorchFileLayoutTest, RecordsBeyond16BitsAreCountedInTheWideEndRecord) {
  std::vector<Value> tensors;
  for (int i = 0; i < 65530; ++i) tensors.push_back(TensorOf(MakeStorage(DType::kUInt8, 1), {}));
  const TemporaryFolder folder;
  const auto nothing = [](const Storage&, std::span<std::byte>) {};
  ASSERT_TRUE(
      WriteTorchFile(folder / "a.pt", MakeList(std::move(tensors)), StringMemo::kByContent, nothing)
          .ok());
  const ZipImage image(ReadBytes(folder / "a.pt"));
  EXPECT_EQ(image.Get<uint16_t>(image.End() + 10), 65535);
  EXPECT_EQ(image.Get<uint64_t>(image.End64() + 32), 65536u);
  const TorchFile file = OpenTorchFile(folder / "a.pt").value();
  EXPECT_EQ(file.storages.size(), 65530u);
  EXPECT_EQ(file.records.size(), 65536u);
}

TEST(TorchFileLayoutTest, RootNameIsTheNameWithoutItsLastExtension) {
  EXPECT_EQ(TorchRootName("/a/b.c/mp_rank_00_model_states.pt"), "mp_rank_00_model_states");
  EXPECT_EQ(TorchRootName("a.b.pt"), "a.b");
  EXPECT_EQ(TorchRootName("plain"), "plain");
  EXPECT_EQ(TorchRootName("a/.pt"), ".pt");
}

TEST(TorchFileLayoutTest, ExistingTargetIsKept) {
  const TemporaryFolder folder;
  WriteBytes(folder / "a.pt", "kept");
  const auto nothing = [](const Storage&, std::span<std::byte>) {};
  const Status status =
      WriteTorchFile(folder / "a.pt", SmallRoot(), StringMemo::kByContent, nothing);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kTargetExists);
  EXPECT_EQ(ReadBytes(folder / "a.pt"), "kept");
}

// The n-th call fails, for n = 1, 2, ... until the run completes: an error each time, never a file
// that reads as sound.
TEST(TorchFileLayoutTest, AnyFailedCallIsReported) {
  const TemporaryFolder folder;
  const auto nothing = [](const Storage&, std::span<std::byte>) {};
  int64_t nth = 1;
  for (;; ++nth) {
    SetFileFault(FileFault{.nth = nth, .error_number = ENOSPC});
    const Status status =
        WriteTorchFile(folder / "a.pt", SmallRoot(), StringMemo::kByContent, nothing);
    const int64_t calls = FileFaultCalls();
    SetFileFault(std::nullopt);
    if (calls < nth) {
      EXPECT_TRUE(status.ok());
      break;
    }
    ASSERT_FALSE(status.ok()) << nth;
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_FALSE(std::filesystem::exists(folder / "a.pt")) << nth;
  }
  EXPECT_GE(nth, 6);
}

}  // namespace
}  // namespace checkpoint
