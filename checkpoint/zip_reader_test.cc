#include "checkpoint/zip_reader.h"

#include "checkpoint/limits.h"
#include "checkpoint/test_support.h"

namespace checkpoint {
namespace {

const ZipImage& Sound() {
  static const ZipImage image = [] {
    const TemporaryFolder folder;
    WriteSmall(folder / "small.pt");
    return ZipImage(ReadBytes(folder / "small.pt"));
  }();
  return image;
}

Result<ZipIndex> Read(const ZipImage& image) { return ReadZipIndex(AsBytes(image.bytes), "a.pt"); }

// Expects a refusal, with its code, that names the file.
void ExpectRefused(const ZipImage& image, ErrorCode code, const std::string& found) {
  const auto index = Read(image);
  ASSERT_FALSE(index.ok()) << found;
  EXPECT_EQ(index.error().code, code) << index.error().ToString();
  EXPECT_NE(index.error().found.find(found), std::string::npos) << index.error().ToString();
  EXPECT_NE(index.error().where.find("a.pt"), std::string::npos);
  EXPECT_FALSE(index.error().expected.empty());
  EXPECT_FALSE(index.error().advice.empty());
}

TEST(ZipReaderTest, ListsRecordsWithTheirPlaces) {
  const auto index = Read(Sound()).value();
  EXPECT_EQ(index.root_name, "small");
  std::vector<std::string> names;
  for (const Record& record : index.records) {
    names.push_back(record.name);
    EXPECT_EQ(record.payload_offset % 64, 0) << record.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"data.pkl", ".format_version", ".storage_alignment",
                                             "byteorder", "data/0", "data/1", "version",
                                             ".data/serialization_id"}));
  const Record* data = FindRecord(index.records, "data/1");
  ASSERT_NE(data, nullptr);
  EXPECT_EQ(data->payload_bytes, 200);
  EXPECT_EQ(Sound().bytes[static_cast<size_t>(data->payload_offset)], 25);
  EXPECT_EQ(FindRecord(index.records, "data/2"), nullptr);
}

TEST(ZipReaderTest, EveryTruncationIsRefused) {
  for (size_t bytes = 0; bytes < Sound().bytes.size(); ++bytes) {
    ZipImage image(Sound().bytes.substr(0, bytes));
    const auto index = Read(image);
    ASSERT_FALSE(index.ok()) << bytes;
    EXPECT_EQ(index.error().code, ErrorCode::kTruncated) << bytes;
  }
}

TEST(ZipReaderTest, BytesBehindTheEndAreRefused) {
  ZipImage image(Sound().bytes + std::string(5, '\0'));
  ExpectRefused(image, ErrorCode::kMalformedContainer, "5 bytes behind the end record");
  ZipImage comment(Sound().bytes + "hello");
  comment.Set<uint16_t>(Sound().bytes.size() - 2, 5);
  ExpectRefused(comment, ErrorCode::kMalformedContainer, "5 bytes behind the end record");
}

TEST(ZipReaderTest, BytesInFrontShiftEverythingAndAreRefused) {
  ZipImage image(std::string(64, 'x') + Sound().bytes);
  EXPECT_EQ(Read(image).error().code, ErrorCode::kMalformedContainer);
}

