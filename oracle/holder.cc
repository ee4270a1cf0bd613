#include "oracle/holder.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/file.h"

namespace oracle {

using checkpoint::DType;

int64_t Holder::numel() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

DType Holder::dtype() const { return whole ? whole->view.storage->dtype : flat->dtype; }

at::ScalarType ScalarTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat64:
      return at::kDouble;
    case DType::kInt64:
      return at::kLong;
    case DType::kInt32:
      return at::kInt;
    case DType::kInt16:
      return at::kShort;
    case DType::kInt8:
      return at::kChar;
    case DType::kUInt8:
      return at::kByte;
    case DType::kBool:
      return at::kBool;
  }
  return at::kByte;
}

namespace {

// Integer type of the same width, for bit comparisons.
at::ScalarType BitsType(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

// Elements from the first to the last that the view touches.
int64_t ExtentOf(const checkpoint::TensorView& view) {
  int64_t last = 0;
  for (size_t i = 0; i < view.shape.size(); ++i) last += (view.shape[i] - 1) * view.strides[i];
  return last + 1;
}

}  // namespace

at::Tensor TensorOf(const checkpoint::TensorView& view) {
  const at::ScalarType type = ScalarTypeOf(view.storage->dtype);
  const int64_t numel = view.numel();
  if (numel == 0) return at::empty(view.shape, at::TensorOptions().dtype(type));
  const int64_t element_bytes = checkpoint::ElementBytes(view.storage->dtype);
  const std::byte* begin =
      checkpoint::StorageBytes(*view.storage).data() + view.offset * element_bytes;
  if (reinterpret_cast<uintptr_t>(begin) % static_cast<uintptr_t>(element_bytes) != 0) {
    // Legacy files have no alignment.
    const int64_t extent = ExtentOf(view);
    at::Tensor copy = at::empty({extent}, at::TensorOptions().dtype(type));
    std::memcpy(copy.data_ptr(), begin, static_cast<size_t>(extent * element_bytes));
    return copy.as_strided(view.shape, view.strides);
  }
  std::shared_ptr<const checkpoint::MappedFile> file = view.storage->file;
  void* data = const_cast<std::byte*>(
      begin);  // mapped read-only: nobody writes into what the oracle returns
  return at::from_blob(
      data, view.shape, view.strides, [file](void*) {}, at::TensorOptions().dtype(type));
}

namespace {

void AppendAbsent(int64_t numel, DType dtype, std::vector<Segment>& segments) {
  if (numel > 0)
    segments.push_back(
        {at::zeros({numel}, at::TensorOptions().dtype(ScalarTypeOf(dtype))), false, {}});
}

}  // namespace

std::vector<Segment> SegmentsOf(const Holder& holder) {
  std::vector<Segment> segments;
  if (holder.whole) {
    segments.push_back({TensorOf(holder.whole->view).reshape({-1}), true, holder.whole->place});
    return segments;
  }
  const FlatState& flat = *holder.flat;
  const int64_t begin = holder.start, end = holder.start + holder.numel();
  int64_t reached = begin;
  for (size_t rank = 0; rank < flat.partitions.size() && reached < end; ++rank) {
    // Partition `rank` holds elements [rank * partition_numel, (rank + 1) * partition_numel) of the
    // flat group.
    const int64_t first = static_cast<int64_t>(rank) * flat.partition_numel;
    if (first + flat.partition_numel <= reached) continue;
    const int64_t overlap = std::min(end, first + flat.partition_numel) - reached;
    const auto& partition = flat.partitions[rank];
    const int64_t stored = partition ? partition->view.numel() : 0;
    const int64_t held = std::clamp<int64_t>(stored - (reached - first), 0, overlap);
    if (held > 0) {
      const at::Tensor whole = TensorOf(partition->view).reshape({-1});
      segments.push_back({whole.narrow(0, reached - first, held), true, partition->place});
    }
    AppendAbsent(overlap - held, flat.dtype, segments);
    reached += overlap;
  }
  AppendAbsent(end - reached, flat.dtype, segments);
  return segments;
}

int64_t PresentNumel(const std::vector<Segment>& segments) {
  int64_t numel = 0;
  for (const Segment& segment : segments) numel += segment.present ? segment.flat.numel() : 0;
  return numel;
}

at::Tensor ShardOf(const Holder& holder, const std::vector<Segment>& segments) {
  if (segments.size() == 1) return segments[0].flat.view(holder.shape);
  if (segments.empty()) {
    return at::zeros(holder.shape, at::TensorOptions().dtype(ScalarTypeOf(holder.dtype())));
  }
  std::vector<at::Tensor> parts;
  for (const Segment& segment : segments) parts.push_back(segment.flat);
  return at::cat(parts).view(holder.shape);
}

at::Tensor SliceOf(const Holder& holder, int64_t begin, int64_t numel) {
  if (holder.flat) {
    Holder slice = holder;
    slice.start = holder.start + begin;
    slice.shape = {numel};
    return ShardOf(slice, SegmentsOf(slice));
  }
  return TensorOf(holder.whole->view).reshape({-1}).narrow(0, begin, numel);
}

namespace {

// Integers in the order of the floating-point values, so that their difference counts representable
// values in between.
at::Tensor OrderedBits(const at::Tensor& values) {
  if (!values.is_floating_point() || values.element_size() == 8) return values.to(at::kLong);
  const at::Tensor bits = values.view(BitsType(values)).to(at::kLong);
  const int64_t lowest = values.element_size() == 2 ? -(1LL << 15) : -(1LL << 31);
  return at::where(bits.lt(0), bits.neg().add(lowest), bits);
}

// Adds what differs between two flat tensors of equal length that start at `position` of the
// copies.
void AddDifferences(const Segment& first, const Segment& second, int64_t position,
                    CopyComparison& total) {
  const at::Tensor a = first.flat, b = second.flat;
  total.compared += a.numel();
  // Equal bits are equal; libtorch says where the others differ.
  const bool plain = a.is_contiguous() && b.is_contiguous();
  if (plain && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) return;
  const at::Tensor a_bits = a.view(BitsType(a)), b_bits = b.view(BitsType(b));
  if (at::equal(a_bits, b_bits)) return;
  const at::Tensor where = a_bits.ne(b_bits).nonzero().reshape({-1});
  const at::Tensor a_differing = a.index_select(0, where), b_differing = b.index_select(0, where);
  const int64_t ulp =
      OrderedBits(a_differing).sub(OrderedBits(b_differing)).abs().max().item<int64_t>();
  if (!total.disagreement) {
    Disagreement found;
    found.first = first.place;
    found.second = second.place;
    found.first_index = position + where[0].item<int64_t>();
    found.first_value = a_differing[0].to(at::kDouble).item<double>();
    found.second_value = b_differing[0].to(at::kDouble).item<double>();
    total.disagreement = found;
  }
  total.disagreement->differing += where.numel();
  total.disagreement->max_ulp = std::max(total.disagreement->max_ulp, ulp);
}

}  // namespace

CopyComparison CompareCopies(const std::vector<Segment>& first,
                             const std::vector<Segment>& second) {
  CopyComparison total;
  size_t i = 0, j = 0;
  int64_t first_begin = 0, second_begin = 0;
  while (i < first.size() && j < second.size()) {
    const int64_t first_end = first_begin + first[i].flat.numel();
    const int64_t second_end = second_begin + second[j].flat.numel();
    const int64_t begin = std::max(first_begin, second_begin),
                  end = std::min(first_end, second_end);
    if (begin < end && first[i].present && second[j].present) {
      AddDifferences(
          {first[i].flat.narrow(0, begin - first_begin, end - begin), true, first[i].place},
          {second[j].flat.narrow(0, begin - second_begin, end - begin), true, second[j].place},
          begin, total);
    }
    if (first_end <= second_end) {
      first_begin = first_end;
      ++i;
    }
    if (second_end <= first_end) {
      second_begin = second_end;
      ++j;
    }
  }
  if (total.disagreement) total.disagreement->compared = total.compared;
  return total;
}

bool MasterMatchesWeight(const Holder& master, const Holder& weight, int64_t window_numel) {
  const int64_t numel = weight.numel();
  const int64_t window = std::min(numel, window_numel);
  for (const int64_t begin : {int64_t{0}, (numel - window) / 2, numel - window}) {
    const at::Tensor stored = SliceOf(weight, begin, window);
    const at::Tensor rounded = SliceOf(master, begin, window).to(stored.scalar_type());
    const at::Tensor stored_bits = stored.view(BitsType(stored)),
                     rounded_bits = rounded.view(BitsType(rounded));
    if (at::equal(stored_bits, rounded_bits)) {
      if (window == numel) return true;
      continue;
    }
    const at::Tensor both_nan = stored.isnan().logical_and(rounded.isnan());
    if (!stored_bits.eq(rounded_bits).logical_or(both_nan).all().item<bool>()) return false;
  }
  return true;
}

}  // namespace oracle
