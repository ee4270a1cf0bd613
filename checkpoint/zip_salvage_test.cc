#include "checkpoint/zip_salvage.h"

#include "checkpoint/test_support.h"
#include "checkpoint/zip_reader.h"

namespace checkpoint {
namespace {

std::string SoundBytes() {
  const TemporaryFolder folder;
  WriteSmall(folder / "small.pt");
  return ReadBytes(folder / "small.pt");
}

TEST(ZipSalvageTest, FindsEveryRecordOfASoundFileWhereTheDirectoryHasIt) {
  const std::string bytes = SoundBytes();
  const auto index = ReadZipIndex(AsBytes(bytes), "a.pt").value();
  const auto found = FindRecordsByHeaders(AsBytes(bytes));
  ASSERT_EQ(found.size(), index.records.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].name, index.records[i].name);
    EXPECT_EQ(found[i].payload_offset, index.records[i].payload_offset);
    EXPECT_EQ(found[i].payload_bytes, index.records[i].payload_bytes);
    EXPECT_TRUE(found[i].whole) << found[i].name;
  }
}

TEST(ZipSalvageTest, ACutFileKeepsTheRecordsInFrontOfTheCut) {
  const std::string bytes = SoundBytes();
  const auto index = ReadZipIndex(AsBytes(bytes), "a.pt").value();
  const Record* cut = FindRecord(index.records, "data/1");
  ASSERT_NE(cut, nullptr);
  const std::string front = bytes.substr(0, static_cast<size_t>(cut->payload_offset) + 100);
  const auto found = FindRecordsByHeaders(AsBytes(front));
  ASSERT_EQ(found.size(), 6U);
  EXPECT_EQ(found[0].name, "data.pkl");
  EXPECT_EQ(found[4].name, "data/0");
  EXPECT_TRUE(found[4].whole);
  EXPECT_EQ(found[5].name, "data/1");
  EXPECT_FALSE(found[5].whole);
  EXPECT_EQ(found[5].payload_bytes, -1);
}

TEST(ZipSalvageTest, AFlippedBitMakesItsRecordAloneNotWhole) {
  std::string bytes = SoundBytes();
  const auto index = ReadZipIndex(AsBytes(bytes), "a.pt").value();
  bytes[static_cast<size_t>(FindRecord(index.records, "data/1")->payload_offset) + 7] ^= 4;
  for (const SalvagedRecord& record : FindRecordsByHeaders(AsBytes(bytes)))
    EXPECT_EQ(record.whole, record.name != "data/1") << record.name;
}

TEST(ZipSalvageTest, NoTruncationAndNoForeignBytesAreMoreThanTheyProve) {
  const std::string bytes = SoundBytes();
  for (size_t count = 0; count <= bytes.size(); ++count) {
    const std::string front = bytes.substr(0, count);
    for (const SalvagedRecord& record : FindRecordsByHeaders(AsBytes(front))) {
      if (record.whole) {
        EXPECT_LE(record.payload_offset + record.payload_bytes, static_cast<int64_t>(count));
      }
    }
  }
  EXPECT_TRUE(FindRecordsByHeaders({}).empty());
  EXPECT_TRUE(FindRecordsByHeaders(AsBytes(std::string(4096, 'P'))).empty());
}

}  // namespace
}  // namespace checkpoint
