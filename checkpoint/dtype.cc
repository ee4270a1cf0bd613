#include "checkpoint/dtype.h"

#include "checkpoint/status.h"

namespace checkpoint {
namespace {

struct Names {
  DType dtype;
  int64_t element_bytes;
  std::string_view name, storage_class;
  bool floating;
};

// In the order of the enum: an entry's index is its DType.
constexpr Names kNames[] = {
    {DType::kFloat32, 4, "float32", "FloatStorage", true},
    {DType::kFloat16, 2, "float16", "HalfStorage", true},
    {DType::kBFloat16, 2, "bfloat16", "BFloat16Storage", true},
    {DType::kFloat64, 8, "float64", "DoubleStorage", true},
    {DType::kInt64, 8, "int64", "LongStorage", false},
    {DType::kInt32, 4, "int32", "IntStorage", false},
    {DType::kInt16, 2, "int16", "ShortStorage", false},
    {DType::kInt8, 1, "int8", "CharStorage", false},
    {DType::kUInt8, 1, "uint8", "ByteStorage", false},
    {DType::kBool, 1, "bool", "BoolStorage", false},
};

const Names& NamesOf(DType dtype) {
  const size_t index = static_cast<size_t>(dtype);
  CHECK(index < std::size(kNames), << "dtype=" << index);
  return kNames[index];
}

}  // namespace

int64_t ElementBytes(DType dtype) { return NamesOf(dtype).element_bytes; }
std::string_view DTypeName(DType dtype) { return NamesOf(dtype).name; }
std::string_view StorageClassName(DType dtype) { return NamesOf(dtype).storage_class; }
bool IsFloating(DType dtype) { return NamesOf(dtype).floating; }

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const Names& names : kNames) {
    if (names.name == name) return names.dtype;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromStorageClass(std::string_view class_name) {
  for (const Names& names : kNames) {
    if (names.storage_class == class_name) return names.dtype;
  }
  return std::nullopt;
}

}  // namespace checkpoint
