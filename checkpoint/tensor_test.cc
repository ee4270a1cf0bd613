#include "checkpoint/tensor.h"

#include <cmath>
#include <limits>

#include "checkpoint/limits.h"
#include "checkpoint/test_support.h"

namespace checkpoint {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

Value StorageValue(int64_t numel) {
  return std::make_shared<Node>(Node{StorageNode{MakeStorage(DType::kFloat32, numel), nullptr}});
}
Value Ints(const std::vector<int64_t>& numbers) {
  std::vector<Value> items;
  for (const int64_t number : numbers) items.push_back(MakeInt(number));
  return MakeTuple(std::move(items));
}

// _rebuild_tensor_v2 over a storage of 10 elements.
struct Arguments {
  int64_t offset = 0;
  std::vector<int64_t> shape = {}, strides = {};
};
Value Rebuild(const Arguments& arguments) {
  return MakeReduce("torch._utils", "_rebuild_tensor_v2",
                    {StorageValue(10), MakeInt(arguments.offset), Ints(arguments.shape),
                     Ints(arguments.strides), MakeBool(false), MakeOrderedDict({})});
}

ErrorCode CodeOf(const Value& value) {
  const auto view = DecodeTensor(value, "here");
  EXPECT_FALSE(view.ok());
  if (view.ok()) return ErrorCode::kUsage;
  EXPECT_EQ(view.error().where, "here");
  return view.error().code;
}

TEST(TensorTest, StridesAreRowMajor) {
  EXPECT_EQ(ContiguousStrides({2, 3, 4}), (std::vector<int64_t>{12, 4, 1}));
  EXPECT_EQ(ContiguousStrides({}), (std::vector<int64_t>{}));
  EXPECT_EQ(ContiguousStrides({3, 0, 2}), (std::vector<int64_t>{2, 2, 1}));  // as torch has them
}

TEST(TensorTest, ContiguousIgnoresDimensionsOfOne) {
  TensorView view;
  view.shape = {2, 1, 3};
  view.strides = {3, 77, 1};
  EXPECT_TRUE(view.IsContiguous());
  view.strides = {1, 2, 2};
  EXPECT_FALSE(view.IsContiguous());
  view.shape = {};
  view.strides = {};
  EXPECT_TRUE(view.IsContiguous());
  EXPECT_EQ(view.numel(), 1);
  view.shape = {0, 5};
  view.strides = {9, 9};
  EXPECT_TRUE(view.IsContiguous());
}

TEST(TensorTest, NumelIsBounded) {
  EXPECT_EQ(NumelOf({2, 3, 4}, "").value(), 24);
  EXPECT_EQ(NumelOf({}, "").value(), 1);
  EXPECT_EQ(NumelOf({0, kTensorNumelMax}, "").value(), 0);
  EXPECT_EQ(NumelOf({kTensorNumelMax}, "").value(), kTensorNumelMax);
  EXPECT_EQ(NumelOf({kTensorNumelMax, 2}, "").error().code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(NumelOf({kHuge, kHuge}, "").error().code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(NumelOf({2, -1}, "").error().code, ErrorCode::kMalformedTensor);
}

TEST(TensorTest, MadeTensorDecodesToItself) {
  TensorView view;
  view.storage = MakeStorage(DType::kBFloat16, 20);
  view.offset = 2;
  view.shape = {3, 4};
  view.strides = {1, 3};
  view.requires_grad = true;
  const TensorView back = DecodeTensor(MakeTensor(view), "").value();
  EXPECT_EQ(back.storage, view.storage);
  EXPECT_EQ(back.offset, 2);
  EXPECT_EQ(back.shape, view.shape);
  EXPECT_EQ(back.strides, view.strides);
  EXPECT_TRUE(back.requires_grad);
}

TEST(TensorTest, ParameterAndAttributedTensorAreUnwrapped) {
  const Value plain = Rebuild({.offset = 1, .shape = {3}, .strides = {2}});
  const Value parameter = MakeReduce("torch._utils", "_rebuild_parameter",
                                     {plain, MakeBool(true), MakeOrderedDict({})});
  EXPECT_TRUE(IsTensor(parameter));
  const TensorView view = DecodeTensor(parameter, "").value();
  EXPECT_TRUE(view.requires_grad);
  EXPECT_EQ(view.offset, 1);
  const Value attributed = MakeReduce(
      "torch._tensor", "_rebuild_from_type_v2",
      {MakeGlobal("torch._utils", "_rebuild_tensor_v2"), MakeGlobal("torch", "Tensor"),
       As<ObjectNode>(plain)->args, MakeDict({{MakeString("ds_id"), MakeString("0_17")}})});
  EXPECT_TRUE(IsTensor(attributed));
  EXPECT_EQ(DecodeTensor(attributed, "").value().shape, (std::vector<int64_t>{3}));
}

TEST(TensorTest, ViewsThatTouchTheLastElementAreInside) {
  EXPECT_TRUE(DecodeTensor(Rebuild({.offset = 9, .shape = {}, .strides = {}}), "").ok());
  EXPECT_TRUE(DecodeTensor(Rebuild({.offset = 1, .shape = {2, 5}, .strides = {4, 1}}), "").ok());
  EXPECT_TRUE(DecodeTensor(Rebuild({.offset = 10, .shape = {0}, .strides = {1}}), "").ok());
  EXPECT_TRUE(DecodeTensor(Rebuild({.shape = {1000, 2}, .strides = {0, 9}}), "").ok());
}

TEST(TensorTest, ViewsThatLeaveTheStorageAreRefused) {
  const auto malformed = ErrorCode::kMalformedTensor;
  EXPECT_EQ(CodeOf(Rebuild({.offset = 10, .shape = {}, .strides = {}})), malformed);
  EXPECT_EQ(CodeOf(Rebuild({.offset = 2, .shape = {2, 5}, .strides = {4, 1}})), malformed);
  EXPECT_EQ(CodeOf(Rebuild({.offset = 11, .shape = {0}, .strides = {1}})), malformed);
  EXPECT_EQ(CodeOf(Rebuild({.offset = -1, .shape = {1}, .strides = {1}})), malformed);
  EXPECT_EQ(CodeOf(Rebuild({.shape = {2}, .strides = {-1}})), malformed);
  EXPECT_EQ(CodeOf(Rebuild({.shape = {-2}, .strides = {1}})), malformed);
  EXPECT_EQ(CodeOf(Rebuild({.shape = {2, 2}, .strides = {1}})), malformed);
  // Products and sums beyond 64 bits.
  EXPECT_EQ(CodeOf(Rebuild({.shape = {3, 1}, .strides = {kHuge, 1}})), malformed);
  EXPECT_EQ(CodeOf(Rebuild({.offset = kHuge, .shape = {2}, .strides = {1}})), malformed);
  EXPECT_EQ(CodeOf(Rebuild({.offset = 1, .shape = {2, 2}, .strides = {kHuge, kHuge}})), malformed);
}

TEST(TensorTest, NumbersAboveTheirLimitsAreRefused) {
  const std::vector<int64_t> ones(65, 1);
  EXPECT_EQ(CodeOf(Rebuild({.shape = ones, .strides = ones})), ErrorCode::kLimitExceeded);
  EXPECT_EQ(CodeOf(Rebuild({.shape = {kHuge, kHuge}, .strides = {0, 0}})),
            ErrorCode::kLimitExceeded);
}

TEST(TensorTest, OtherObjectsAreNoTensors) {
  const auto malformed = ErrorCode::kMalformedTensor;
  const Value other = MakeReduce("torch._utils", "_rebuild_qtensor", {});
  EXPECT_FALSE(IsTensor(other));
  EXPECT_FALSE(IsTensor(nullptr));
  EXPECT_FALSE(IsTensor(MakeInt(1)));
  EXPECT_EQ(CodeOf(other), malformed);
  EXPECT_EQ(CodeOf(nullptr), malformed);
  EXPECT_EQ(CodeOf(MakeReduce("torch._utils", "_rebuild_tensor_v2", {MakeInt(1)})), malformed);
  EXPECT_EQ(CodeOf(MakeReduce("torch._utils", "_rebuild_tensor_v2",
                              {MakeInt(1), MakeInt(0), Ints({}), Ints({}), MakeBool(false),
                               MakeOrderedDict({})})),
            malformed);
  EXPECT_EQ(CodeOf(MakeReduce("torch._utils", "_rebuild_tensor_v2",
                              {StorageValue(1), MakeInt(0), MakeString("x"), Ints({}),
                               MakeBool(false), MakeOrderedDict({})})),
            malformed);
  // Parameters around parameters without end.
  Value nested = Rebuild({});
  for (int i = 0; i < 10; ++i) {
    nested = MakeReduce("torch._utils", "_rebuild_parameter",
                        {nested, MakeBool(true), MakeOrderedDict({})});
  }
  EXPECT_EQ(CodeOf(nested), malformed);
}

// Numbers of each type, written by hand as bits.
TEST(TensorTest, ReadsNumbersOfEveryType) {
  struct Case {
    DType dtype;
    std::string bytes;
    std::vector<double> expected;
  };
  const auto text = [](const char* bytes, size_t count) { return std::string(bytes, count); };
  const Case cases[] = {
      {DType::kFloat32, text("\0\0\xc0\x3f\0\0\0\xc0", 8), {1.5, -2}},
      {DType::kFloat64, text("\0\0\0\0\0\0\xf8\x3f", 8), {1.5}},
      // 1, -2, the smallest and the largest subnormal, the largest finite.
      {DType::kFloat16,
       text("\x00\x3c\x00\xc0\x01\x00\xff\x03\xff\x7b", 10),
       {1, -2, std::ldexp(1, -24), std::ldexp(1023, -24), 65504}},
      {DType::kBFloat16, text("\x80\x3f\x00\xc0\xc0\x3f", 6), {1, -2, 1.5}},
      {DType::kInt64, text("\xff\xff\xff\xff\xff\xff\xff\xff", 8), {-1}},
      {DType::kInt32, text("\x00\x00\x00\x80", 4), {-2147483648.0}},
      {DType::kInt16, text("\x01\x02\xff\xff", 4), {513, -1}},
      {DType::kInt8, text("\x7f\x80", 2), {127, -128}},
      {DType::kUInt8, text("\x7f\x80", 2), {127, 128}},
      {DType::kBool, text("\x00\x01", 2), {0, 1}},
  };
  const TemporaryFolder folder;
  for (const Case& one : cases) {
    const auto path = folder / std::string(DTypeName(one.dtype));
    WriteBytes(path, one.bytes);
    TensorView view;
    view.storage = MakeStorage(one.dtype, static_cast<int64_t>(one.expected.size()));
    view.storage->file = MappedFile::Open(path).value();
    view.shape = {view.storage->numel};
    view.strides = {1};
    EXPECT_EQ(ReadNumbers(view, 10, "").value(), one.expected) << DTypeName(one.dtype);
  }
}

TEST(TensorTest, HalfInfinityAndNanKeepTheirKind) {
  const TemporaryFolder folder;
  WriteBytes(folder / "a", std::string("\x00\x7c\x00\xfc\x01\x7e", 6));
  TensorView view;
  view.storage = MakeStorage(DType::kFloat16, 3);
  view.storage->file = MappedFile::Open(folder / "a").value();
  view.shape = {3};
  view.strides = {1};
  const auto numbers = ReadNumbers(view, 3, "").value();
  EXPECT_EQ(numbers[0], std::numeric_limits<double>::infinity());
  EXPECT_EQ(numbers[1], -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(numbers[2]));
}

TEST(TensorTest, ReadsStridedViewsInRowMajorOrder) {
  const TemporaryFolder folder;
  WriteBytes(folder / "a", std::string("\x00\x01\x02\x03\x04\x05\x06", 7));
  TensorView view;
  view.storage = MakeStorage(DType::kUInt8, 7);
  view.storage->file = MappedFile::Open(folder / "a").value();
  view.offset = 1;
  view.shape = {2, 3};
  view.strides = {1, 2};
  EXPECT_EQ(ReadNumbers(view, 6, "").value(), (std::vector<double>{1, 3, 5, 2, 4, 6}));
  EXPECT_EQ(ReadNumbers(view, 5, "").error().code, ErrorCode::kLimitExceeded);
  view.shape = {2, 0};
  EXPECT_TRUE(ReadNumbers(view, 5, "").value().empty());
}

}  // namespace
}  // namespace checkpoint
