#include "checkpoint/legacy_reader.h"

#include "checkpoint/test_support.h"

namespace checkpoint {
namespace {

// ---- Pickles by hand, protocol 2. ----

std::string Number32(uint32_t number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof number);
}
std::string Text(const std::string& text) {
  return "X" + Number32(static_cast<uint32_t>(text.size())) + text;
}
std::string Small(int number) { return std::string("K") + static_cast<char>(number); }
std::string Pickle(const std::string& body) { return "\x80\x02" + body + "."; }

const std::string kMagic =
    Pickle(std::string("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12));
const std::string kProtocol = Pickle("M\xe9\x03");
std::string System(const std::string& little_endian) {
  return Pickle("}" + Text("little_endian") + little_endian + "s");
}
const std::string kSystem = System("\x88");

std::string StorageIdOf(const std::string& key, int numel, const std::string& view = "N") {
  return "(" + Text("storage") + "ctorch\nShortStorage\n" + Text(key) + Text("cpu") + Small(numel) +
         view + "tQ";
}
std::string TensorPickle(const std::string& id, int numel, int offset = 0) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + id + Small(offset) + Small(numel) + "\x85" +
         Small(1) + "\x85\x89" + "ccollections\nOrderedDict\n)RtR";
}
std::string Keys(const std::vector<std::string>& keys) {
  std::string body = "](";
  for (const std::string& key : keys) body += Text(key);
  return Pickle(body + "e");
}
std::string Data(int64_t numel, const std::string& bytes) {
  return std::string(reinterpret_cast<const char*>(&numel), sizeof numel) + bytes;
}

// [tensor of storage 11 (3 elements), tensor of storage 7 (2 elements)], keys in sorted order.
std::string TwoTensors() {
  return kMagic + kProtocol + kSystem +
         Pickle("](" + TensorPickle(StorageIdOf("11", 3), 3) +
                TensorPickle(StorageIdOf("7", 2), 2) + "e") +
         Keys({"11", "7"}) + Data(3, "aabbcc") + Data(2, "ddee");
}

class LegacyReaderTest : public testing::Test {
 protected:
  Result<TorchFile> Open(const std::string& bytes) {
    WriteBytes(folder_ / "legacy.pt", bytes);
    return OpenTorchFile(folder_ / "legacy.pt");
  }

  void ExpectRefused(const std::string& bytes, ErrorCode code, const std::string& found) {
    const auto file = Open(bytes);
    ASSERT_FALSE(file.ok()) << found;
    EXPECT_EQ(file.error().code, code) << file.error().ToString();
    EXPECT_NE(file.error().found.find(found), std::string::npos) << file.error().ToString();
    EXPECT_NE(file.error().where.find("legacy.pt"), std::string::npos);
  }

  static std::string BytesOf(const Storage& storage) {
    const auto bytes = StorageBytes(storage);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  TemporaryFolder folder_;
};

TEST_F(LegacyReaderTest, FindsEachStorageBehindThePickles) {
  const TorchFile file = Open(TwoTensors()).value();
  EXPECT_TRUE(file.legacy);
  EXPECT_FALSE(file.crc_written);
  EXPECT_TRUE(file.records.empty());
  ASSERT_EQ(file.storages.size(), 2u);
  EXPECT_EQ(file.storages[0]->key, "11");
  EXPECT_EQ(BytesOf(*file.storages[0]), "aabbcc");
  EXPECT_EQ(BytesOf(*file.storages[1]), "ddee");
  EXPECT_EQ(CheckCrc(file).value().records_checked, 0);
}

TEST_F(LegacyReaderTest, ViewIsAWindowOfItsStorage) {
  const std::string view = Text("77") + Small(1) + Small(2) + "\x87";
  const std::string bytes = kMagic + kProtocol + kSystem +
                            Pickle("](" + TensorPickle(StorageIdOf("11", 4, view), 2) +
                                   TensorPickle(StorageIdOf("11", 4), 4) + "e") +
                            Keys({"11"}) + Data(4, "aabbccdd");
  const TorchFile file = Open(bytes).value();
  ASSERT_EQ(file.storages.size(), 2u);
  EXPECT_EQ(file.storages[0]->key, "77");
  EXPECT_EQ(file.storages[0]->numel, 2);
  EXPECT_EQ(BytesOf(*file.storages[0]), "bbcc");
  EXPECT_EQ(BytesOf(*file.storages[1]), "aabbccdd");
}

TEST_F(LegacyReaderTest, ViewOutsideItsStorageIsRefused) {
  const std::string view = Text("77") + Small(3) + Small(2) + "\x87";
  ExpectRefused(kMagic + kProtocol + kSystem + Pickle(TensorPickle(StorageIdOf("11", 4, view), 2)) +
                    Keys({"11"}) + Data(4, "aabbccdd"),
                ErrorCode::kMalformedTensor, "a view of 2 elements at 3");
}

TEST_F(LegacyReaderTest, EveryTruncationIsRefused) {
  const std::string bytes = TwoTensors();
  for (size_t count = 0; count < bytes.size(); ++count) {
    const auto file = Open(bytes.substr(0, count));
    ASSERT_FALSE(file.ok()) << count;
    EXPECT_EQ(file.error().code, ErrorCode::kTruncated) << count << ": " << file.error().ToString();
  }
}

TEST_F(LegacyReaderTest, BytesBehindTheEndAreRefused) {
  ExpectRefused(TwoTensors() + "x", ErrorCode::kMalformedContainer, "1 bytes behind");
}

TEST_F(LegacyReaderTest, BigEndianFileIsUnsupported) {
  const std::string rest = Pickle("N") + Keys({});
  ExpectRefused(kMagic + kProtocol + System("\x89") + rest, ErrorCode::kUnsupported, "big-endian");
  ExpectRefused(kMagic + kProtocol + Pickle("}") + rest, ErrorCode::kMalformedContainer,
                "without little_endian");
  ExpectRefused(kMagic + kProtocol + Pickle("N") + rest, ErrorCode::kMalformedContainer, "no dict");
  EXPECT_TRUE(Open(kMagic + kProtocol + kSystem + rest).ok());
}

TEST_F(LegacyReaderTest, OtherMagicOrProtocolIsRefused) {
  ExpectRefused(Pickle(Small(1)), ErrorCode::kMalformedContainer, "magic number");
  ExpectRefused(kMagic + Pickle("M\xea\x03"), ErrorCode::kUnsupported, "another protocol version");
}

TEST_F(LegacyReaderTest, StorageKeysMustBeThoseOfTheTensors) {
  const std::string front =
      kMagic + kProtocol + kSystem + Pickle(TensorPickle(StorageIdOf("7", 2), 2));
  ExpectRefused(front + Keys({}), ErrorCode::kMalformedContainer, "0 storages");
  ExpectRefused(front + Keys({"8"}) + Data(2, "aabb"), ErrorCode::kMalformedContainer,
                "a storage key that no tensor has");
  ExpectRefused(front + Keys({"7", "7"}) + Data(2, "aabb") + Data(2, "aabb"),
                ErrorCode::kMalformedContainer, "storage key 7 twice");
  ExpectRefused(front + Keys({"7"}) + Data(3, "aabbcc"), ErrorCode::kMalformedContainer,
                "3 elements");
  ExpectRefused(front + Pickle("N"), ErrorCode::kMalformedContainer, "no list");
  EXPECT_TRUE(Open(front + Keys({"7"}) + Data(2, "aabb")).ok());
}

TEST_F(LegacyReaderTest, StorageIdOutsideTheRootPickleIsRefused) {
  ExpectRefused(kMagic + Pickle(StorageIdOf("7", 2)), ErrorCode::kMalformedContainer,
                "a storage id outside");
}

TEST_F(LegacyReaderTest, SameKeyWithOtherNumelIsRefused) {
  ExpectRefused(kMagic + kProtocol + kSystem +
                    Pickle("](" + TensorPickle(StorageIdOf("7", 2), 2) +
                           TensorPickle(StorageIdOf("7", 3), 2) + "e"),
                ErrorCode::kMalformedTensor, "storage 7 as int16 of 3");
}

}  // namespace
}  // namespace checkpoint
