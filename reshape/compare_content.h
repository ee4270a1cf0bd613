// Whether stored masters are the weights: the only place of the source side that reads tensor
// bytes. A master rounded to the weight's type must equal the weight bit for bit (any NaN equals
// any NaN). Tested by compare_content_test.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "checkpoint/tensor.h"
#include "reshape/source.h"

namespace reshape {

// The elements of a tensor in row-major order: a view of the mapped file where it is contiguous,
// else a copy.
class RowMajorBytes {
 public:
  explicit RowMajorBytes(const checkpoint::TensorView& view);
  const std::byte* data() const { return data_; }
  checkpoint::DType dtype() const { return dtype_; }
  int64_t numel() const { return numel_; }
  // Null for a copy.
  const checkpoint::MappedFile* file() const { return file_.get(); }

 private:
  std::shared_ptr<const checkpoint::MappedFile> file_;  // keeps data_ mapped
  std::vector<std::byte> copy_;
  const std::byte* data_ = nullptr;
  checkpoint::DType dtype_;
  int64_t numel_;
};

// A flat group's masters, in one or several files.
class FlatMasters {
 public:
  explicit FlatMasters(const LocalGroup& group);
  int64_t numel() const { return numel_; }
  checkpoint::DType dtype() const { return dtype_; }
  // How many elements from `begin` on equal the weight's first ones: weight.numel() where all do.
  int64_t MatchingPrefix(int64_t begin, const RowMajorBytes& weight) const;
  // Bits of up to `count` masters from `begin` on, rounded to `dtype`, appended to `bits`.
  void AppendRounded(int64_t begin, int64_t count, checkpoint::DType dtype,
                     std::vector<uint32_t>& bits) const;

 private:
  const std::vector<Segment>* segments_ = nullptr;
  int64_t numel_ = 0;
  checkpoint::DType dtype_ = checkpoint::DType::kFloat32;
};

// Bits of the first `count` elements of a weight.
std::vector<uint32_t> LeadingBits(const RowMajorBytes& weight, int64_t count);
// Elements from the start on in which a master equals a weight.
int64_t MatchingElements(const RowMajorBytes& master, const RowMajorBytes& weight);
bool CanCompare(checkpoint::DType master, checkpoint::DType weight);

}  // namespace reshape