// No byte of header, directory or end may bring the reader out of bounds; and where it still
// answers, payloads are where they were.
TEST(ZipReaderTest, EveryDamagedByteIsRefusedOrHarmless) {
  const auto sound = Read(Sound()).value();
  int refused = 0;
  for (size_t at = 0; at < Sound().bytes.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      ZipImage image = Sound();
      image.bytes[at] = static_cast<char>(image.bytes[at] ^ flip);
      const auto index = Read(image);
      if (!index.ok()) {
        ++refused;
        continue;
      }
      ASSERT_EQ(index.value().records.size(), sound.records.size()) << at;
      for (size_t i = 0; i < sound.records.size(); ++i) {
        EXPECT_EQ(index.value().records[i].payload_offset, sound.records[i].payload_offset) << at;
        EXPECT_EQ(index.value().records[i].payload_bytes, sound.records[i].payload_bytes) << at;
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(ZipReaderTest, CompressedAndEncryptedRecordsAreRefused) {
  ZipImage compressed = Sound();
  compressed.Set<uint16_t>(compressed.Central("data/0") + 10, 8);
  ExpectRefused(compressed, ErrorCode::kMalformedContainer, "compression method 8");
  ZipImage encrypted = Sound();
  encrypted.Set<uint16_t>(encrypted.Central("data/0") + 8, 0x0809);
  ExpectRefused(encrypted, ErrorCode::kMalformedContainer, "encrypted");
}

TEST(ZipReaderTest, DuplicateRecordIsRefused) {
  ZipImage image = Sound();
  image.bytes[image.Central("data/1") + 46 + strlen("small/data/")] = '0';
  image.bytes[image.Local("data/1") + 30 + strlen("small/data/")] = '0';
  ExpectRefused(image, ErrorCode::kMalformedContainer, "a second record of this name");
}

TEST(ZipReaderTest, PathTricksAreRefused) {
  // Of the eleven bytes of "small/data/0".
  for (const std::string name : {"small/../../0", "../../data/0", "/mall/data/0", "small//ata/0",
                                 "small/./ta/0", "small\\data\\0", "small/data/"}) {
    ZipImage image = Sound();
    const std::string padded = (name + std::string(12, 'x')).substr(0, 12);
    const std::string used = name == "small/data/" ? "small/datas/" : padded;
    image.bytes.replace(image.Central("data/0") + 46, 12, used);
    const auto index = Read(image);
    ASSERT_FALSE(index.ok()) << used;
    EXPECT_EQ(index.error().code, ErrorCode::kMalformedContainer);
    EXPECT_NE(index.error().found.find("a record name with"), std::string::npos)
        << used << ": " << index.error().ToString();
  }
  ZipImage zero = Sound();
  zero.bytes[zero.Central("data/0") + 46 + 8] = '\0';
  ExpectRefused(zero, ErrorCode::kMalformedContainer, "a zero byte");
  ZipImage rootless = Sound();
  rootless.bytes.replace(rootless.Central("data/0") + 46, 12, "small_data_0");
  ExpectRefused(rootless, ErrorCode::kMalformedContainer, "no root folder");
}

TEST(ZipReaderTest, SecondRootFolderIsRefused) {
  ZipImage image = Sound();
  image.bytes[image.Central("data/0") + 46] = 'S';
  image.bytes[image.Local("data/0") + 30] = 'S';
  ExpectRefused(image, ErrorCode::kMalformedContainer, "a second root folder");
}

TEST(ZipReaderTest, LyingSizesAreRefused) {
  ZipImage longer = Sound();
  longer.Set<uint32_t>(longer.Central("data/1") + 20, 201);
  longer.Set<uint32_t>(longer.Central("data/1") + 24, 201);
  ExpectRefused(longer, ErrorCode::kMalformedContainer, "data descriptor");
  ZipImage huge = Sound();
  huge.Set<uint32_t>(huge.Central("data/1") + 20, 0x7fffffff);
  huge.Set<uint32_t>(huge.Central("data/1") + 24, 0x7fffffff);
  ExpectRefused(huge, ErrorCode::kMalformedContainer, "a payload of 2147483647 bytes");
  ZipImage unequal = Sound();
  unequal.Set<uint32_t>(unequal.Central("data/1") + 20, 199);
  ExpectRefused(unequal, ErrorCode::kMalformedContainer, "199 stored bytes");
  ZipImage descriptor = Sound();
  descriptor.Set<uint32_t>(descriptor.Payload("data/1") + 200 + 12, 199);
  ExpectRefused(descriptor, ErrorCode::kMalformedContainer, "other sizes than the directory's");
  // Without the descriptor flag, the local header's own size counts.
  ZipImage local = Sound();
  local.Set<uint16_t>(local.Central("data/1") + 8, 0x0800);
  local.Set<uint16_t>(local.Local("data/1") + 6, 0x0800);
  ExpectRefused(local, ErrorCode::kMalformedContainer, "a local header that says 0 bytes");
  local.Set<uint32_t>(local.Local("data/1") + 22, 200);
  EXPECT_TRUE(Read(local).ok());
}

TEST(ZipReaderTest, HeadersOutsideTheFileAreRefused) {
  ZipImage offset = Sound();
  offset.Set<uint32_t>(offset.Central("data/1") + 42, 0x7ffffff0);
  ExpectRefused(offset, ErrorCode::kMalformedContainer, "a local header at byte");
  ZipImage wrong = Sound();
  wrong.Set<uint32_t>(wrong.Central("data/1") + 42, 1);
  ExpectRefused(wrong, ErrorCode::kMalformedContainer, "no local header at byte 1");
  ZipImage extra = Sound();
  extra.Set<uint16_t>(extra.Local("version") + 28, 0xfff0);
  ExpectRefused(extra, ErrorCode::kMalformedContainer, "a local header that reaches byte");
  ZipImage other = Sound();
  other.Set<uint32_t>(other.Central("data/1") + 42, static_cast<uint32_t>(other.Local("data/0")));
  ExpectRefused(other, ErrorCode::kMalformedContainer, "another name, flags or method");
}

// A whole second record inside the payload of the first, which the directory then names.
TEST(ZipReaderTest, OverlappingRecordsAreRefused) {
  ZipImage image = Sound();
  const size_t begin = image.Local("data/0");
  const size_t count = image.Payload("data/0") + 24 + 16 - begin;
  ASSERT_LT(count, 200u);
  const std::string inner = image.bytes.substr(begin, count);
  image.bytes.replace(image.Payload("data/1"), count, inner);
  image.Set<uint32_t>(image.Central("data/0") + 42, static_cast<uint32_t>(image.Payload("data/1")));
  ExpectRefused(image, ErrorCode::kMalformedContainer, "that overlap");
}

TEST(ZipReaderTest, MultiDiskArchiveIsUnsupported) {
  for (const size_t at : {size_t{4}, size_t{6}}) {
    ZipImage image = Sound();
    image.Set<uint16_t>(image.End() + at, 1);
    ExpectRefused(image, ErrorCode::kUnsupported, "several disks");
  }
  ZipImage locator = Sound();
  locator.Set<uint32_t>(locator.Locator() + 16, 2);
  ExpectRefused(locator, ErrorCode::kUnsupported, "several disks");
  ZipImage wide = Sound();
  wide.Set<uint32_t>(wide.End64() + 16, 1);
  ExpectRefused(wide, ErrorCode::kUnsupported, "several disks");
  ZipImage here = Sound();
  here.Set<uint64_t>(here.End64() + 24, 7);
  ExpectRefused(here, ErrorCode::kUnsupported, "several disks");
  ZipImage record = Sound();
  record.Set<uint16_t>(record.Central("data/0") + 34, 1);
  ExpectRefused(record, ErrorCode::kUnsupported, "another disk");
}

TEST(ZipReaderTest, EndRecordsThatContradictAreRefused) {
  ZipImage count = Sound();
  count.Set<uint16_t>(count.End() + 10, 9);
  ExpectRefused(count, ErrorCode::kMalformedContainer, "contradict");
  ZipImage fewer = Sound();
  for (const size_t at : {fewer.End() + 8, fewer.End() + 10}) fewer.Set<uint16_t>(at, 7);
  for (const size_t at : {fewer.End64() + 24, fewer.End64() + 32}) fewer.Set<uint64_t>(at, 7);
  ExpectRefused(fewer, ErrorCode::kMalformedContainer, "behind the last directory entry");
  ZipImage more = Sound();
  for (const size_t at : {more.End() + 8, more.End() + 10}) more.Set<uint16_t>(at, 9);
  for (const size_t at : {more.End64() + 24, more.End64() + 32}) more.Set<uint64_t>(at, 9);
  ExpectRefused(more, ErrorCode::kMalformedContainer, "no directory entry");
  ZipImage pointer = Sound();
  pointer.Set<uint64_t>(pointer.Locator() + 8, 0xffffffffffffffff);
  ExpectRefused(pointer, ErrorCode::kMalformedContainer, "a zip64 locator that points to");
  ZipImage record = Sound();
  record.Set<uint32_t>(record.End64(), 0);
  ExpectRefused(record, ErrorCode::kMalformedContainer, "no zip64 end record");
  ZipImage offset = Sound();
  offset.Set<uint32_t>(offset.End() + 16, 0xffffffff);
  offset.Set<uint64_t>(offset.End64() + 48, 0xffffffffffffff00);
  ExpectRefused(offset, ErrorCode::kMalformedContainer, "a directory of");
  ZipImage saturated = Sound();
  saturated.Set<uint32_t>(saturated.Locator(), 0);
  saturated.Set<uint32_t>(saturated.End() + 16, 0xffffffff);
  ExpectRefused(saturated, ErrorCode::kMalformedContainer,
                "saturated sizes without a zip64 locator");
}

TEST(ZipReaderTest, NumbersAboveTheirLimitsAreRefused) {
  ZipImage count = Sound();
  for (const size_t at : {count.End() + 8, count.End() + 10}) count.Set<uint16_t>(at, 0xffff);
  for (const size_t at : {count.End64() + 24, count.End64() + 32}) {
    count.Set<uint64_t>(at, static_cast<uint64_t>(kZipRecordsMax) + 1);
  }
  ExpectRefused(count, ErrorCode::kLimitExceeded, "4000001 records");
  for (const size_t at : {count.End64() + 24, count.End64() + 32}) {
    count.Set<uint64_t>(at, static_cast<uint64_t>(kZipRecordsMax));
  }
  ExpectRefused(count, ErrorCode::kMalformedContainer, "4000000 records in a directory of");
}

TEST(ZipReaderTest, RecordNameAboveItsLimitIsRefused) {
  const TemporaryFolder folder;
  WriteSmall(folder / "small.pt");
  // The entry's name takes in the directory behind it, so that more than 4096 bytes must be there.
  ZipImage image = Sound();
  const size_t end = image.End64();
  const std::string tail = image.bytes.substr(end);
  image.bytes = image.bytes.substr(0, end) + std::string(5000, 'x') + tail;
  const uint64_t directory = image.Get<uint64_t>(image.End64() + 48);
  const uint64_t bytes = image.End64() - directory;
  image.Set<uint64_t>(image.End64() + 40, bytes);
  image.Set<uint32_t>(image.End() + 12, static_cast<uint32_t>(bytes));
  image.Set<uint64_t>(image.Locator() + 8, image.End64());
  image.Set<uint16_t>(image.Central("serialization_id") + 28, 5000);
  ExpectRefused(image, ErrorCode::kLimitExceeded, "a record name of 5000 bytes");
}

TEST(ZipReaderTest, SaturatedEntryNeedsItsZip64Field) {
  ZipImage image = Sound();
  image.Set<uint32_t>(image.Central("data/1") + 24, 0xffffffff);
  ExpectRefused(image, ErrorCode::kMalformedContainer, "saturated sizes without their zip64 field");
}

TEST(ZipReaderTest, PlainEndRecordAloneIsEnough) {
  ZipImage image = Sound();
  image.bytes.erase(image.End64(), 56 + 20);
  EXPECT_EQ(Read(image).value().records.size(), 8u);
}

}  // namespace
}  // namespace checkpoint
