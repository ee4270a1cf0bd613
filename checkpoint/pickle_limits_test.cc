// Hostile and damaged pickles: bounded memory, bounded depth, no recursion, no leak, no crash.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "checkpoint/limits.h"
#include "checkpoint/pickle.h"
#include "checkpoint/tree.h"

namespace checkpoint {
namespace {

using std::string_literals::operator""s;

Result<PickleResult> Read(const std::string& bytes) {
  return ReadPickle(std::as_bytes(std::span(bytes)), {}, "test");
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

// A list of one list of one list...: `depth` containers and a None.
std::string DeepList(int64_t depth) {
  return "\x80\x02" + std::string(static_cast<size_t>(depth), ']') + "N" +
         std::string(static_cast<size_t>(depth), 'a') + ".";
}

TEST(PickleLimitsTest, CountsLargerThanTheFileAreNeverAllocated) {
  ExpectRefused(
      "X\x00\x00\x00\x01"
      "abc"s,
      ErrorCode::kTruncated, "16777216 bytes");
  ExpectRefused(
      "X\xff\xff\xff\xff"
      "abc"s,
      ErrorCode::kLimitExceeded, "4294967295");
  ExpectRefused("\x8d\xff\xff\xff\xff\xff\xff\xff\xff", ErrorCode::kLimitExceeded, "a string");
  ExpectRefused("\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", ErrorCode::kLimitExceeded, "bytes");
  ExpectRefused("B\xff\xff\xff\xff", ErrorCode::kLimitExceeded, "bytes");
  ExpectRefused("\x8b\xff\xff\xff\x7f", ErrorCode::kLimitExceeded, "integer");
  ExpectRefused("\x95\xff\xff\xff\xff\xff\xff\xff\xff.", ErrorCode::kTruncated, "frame");
  ExpectRefused("Nr\xff\xff\xff\xff.", ErrorCode::kLimitExceeded, "memo entry 4294967295");
  ExpectRefused("cmodule", ErrorCode::kTruncated, "newline");
}

TEST(PickleLimitsTest, MoreObjectsThanTheLimitAreRefused) {
  const auto count = static_cast<size_t>(kPickleNodesMax);
  // Two bytes an object, dropped again at once: nothing waits.
  std::string bytes;
  for (size_t i = 0; i <= count; ++i) bytes += "N0";
  ExpectRefused(bytes + ".", ErrorCode::kLimitExceeded, "more than 4000000 objects");
  bytes.clear();
  for (size_t i = 0; i <= count; ++i) bytes += "(1";
  ExpectRefused(bytes + ".", ErrorCode::kLimitExceeded, "marks");
}

TEST(PickleLimitsTest, NestingIsBounded) {
  EXPECT_TRUE(Read(DeepList(kPickleDepthMax - 1)).ok());
  ExpectRefused(DeepList(kPickleDepthMax), ErrorCode::kLimitExceeded, "deep");
  // A million levels: refused without recursion, and destroyed without.
  ExpectRefused(DeepList(1'000'000), ErrorCode::kLimitExceeded, "deep");
}

int64_t ResidentBytes() {
  std::ifstream status("/proc/self/statm");
  int64_t whole = 0, resident = 0;
  status >> whole >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

TEST(PickleLimitsTest, NestingIsRefusedWhileReading) {
  const auto in_kilobytes = [](const std::string& bytes) {
    const int64_t before = ResidentBytes();
    ExpectRefused(bytes, ErrorCode::kLimitExceeded, "nested more than 200 deep");
    return (ResidentBytes() - before) / 1024;
  };
  // Without its end, which a check at the end would miss first.
  EXPECT_LT(in_kilobytes(std::string(10 << 20, ']')), 4096);
  EXPECT_LT(in_kilobytes(std::string(10 << 20, '(')), 4096);
}

TEST(PickleLimitsTest, ObjectsThatWaitForTheirContainerAreBounded) {
  const auto tuple_of = [](int64_t count) {
    return "(" + std::string(static_cast<size_t>(count), 'N') + "t.";
  };
  EXPECT_TRUE(Read(tuple_of(kPickleStackMax)).ok());
  ExpectRefused(tuple_of(kPickleStackMax + 1), ErrorCode::kLimitExceeded, "on the stack");
}

TEST(PickleLimitsTest, DepthBehindTheMemoIsCounted) {
  // Each round wraps memo entry 0 once more and stores it again: the stack stays flat.
  std::string bytes =
      "]q\x00"
      "0"s;
  for (int i = 0; i < 100'000; ++i)
    bytes +=
        "h\x00\x85q\x00"
        "0"s;
  ExpectRefused(bytes + "h\x00."s, ErrorCode::kLimitExceeded, "deep");
  // Deep, but not part of the result: dropped without recursion.
  EXPECT_TRUE(Read(bytes + "N.").ok());
  // Two paths to one node: the longer counts.
  std::string shallow =
      "]q\x00"
      "0"s;
  for (int64_t i = 0; i < kPickleDepthMax - 1; ++i)
    shallow +=
        "h\x00\x85q\x00"
        "0"s;
  ExpectRefused("(h\x00"s.insert(0, shallow) + "h\x00\x85t."s, ErrorCode::kLimitExceeded, "deep");
}

TEST(PickleLimitsTest, CyclesAreRefusedAndFreed) {
  ExpectMalformed(
      "]q\x00h\x00"
      "a."s,
      "contains itself");
  ExpectMalformed("}q\x00K\x01h\x00s."s, "contains itself");
  ExpectMalformed(
      "]q\x00]h\x00"
      "aa."s,
      "contains itself");
  ExpectMalformed(
      "ca\nb\n)\x81q\x00h\x00"
      "b."s,
      "contains itself");
  ExpectMalformed(
      "](q\x00]h\x00\x85"
      "e."s,
      "empty stack");
  // A cycle that is not part of the result, and one in a pickle that is damaged later.
  EXPECT_TRUE(Read("]q\x00h\x00"
                   "a0N."s)
                  .ok());
  ExpectRefused(
      "]q\x00h\x00"
      "a"s,
      ErrorCode::kTruncated, "");
}

TEST(PickleLimitsTest, SharedSubtreesDoNotMultiplyWork) {
  // 150 levels of a pair of the level below: 2^150 paths, 151 nodes.
  std::string bytes =
      "\x80\x02N\x85q\x00"
      "0"s;
  for (int i = 0; i < 150; ++i)
    bytes +=
        "h\x00h\x00\x86q\x00"
        "0"s;
  bytes += "h\x00."s;
  const Value root = Root(bytes);
  EXPECT_TRUE(SameStructure(root, Root(bytes)));
  EXPECT_LT(Written(root).size(), 2000u);
  EXPECT_FALSE(Render(root, 80).empty());
}

TEST(PickleLimitsTest, NoDamagedPickleCrashes) {
  // 20000 damaged forms of one pickle with everything in it: an error or a tree, never a crash.
  const Value shared = MakeList({MakeInt(1), MakeString("two")});
  const Value tree = MakeDict(
      {{MakeString("module"), MakeOrderedDict({{MakeString("w"), shared}})},
       {MakeString("args"),
        MakeInstance("argparse", "Namespace", MakeDict({{MakeString("lr"), MakeFloat(0.1)}}))},
       {MakeString("size"), MakeTorchSize({2, 3, 4, 5})},
       {MakeString("again"), shared},
       {MakeInt(3), MakeTuple({shared, MakeBool(true), MakeNone(), MakeInt(int64_t{1} << 40)})}});
  const std::string sound = Written(tree);
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = sound;
    for (int change = 0; change < 1 + round % 3; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    Result<PickleResult> result = Read(bytes);
    if (!result.ok()) {
      ++refused;
      continue;
    }
    const std::string again = Written(result.value().root);
    // Sets and bytes have no opcode in protocol 2: what they become is stable.
    EXPECT_EQ(Written(Root(again)), again);
  }
  EXPECT_GT(refused, 5000);
}

TEST(PickleLimitsTest, CutAnywhereIsTruncated) {
  const Value tree = MakeDict({{MakeString("text"), MakeList({MakeInt(1), MakeInt(70000)})},
                               {MakeString("size"), MakeTorchSize({2, 3})},
                               {MakeString("float"), MakeFloat(0.5)}});
  const std::string bytes = Written(tree);
  ASSERT_TRUE(Read(bytes).ok());
  for (size_t count = 0; count < bytes.size(); ++count) {
    ExpectRefused(bytes.substr(0, count), ErrorCode::kTruncated, "Truncated");
  }
}

}  // namespace
}  // namespace checkpoint
