// A tensor inside an object tree: a view (offset, shape, strides) of a storage. Decodes the forms
// that torch.save writes
// (_rebuild_tensor_v2, Parameter, _rebuild_from_type_v2) and makes the first. Every view is checked
// against its storage before it is returned. Tested by tensor_test.cc. Format:
// docs/format/container.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/status.h"
#include "checkpoint/value.h"

namespace checkpoint {

struct TensorView {
  StoragePtr storage;
  int64_t offset = 0;            // in elements
  std::vector<int64_t> shape;    // {} is a 0-d tensor
  std::vector<int64_t> strides;  // in elements
  bool requires_grad = false;

  int64_t numel() const;
  bool IsContiguous() const;  // row-major without gaps; dimensions of one element are ignored
};

std::vector<int64_t> ContiguousStrides(const std::vector<int64_t>& shape);
// Product with overflow and limit check. Errors: kLimitExceeded, kMalformedTensor (negative).
Result<int64_t> NumelOf(const std::vector<int64_t>& shape, const std::string& where);

bool IsTensor(const Value& value);
// Errors: kMalformedTensor when the view leaves the storage, strides are negative, or `value` is no
// tensor.
Result<TensorView> DecodeTensor(const Value& value, const std::string& where);
// _rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, OrderedDict()).
Value MakeTensor(const TensorView& view);
StoragePtr MakeStorage(DType dtype, int64_t numel);
// The bytes of a storage that was read, inside the mapped file. REQUIRES: storage.file.
std::span<const std::byte> StorageBytes(const Storage& storage);
// The elements of a view in row-major order, copied. For small tensors (step counters, RNG states,
// messages).
Result<std::vector<double>> ReadNumbers(const TensorView& view, int64_t numel_max,
                                        const std::string& where);

}  // namespace checkpoint
