#include "reshape/compare_content.h"

#include <algorithm>
#include <cstring>

#include "reshape/rounding.h"

namespace reshape {
namespace {

using checkpoint::DType;
using checkpoint::TensorView;

template <typename T>
T Load(const std::byte* bytes, int64_t index) {
  T value;  // files in the legacy container are not aligned
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Comparing is the dearest thing the source side does: it reads every master and every weight once.
// The compiler vectorises the loops below; where the processor has wider registers than the oldest
// one, they are compiled for those as well.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define RESHAPE_WIDE __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define RESHAPE_WIDE
#endif

constexpr int64_t kBlock = 512;

RESHAPE_WIDE uint32_t BlockDifferenceFloat16(const std::byte* master, const std::byte* weight) {
  uint32_t difference = 0;
  for (int64_t i = 0; i < kBlock; ++i) {
    difference |=
        static_cast<uint32_t>(RoundToFloat16(Load<float>(master, i)) ^ Load<uint16_t>(weight, i));
  }
  return difference;
}

RESHAPE_WIDE uint32_t BlockDifferenceBFloat16(const std::byte* master, const std::byte* weight) {
  uint32_t difference = 0;
  for (int64_t i = 0; i < kBlock; ++i) {
    difference |=
        static_cast<uint32_t>(RoundToBFloat16(Load<float>(master, i)) ^ Load<uint16_t>(weight, i));
  }
  return difference;
}

bool IsNan(uint16_t bits, bool half) { return (bits & 0x7FFFU) > (half ? 0x7C00U : 0x7F80U); }

int64_t MatchRounded(const std::byte* master, DType weight_type, const std::byte* weight,
                     int64_t numel) {
  const bool half = weight_type == DType::kFloat16;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t end = std::min(numel, begin + kBlock);
    const std::byte *masters = master + begin * 4, *weights = weight + begin * 2;
    if (end - begin == kBlock) {
      const uint32_t difference = half ? BlockDifferenceFloat16(masters, weights)
                                       : BlockDifferenceBFloat16(masters, weights);
      if (difference == 0) continue;
    }
    for (int64_t i = 0; i < end - begin; ++i) {
      const float value = Load<float>(masters, i);
      const uint16_t rounded = half ? RoundToFloat16(value) : RoundToBFloat16(value);
      const auto stored = Load<uint16_t>(weights, i);
      if (rounded != stored && !(IsNan(rounded, half) && IsNan(stored, half))) return begin + i;
    }
  }
  return numel;
}

int64_t MatchSame(const std::byte* master, const std::byte* weight, int64_t numel,
                  int64_t element_bytes) {
  const auto bytes = static_cast<size_t>(numel * element_bytes);
  if (bytes == 0 || std::memcmp(master, weight, bytes) == 0) return numel;
  const auto [first, second] = std::mismatch(master, master + bytes, weight);
  return (first - master) / element_bytes;
}

int64_t Match(DType master_type, const std::byte* master, DType weight_type,
              const std::byte* weight, int64_t numel) {
  if (master_type == weight_type)
    return MatchSame(master, weight, numel, checkpoint::ElementBytes(weight_type));
  return MatchRounded(master, weight_type, weight, numel);
}

uint32_t RoundedBits(DType master_type, const std::byte* master, DType weight_type, int64_t index) {
  if (master_type == weight_type) {
    return checkpoint::ElementBytes(master_type) == 4 ? Load<uint32_t>(master, index)
                                                      : Load<uint16_t>(master, index);
  }
  const float value = Load<float>(master, index);
  return weight_type == DType::kFloat16 ? RoundToFloat16(value) : RoundToBFloat16(value);
}

const std::byte* ElementAt(const checkpoint::Storage& storage, int64_t index) {
  return checkpoint::StorageBytes(storage).data() + index * checkpoint::ElementBytes(storage.dtype);
}

// One of two sides that are compared; `file` is null for a copy in memory.
struct Side {
  DType dtype;
  const std::byte* data;
  const checkpoint::MappedFile* file;

