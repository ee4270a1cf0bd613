#include "reshape/shards.h"

#include <algorithm>
#include <string>

#include "checkpoint/limits.h"

namespace reshape {
namespace {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Parallel;
using checkpoint::Result;

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

int64_t RowNumel(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (size_t i = 1; i < shape.size(); ++i) numel *= shape[i];
  return numel;
}

}  // namespace

int64_t Box::numel() const {
  int64_t product = 1;
  for (const int64_t count : extent) product *= count;
  return product;
}

int32_t SplitDimension(Parallel parallel) {
  switch (parallel) {
    case Parallel::kReplicated:
      return -1;
    case Parallel::kColumn:
    case Parallel::kVocabulary:
      return 0;
    case Parallel::kRow:
      return 1;
  }
  return -1;
}

Result<std::vector<int64_t>> FullShape(Parallel parallel, const std::vector<int64_t>& shard_shape,
                                       int32_t tensor_parallel_size, const std::string& name) {
  const int32_t dimension = SplitDimension(parallel);
  std::vector<int64_t> full = shard_shape;
  if (dimension < 0 || tensor_parallel_size == 1) return full;
  if (static_cast<size_t>(dimension) >= shard_shape.size()) {
    return Error{ErrorCode::kInconsistent, "shape " + ShapeText(shard_shape),
                 "a dimension " + std::to_string(dimension) + ", on which its rule splits it", name,
                 "Correct the parallel rule of this parameter."};
  }
  if (full[static_cast<size_t>(dimension)] > checkpoint::kTensorNumelMax / tensor_parallel_size) {
    return Error{ErrorCode::kLimitExceeded,
                 "shape " + ShapeText(shard_shape) + " on each of " +
                     std::to_string(tensor_parallel_size) + " tensor ranks",
                 "a tensor within the largest that is read", name, ""};
  }
  full[static_cast<size_t>(dimension)] *= tensor_parallel_size;
  return full;
}

Result<std::vector<int64_t>> ShardShape(const ShardForm& form, int32_t tensor_parallel_size,
                                        const std::string& name) {
  const int32_t dimension = SplitDimension(form.parallel);
  std::vector<int64_t> shape = form.full_shape;
  if (dimension < 0 || tensor_parallel_size == 1) return shape;
  const auto index = static_cast<size_t>(dimension);
  const auto refuse = [&](int64_t rows) {
    return Error{ErrorCode::kUnreachableTarget,
                 std::to_string(rows) + " on dimension " + std::to_string(dimension) + " of " +
                     ShapeText(form.full_shape),
                 "a multiple of tensor parallel size " + std::to_string(tensor_parallel_size), name,
                 "Choose a tensor parallel size that divides it."};
  };
  if (index >= shape.size()) return refuse(0);
  if (shape[index] % tensor_parallel_size != 0) return refuse(shape[index]);
  if (dimension == 0) {
    for (const int64_t rows : form.sub_parameter_rows) {
      if (rows % tensor_parallel_size != 0) return refuse(rows);
    }
  }
  shape[index] /= tensor_parallel_size;
  return shape;
}

std::vector<Slab> SlabsOfShard(const ShardForm& form, TensorRank tensor_rank,
                               int32_t tensor_parallel_size) {
  const int32_t dimension = SplitDimension(form.parallel);
  const std::vector<int64_t> zeros(form.full_shape.size(), 0);
  if (dimension < 0 || tensor_parallel_size == 1) return {Slab{{zeros, form.full_shape}, zeros, 0}};
  const auto index = static_cast<size_t>(dimension);
  CHECK(index < form.full_shape.size(), << "dimension=" << dimension);
  std::vector<int64_t> parts = dimension == 0 ? form.sub_parameter_rows : std::vector<int64_t>{};
  if (parts.empty()) parts = {form.full_shape[index]};

  const int64_t rank = static_cast<int32_t>(tensor_rank);
  const int64_t row_numel = RowNumel(form.full_shape);
  std::vector<Slab> slabs;
  int64_t full_start = 0, local_start = 0;
  for (const int64_t rows : parts) {
    const int64_t share = rows / tensor_parallel_size;
    Slab slab{{zeros, form.full_shape}, zeros, 0};
    slab.box.start[index] = full_start + rank * share;
    slab.box.extent[index] = share;
    slab.local_start[index] = local_start;
    // Only dimension 0 has several parts, and there whole rows follow each other.
    slab.flat_begin = dimension == 0 ? local_start * row_numel : 0;
    slabs.push_back(std::move(slab));
    full_start += rows;
    local_start += share;
  }
  CHECK(full_start == form.full_shape[index],
        << "parts=" << full_start << " rows=" << form.full_shape[index]);
  return slabs;
}

void AppendPieces(const std::vector<Slab>& slabs, const StoredInterval& interval,
                  std::vector<Piece>& pieces) {
  for (const Slab& slab : slabs) {
    const int64_t slab_end = slab.flat_begin + slab.box.numel();
    const int64_t begin = std::max(interval.begin, slab.flat_begin);
    const int64_t end = std::min(interval.end, slab_end);
    if (begin >= end) continue;
    pieces.push_back({.box = slab.box,
                      .begin = begin - slab.flat_begin,
                      .end = end - slab.flat_begin,
                      .storage = interval.storage,
                      .offset = interval.offset + (begin - interval.begin),
                      .strides = {},
                      .holder = interval.holder});
  }
}

void AppendStridedPieces(const std::vector<Slab>& slabs, const StridedShard& shard,
                         std::vector<Piece>& pieces) {
  for (const Slab& slab : slabs) {
    const int64_t numel = slab.box.numel();
    if (numel == 0) continue;
    int64_t offset = shard.offset;
    for (size_t i = 0; i < slab.local_start.size(); ++i)
      offset += slab.local_start[i] * shard.strides[i];
    pieces.push_back({.box = slab.box,
                      .begin = 0,
                      .end = numel,
                      .storage = shard.storage,
                      .offset = offset,
                      .strides = shard.strides,
                      .holder = shard.holder});
  }
}

}  // namespace reshape
