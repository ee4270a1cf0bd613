#include "checkpoint/dtype.h"

#include <gtest/gtest.h>

namespace checkpoint {
namespace {

constexpr DType kAll[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64,
                          DType::kInt64,   DType::kInt32,   DType::kInt16,    DType::kInt8,
                          DType::kUInt8,   DType::kBool};

TEST(DTypeTest, NamesAndStorageClassesReadBack) {
  for (const DType dtype : kAll) {
    EXPECT_EQ(DTypeFromName(DTypeName(dtype)), dtype);
    EXPECT_EQ(DTypeFromStorageClass(StorageClassName(dtype)), dtype);
  }
  EXPECT_EQ(DTypeFromName("float8_e4m3fn"), std::nullopt);
  EXPECT_EQ(DTypeFromStorageClass("ComplexFloatStorage"), std::nullopt);
}

TEST(DTypeTest, TorchNamesHaveTheirBytes) {
  EXPECT_EQ(ElementBytes(*DTypeFromStorageClass("BFloat16Storage")), 2);
  EXPECT_EQ(ElementBytes(*DTypeFromStorageClass("LongStorage")), 8);
  EXPECT_EQ(ElementBytes(*DTypeFromStorageClass("BoolStorage")), 1);
  EXPECT_EQ(ElementBytes(*DTypeFromName("float32")), 4);
  EXPECT_EQ(ElementBytes(*DTypeFromName("int16")), 2);
}

TEST(DTypeTest, OnlyTheTwo16BitFloatsAre16Bit) {
  for (const DType dtype : kAll) {
    EXPECT_EQ(Is16Bit(dtype), IsFloating(dtype) && ElementBytes(dtype) == 2);
  }
  EXPECT_FALSE(IsFloating(DType::kInt16));
  EXPECT_TRUE(IsFloating(DType::kFloat64));
}

}  // namespace
}  // namespace checkpoint
