// Hand-made pickles: what each opcode means, and what is refused. pickle_torch_test.cc and
// pickle_corpus_test.cc compare with Python and with real files.
#include "checkpoint/pickle.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/tree.h"

namespace checkpoint {
namespace {

using std::string_literals::operator""s;

Result<PickleResult> Read(const std::string& bytes, const StorageResolver& resolve = {}) {
  return ReadPickle(std::as_bytes(std::span(bytes)), resolve, "test");
}

Value Root(const std::string& bytes) {
  Result<PickleResult> result = Read(bytes);
  if (!result.ok()) {
    ADD_FAILURE() << result.error().ToString();
    return nullptr;
  }
  return result.value().root;
}

std::string Written(const Value& root, StringMemo memo = StringMemo::kByContent) {
  return WritePickle(root, memo).bytes;
}

void ExpectRefused(const std::string& bytes, ErrorCode code, const std::string& expected_text) {
  const Result<PickleResult> result = Read(bytes);
  ASSERT_FALSE(result.ok()) << expected_text;
  EXPECT_EQ(result.error().code, code) << result.error().ToString();
  EXPECT_NE(result.error().ToString().find(expected_text), std::string::npos)
      << result.error().ToString() << " does not say " << expected_text;
}
void ExpectMalformed(const std::string& bytes, const std::string& expected_text) {
  ExpectRefused(bytes, ErrorCode::kMalformedPickle, expected_text);
}

std::string Unicode(const std::string& text) {
  std::string bytes = "X";
  for (int shift = 0; shift < 32; shift += 8) {
    bytes += static_cast<char>(text.size() >> shift & 0xff);
  }
  return bytes + text;
}

TEST(PickleReaderTest, BytesReadEndsBehindStop) {
  const Result<PickleResult> result = Read("\x80\x02K\x07.rest");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.value().bytes_read, 5);
  EXPECT_EQ(AsInt(result.value().root), 7);
}

TEST(PickleReaderTest, IntegersOfEveryWidth) {
  EXPECT_EQ(AsInt(Root("K\xff.")), 255);
  EXPECT_EQ(AsInt(Root("M\x01\x02.")), 513);
  EXPECT_EQ(AsInt(Root("J\xfe\xff\xff\xff.")), -2);
  EXPECT_EQ(AsInt(Root("\x8a\x00."s)), 0);
  EXPECT_EQ(AsInt(Root("\x8a\x01\xff."s)), -1);
  EXPECT_EQ(AsInt(Root("\x8a\x05\x00\x00\x00\x00\x01."s)), int64_t{1} << 32);
  EXPECT_EQ(AsInt(Root("\x8b\x02\x00\x00\x00\x00\x80."s)), -32768);
  // Nine bytes that say what one byte says.
  EXPECT_EQ(AsInt(Root("\x8a\x09\x05\x00\x00\x00\x00\x00\x00\x00\x00."s)), 5);
}

TEST(PickleReaderTest, IntegersBeyond64BitsKeepTheirBytes) {
  // The magic number at the head of legacy files: 10 bytes.
  const std::string magic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
  const Value value = Root("\x80\x02\x8a\x0a" + magic + ".");
  ASSERT_TRUE(As<BigIntNode>(value));
  EXPECT_EQ(As<BigIntNode>(value)->little_endian, magic);
  EXPECT_EQ(Written(value), "\x80\x02\x8a\x0a" + magic + ".");
}

TEST(PickleReaderTest, FloatsKeepEveryBit) {
  EXPECT_EQ(AsNumber(Root("G\x3f\xf8\x00\x00\x00\x00\x00\x00."s)), 1.5);
  const Value nan = Root("G\x7f\xf8\x00\x00\x00\x00\x12\x34."s);
  EXPECT_EQ(Written(nan), "\x80\x02G\x7f\xf8\x00\x00\x00\x00\x12\x34."s);
  EXPECT_TRUE(std::signbit(*AsNumber(Root("G\x80\x00\x00\x00\x00\x00\x00\x00."s))));
}

TEST(PickleReaderTest, Python2StringsAreLatin1Text) {
  EXPECT_EQ(AsString(Root("U\x03"
                          "a\xe4z.")),
            "a\xc3\xa4z");
  EXPECT_EQ(AsString(Root("T\x01\x00\x00\x00\xff."s)), "\xc3\xbf");
}

TEST(PickleReaderTest, LoneSurrogatesPassOtherBrokenUtf8DoesNot) {
  EXPECT_EQ(AsString(Root(Unicode("\xed\xa0\x80") + ".")), "\xed\xa0\x80");
  EXPECT_EQ(AsString(Root(Unicode("\xf0\x9f\x98\x80") + ".")), "\xf0\x9f\x98\x80");
  for (const char* broken : {"\xff", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xf4\x90\x80\x80",
                             "\xf0\x80\x80\x80", "\xe2\x82", "\x80", "\xe2\x82z"}) {
    ExpectMalformed(Unicode(broken) + ".", "UTF-8");
  }
}

TEST(PickleReaderTest, SharedObjectsAreOneNode) {
  const Value root = Root(
      "\x80\x02]q\x00(]q\x01h\x01N\x85q\x02h\x02"
      "e."s);
  const auto& items = *SequenceItems(root);
  ASSERT_EQ(items.size(), 4u);
  EXPECT_EQ(items[0], items[1]);
  EXPECT_EQ(items[2], items[3]);
  EXPECT_EQ(Written(root),
            "\x80\x02]q\x00(]q\x01h\x01N\x85q\x02h\x02"
            "e."s);
}

TEST(PickleReaderTest, InstancesKeepClassArgumentsItemsAndState) {
  // argparse.Namespace(a=1) as torch.save writes it.
  const std::string bytes =
      "\x80\x02"
      "cargparse\nNamespace\nq\x00)\x81q\x01}q\x02X\x01\x00\x00\x00"
      "aq\x03K\x01sb."s;
  const Value root = Root(bytes);
  const auto* object = As<ObjectNode>(root);
  ASSERT_TRUE(object);
  EXPECT_EQ(object->how, ObjectNode::How::kNewObj);
  EXPECT_EQ(ClassName(root), "argparse.Namespace");
  EXPECT_EQ(AsInt(Get(root, "a")), 1);
  EXPECT_EQ(Written(root), bytes);
}

TEST(PickleReaderTest, ProtocolFourOpcodesGiveTheSameTree) {
  // A frame; {'a', b'x', frozenset} with MEMOIZE, SHORT_BINUNICODE, STACK_GLOBAL.
  const Value root = Root(
      "\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00]\x94(\x8c\x01"
      "a\x94"
      "C\x01x\x94\x8f\x94(K\x01\x90"
      "(K\x02\x91\x94\x8c\x05torch\x8c\x04Size\x93)Rh\x01"
      "e."s);
  const auto& items = *SequenceItems(root);
  ASSERT_EQ(items.size(), 6u);
  EXPECT_EQ(AsString(items[0]), "a");
  EXPECT_EQ(As<BytesNode>(items[1])->bytes, "x");
  EXPECT_EQ(AsInt(As<SetNode>(items[2])->items.at(0)), 1);
  EXPECT_TRUE(As<SetNode>(items[3])->frozen);
  EXPECT_EQ(ClassName(items[4]), "torch.Size");
  EXPECT_EQ(items[5], items[0]);
}

TEST(PickleReaderTest, StackOpcodesFollowPython) {
  EXPECT_EQ(AsInt(Root("K\x01K\x02"
                       "0.")),
            1);
  EXPECT_EQ(AsInt(Root("K\x01(K\x02K\x03"
                       "1.")),
            1);
  EXPECT_EQ(AsInt(Root("K\x01(0.")), 1);  // POP takes a mark
  EXPECT_EQ(AsIntList(Root("K\x04"
                           "2\x86.")),
            (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(AsIntList(Root("(K\x01K\x02l.")), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(AsInt(GetIndex(Root("(K\x01K\x02"
                                "d."),
                           1)),
            2);
}

TEST(PickleReaderTest, OpcodesThatRunCodeAreRefusedByName) {
  const std::pair<const char*, const char*> refused[] = {{"(ios\nsystem\n.", "INST"},
                                                         {"(cos\nsystem\no.", "OBJ"},
                                                         {"\x82\x01.", "EXT1"},
                                                         {"\x83\x01\x01.", "EXT2"},
                                                         {"\x84\x01\x01\x01\x01.", "EXT4"},
                                                         {"P0\n.", "PERSID"},
                                                         {"\x92.", "NEWOBJ_EX"},
                                                         {"\x97.", "NEXT_BUFFER"},
                                                         {"\x98.", "READONLY_BUFFER"},
                                                         {"\x96.", "BYTEARRAY8"},
                                                         {"I1\n.", "INT"},
                                                         {"L1L\n.", "LONG"},
                                                         {"F1\n.", "FLOAT"},
                                                         {"S'a'\n.", "STRING"},
                                                         {"Va\n.", "UNICODE"},
                                                         {"g0\n.", "GET"},
                                                         {"p0\n.", "PUT"}};
  for (const auto& [bytes, name] : refused) {
    ExpectMalformed(bytes, std::string("opcode ") + name + " at byte");
  }
  ExpectMalformed("K\x01\xfe.", "no opcode");
  ExpectMalformed("K\x01\xfe.", "at byte 2");
}

TEST(PickleReaderTest, StackAndMemoFaultsAreMalformed) {
  ExpectMalformed(".", "empty stack");
  ExpectMalformed("K\x01K\x02.", "1 more objects");
  ExpectMalformed("K\x01(.", "empty stack");
  ExpectMalformed("0", "empty stack");
  ExpectMalformed("(K\x01\x86.", "1 objects on the stack");
  ExpectMalformed("e.", "no mark");
  ExpectMalformed("h\x05.", "memo entry 5");
  ExpectMalformed("j\x05\x00\x00\x01."s, "memo entry 16777221");
  ExpectMalformed("q\x00."s, "empty stack");
  ExpectMalformed("\x80\x06N.", "protocol 6");
  ExpectMalformed("2.", "empty stack");
}

TEST(PickleReaderTest, WrongTypesAreMalformed) {
  ExpectMalformed(
      "K\x01K\x02"
      "a.",
      "no list");
  ExpectMalformed("]K\x01K\x02s.", "no dict");
  ExpectMalformed("}(K\x01u.", "1 objects for a dict");
  ExpectMalformed("](K\x01\x90.", "no set");
  ExpectMalformed("(K\x01\x91(K\x01\x90.", "no set");
  ExpectMalformed("K\x01)R.", "cannot be called");
  ExpectMalformed("ca\nb\n]R.", "no tuple");
  ExpectMalformed("]}b.", "no instance");
  ExpectMalformed("ca\nb\n)\x81}b}b.", "second state");
  ExpectMalformed("ca\nb\n)\x81}bNNs.", "after its state");
  ExpectMalformed("ca\nb\n)\x81NNsNa.", "list items first");
  ExpectMalformed("K\x01K\x02\x93.", "no string");
  ExpectMalformed("c\nb\n.", "class name");
  ExpectMalformed(
      "\x8c\x03"
      "a\nb\x8c\x01"
      "c\x93.",
      "class name");
  ExpectMalformed("\x8b\xff\xff\xff\xff.", "negative");
}

TEST(PickleReaderTest, KeysMustBeHashableAndUnique) {
  ExpectMalformed("}(K\x01NK\x01Nu.", "twice");
  ExpectMalformed("}(K\x01N\x88Nu.", "twice");                                // True equals 1
  ExpectMalformed("}(K\x01NG\x3f\xf0\x00\x00\x00\x00\x00\x00Nu."s, "twice");  // so does 1.0
  ExpectMalformed("}(" + Unicode("lr") + "N" + Unicode("lr") + "Nu.", "'lr' twice");
  ExpectMalformed("}(NNNNu.", "twice");
  ExpectMalformed("}]Ns.", "as a key");
  ExpectMalformed("}}Ns.", "as a key");
  ExpectMalformed("\x8f(K\x01K\x01\x90.", "twice");
  ExpectMalformed("ccollections\nOrderedDict\n)R(K\x01NK\x01Nu.", "twice");
  EXPECT_TRUE(Read("}(K\x01N" + Unicode("1") + "NNNu.").ok());
}

TEST(PickleReaderTest, PersistentIdsMustBeStorages) {
  const StoragePtr storage = std::make_shared<Storage>();
  const StorageResolver resolve = [&](const Value&) -> Result<StoragePtr> { return storage; };
  const auto pid = [](const std::string& kind, const std::string& numel) {
    return "(" + Unicode(kind) + "ctorch\nFloatStorage\n" + Unicode("0") + Unicode("cpu") + numel +
           "tQ.";
  };
  const Result<PickleResult> sound = Read(pid("storage", "K\x05"), resolve);
  ASSERT_TRUE(sound.ok()) << sound.error().ToString();
  EXPECT_EQ(As<StorageNode>(sound.value().root)->storage, storage);
  for (const std::string& bytes :
       {pid("module", "K\x05"), pid("storage", "N"), "K\x01Q."s, ")Q."s}) {
    const Result<PickleResult> result = Read(bytes, resolve);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kMalformedPickle);
  }
  ExpectMalformed(pid("storage", "K\x05"), "tensor storage");
  const Result<PickleResult> unknown =
      Read(pid("storage", "K\x05"), [](const Value&) -> Result<StoragePtr> {
        return Error{ErrorCode::kMalformedContainer, "no record", "data/0", "", ""};
      });
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kMalformedContainer);
}

TEST(PickleWriterTest, StringsShareByContentOrByIdentity) {
  const Value tree = MakeList({MakeString("a"), MakeString("a")});
  EXPECT_EQ(Written(tree),
            "\x80\x02]q\x00(X\x01\x00\x00\x00"
            "aq\x01h\x01"
            "e."s);
  EXPECT_EQ(Written(tree, StringMemo::kByIdentity),
            "\x80\x02]q\x00(X\x01\x00\x00\x00"
            "aq\x01X\x01\x00\x00\x00"
            "aq\x02"
            "e."s);
}

TEST(PickleWriterTest, ClassesShareByContentAlways) {
  const Value tree = MakeTuple({MakeTorchSize({1}), MakeTorchSize({})});
  EXPECT_EQ(Written(tree, StringMemo::kByIdentity),
            "\x80\x02"
            "ctorch\nSize\nq\x00K\x01\x85q\x01\x85q\x02Rq\x03h\x00)\x85q\x04Rq\x05\x86q\x06."s);
}

TEST(PickleWriterTest, StoragesAreNumberedByFirstAppearance) {
  const auto storage = [](const char* key) {
    auto made = std::make_shared<Storage>();
    made->dtype = DType::kFloat16;
    made->numel = 5;
    made->key = key;
    return made;
  };
  const StoragePtr first = storage("7"), second = storage("0");
  const auto node = [](const StoragePtr& made) {
    auto value = std::make_shared<Node>();
    value->content = StorageNode{made, nullptr};
    return value;
  };
  const Value tree = MakeTuple({node(first), node(second), node(first)});
  const PickleOutput output = WritePickle(tree, StringMemo::kByIdentity);
  EXPECT_EQ(output.storages, (std::vector<StoragePtr>{first, second}));
  EXPECT_EQ(output.bytes,
            "\x80\x02(X\x07\x00\x00\x00storageq\x00"
            "ctorch\nHalfStorage\nq\x01X\x01\x00\x00\x00"
            "0q\x02X\x03\x00\x00\x00"
            "cpuq\x03K\x05tq\x04Q"
            "(h\x00h\x01X\x01\x00\x00\x00"
            "1q\x05h\x03K\x05tq\x06Q"
            "(h\x00h\x01h\x02h\x03K\x05tq\x07Q\x87q\x08."s);
}

}  // namespace
}  // namespace checkpoint
