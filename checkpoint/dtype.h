// Element types that torch storages have. Bytes and names only; no arithmetic on values.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace checkpoint {

enum class DType {
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat64,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kBool
};

// Bytes of one element: 4 for kFloat32.
int64_t ElementBytes(DType dtype);
// Name as torch prints it without the module: "float32", "bfloat16", "bool".
std::string_view DTypeName(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);
// "FloatStorage", "HalfStorage", ...: the class name inside persistent ids.
std::string_view StorageClassName(DType dtype);
std::optional<DType> DTypeFromStorageClass(std::string_view class_name);
bool IsFloating(DType dtype);
inline bool Is16Bit(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

}  // namespace checkpoint