  Side Skip(int64_t numel) const {
    return {dtype, data + numel * checkpoint::ElementBytes(dtype), file};
  }
  // What was compared is not needed again soon: resident memory stays bounded however large the
  // checkpoint is.
  void Release(int64_t numel) const {
    constexpr int64_t kWorthwhileBytes = 64 << 10;
    const int64_t bytes = numel * checkpoint::ElementBytes(dtype);
    if (file != nullptr && bytes >= kWorthwhileBytes)
      file->Release(data - file->bytes().data(), bytes);
  }
};

int64_t MatchInWindows(Side master, Side weight, int64_t numel) {
  constexpr int64_t kWindow = 2 << 20;
  int64_t done = 0;
  while (done < numel) {
    const int64_t count = std::min(kWindow, numel - done);
    const int64_t matching = Match(master.dtype, master.data, weight.dtype, weight.data, count);
    master.Release(count);
    weight.Release(count);
    done += matching;
    if (matching < count) break;
    master = master.Skip(count);
    weight = weight.Skip(count);
  }
  return done;
}

}  // namespace

bool CanCompare(DType master, DType weight) {
  if (!checkpoint::IsFloating(master) || checkpoint::ElementBytes(weight) > 4) return false;
  return master == weight || (master == DType::kFloat32 && checkpoint::Is16Bit(weight));
}

RowMajorBytes::RowMajorBytes(const TensorView& view)
    : file_(view.storage->file), dtype_(view.storage->dtype), numel_(view.numel()) {
  const int64_t width = checkpoint::ElementBytes(dtype_);
  if (view.IsContiguous()) {
    data_ = ElementAt(*view.storage, view.offset);
    return;
  }
  file_ = nullptr;
  copy_.resize(static_cast<size_t>(numel_ * width));
  std::vector<int64_t> index(view.shape.size(), 0);
  for (int64_t i = 0; i < numel_; ++i) {
    int64_t at = view.offset;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * view.strides[d];
    std::memcpy(copy_.data() + i * width, ElementAt(*view.storage, at), static_cast<size_t>(width));
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < view.shape[d]) break;
      index[d] = 0;
    }
  }
  data_ = copy_.data();
}

FlatMasters::FlatMasters(const LocalGroup& group) {
  const auto position = group.flats.find(kMasterState);
  if (position == group.flats.end() || position->second.empty()) return;
  segments_ = &position->second;
  numel_ = segments_->back().end;
  dtype_ = group.flat_dtypes.at(kMasterState);
}

int64_t FlatMasters::MatchingPrefix(int64_t begin, const RowMajorBytes& weight) const {
  if (segments_ == nullptr || !CanCompare(dtype_, weight.dtype())) return 0;
  const int64_t width = checkpoint::ElementBytes(weight.dtype());
  int64_t done = 0;
  auto segment = std::upper_bound(segments_->begin(), segments_->end(), begin,
                                  [](int64_t at, const Segment& other) { return at < other.end; });
  for (; segment != segments_->end() && done < weight.numel(); ++segment) {
    const int64_t at = begin + done;
    if (segment->begin > at) return done;
    const int64_t count = std::min(segment->end - at, weight.numel() - done);
    const Side master{dtype_, ElementAt(*segment->storage, segment->offset + (at - segment->begin)),
                      segment->storage->file.get()};
    const Side rest{weight.dtype(), weight.data() + done * width, weight.file()};
    const int64_t matching = MatchInWindows(master, rest, count);
    done += matching;
    if (matching < count) return done;
  }
  return done;
}

void FlatMasters::AppendRounded(int64_t begin, int64_t count, DType dtype,
                                std::vector<uint32_t>& bits) const {
  if (segments_ == nullptr || !CanCompare(dtype_, dtype)) return;
  auto segment = std::upper_bound(segments_->begin(), segments_->end(), begin,
                                  [](int64_t at, const Segment& other) { return at < other.end; });
  for (int64_t at = begin; segment != segments_->end() && at < begin + count; ++segment) {
    if (segment->begin > at) return;
    const int64_t end = std::min(segment->end, begin + count);
    const std::byte* master = ElementAt(*segment->storage, segment->offset);
    for (; at < end; ++at) bits.push_back(RoundedBits(dtype_, master, dtype, at - segment->begin));
  }
}

std::vector<uint32_t> LeadingBits(const RowMajorBytes& weight, int64_t count) {
  std::vector<uint32_t> bits;
  for (int64_t i = 0; i < std::min(count, weight.numel()); ++i) {
    bits.push_back(RoundedBits(weight.dtype(), weight.data(), weight.dtype(), i));
  }
  return bits;
}

int64_t MatchingElements(const RowMajorBytes& master, const RowMajorBytes& weight) {
  if (!CanCompare(master.dtype(), weight.dtype())) return 0;
  return MatchInWindows({master.dtype(), master.data(), master.file()},
                        {weight.dtype(), weight.data(), weight.file()},
                        std::min(master.numel(), weight.numel()));
}

}  // namespace reshape
