#include "checkpoint/storage_id.h"

#include <gtest/gtest.h>

#include "checkpoint/limits.h"

namespace checkpoint {
namespace {

Value Id(std::vector<Value> items) { return MakeTuple(std::move(items)); }
Value FloatClass() { return MakeGlobal("torch", "FloatStorage"); }
Value Text(const char* text) { return MakeString(text); }

ErrorCode CodeOf(const Value& pid) {
  const auto id = ParseStorageId(pid, "here");
  EXPECT_FALSE(id.ok());
  if (id.ok()) return ErrorCode::kUsage;
  EXPECT_EQ(id.error().where, "here");
  return id.error().code;
}

TEST(StorageIdTest, FiveItemsAreAStorage) {
  const auto id =
      ParseStorageId(Id({Text("storage"), FloatClass(), Text("3"), Text("cuda:0"), MakeInt(6)}), "")
          .value();
  EXPECT_EQ(id.dtype, DType::kFloat32);
  EXPECT_EQ(id.key, "3");
  EXPECT_EQ(id.location, "cuda:0");
  EXPECT_EQ(id.numel, 6);
  EXPECT_FALSE(id.view);
}

TEST(StorageIdTest, OtherFormsAreRefused) {
  const auto malformed = ErrorCode::kMalformedTensor;
  EXPECT_EQ(CodeOf(MakeInt(1)), malformed);
  EXPECT_EQ(CodeOf(Id({})), malformed);
  EXPECT_EQ(CodeOf(Id({Text("storage"), FloatClass(), Text("3"), Text("cpu")})), malformed);
  EXPECT_EQ(CodeOf(Id({Text("storage"), Text("x"), Text("3"), Text("cpu"), MakeInt(1)})),
            malformed);
  EXPECT_EQ(CodeOf(Id({Text("storage"), MakeGlobal("torch", "QInt8Storage"), Text("3"), Text("cpu"),
                       MakeInt(1)})),
            malformed);
  EXPECT_EQ(CodeOf(Id({Text("storage"), MakeGlobal("os", "FloatStorage"), Text("3"), Text("cpu"),
                       MakeInt(1)})),
            malformed);
  EXPECT_EQ(CodeOf(Id({Text("storage"), FloatClass(), MakeInt(3), Text("cpu"), MakeInt(1)})),
            malformed);
  EXPECT_EQ(CodeOf(Id({Text("storage"), FloatClass(), Text("3"), MakeNone(), MakeInt(1)})),
            malformed);
  EXPECT_EQ(CodeOf(Id({Text("storage"), FloatClass(), Text("3"), Text("cpu"), MakeInt(-1)})),
            malformed);
  EXPECT_EQ(CodeOf(Id({Text("storage"), FloatClass(), Text("3"), Text("cpu"), MakeFloat(1)})),
            malformed);
  EXPECT_EQ(
      CodeOf(Id({Text("storage"), FloatClass(), Text("3"), Text("cpu"), MakeInt(1), MakeInt(0)})),
      malformed);
}

TEST(StorageIdTest, NumelAboveItsLimitIsRefused) {
  EXPECT_EQ(CodeOf(Id({Text("storage"), FloatClass(), Text("3"), Text("cpu"),
                       MakeInt(kTensorNumelMax + 1)})),
            ErrorCode::kLimitExceeded);
}

TEST(StorageIdTest, PickledModuleIsUnsupported) {
  EXPECT_EQ(CodeOf(Id({Text("module"), MakeGlobal("a", "B"), Text("file"), Text("source")})),
            ErrorCode::kUnsupported);
}

TEST(StorageIdTest, EqualKeysAreOneStorage) {
  StorageTable table;
  StorageId id;
  id.key = "0";
  id.numel = 4;
  const auto first = table.FindOrMake(id, "").value();
  const auto second = table.FindOrMake(id, "").value();
  EXPECT_TRUE(first.made);
  EXPECT_FALSE(second.made);
  EXPECT_EQ(first.storage, second.storage);
  id.dtype = DType::kInt32;
  ASSERT_FALSE(table.FindOrMake(id, "").ok());
  EXPECT_EQ(table.FindOrMake(id, "").error().code, ErrorCode::kMalformedTensor);
  EXPECT_EQ(table.in_order().size(), 1u);
  EXPECT_EQ(table.Find("1"), nullptr);
}

}  // namespace
}  // namespace checkpoint
