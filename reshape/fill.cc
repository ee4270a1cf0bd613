#include "reshape/fill.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/file.h"
#include "checkpoint/tensor.h"
#include "reshape/convert.h"

namespace reshape {
namespace {

using checkpoint::ElementBytes;

// Ranges below this stay mapped: giving them back costs more than they hold.
constexpr int64_t kReleaseBytesMin = 256 << 10;

int64_t CeilDivide(int64_t dividend, int64_t divisor) {
  return dividend >= 0 ? (dividend + divisor - 1) / divisor : -(-dividend / divisor);
}

int64_t TargetReach(const CommonBlock& block) {
  int64_t reach = block.target_offset;
  for (const CopyDimension& dimension : block.dimensions)
    reach += (dimension.extent - 1) * dimension.target_stride;
  return reach;
}

// The indices of the outermost dimension that a window may meet.
struct OuterRange {
  int64_t begin = 0, end = 1;
};
OuterRange ClipOutermost(const CommonBlock& block, const Window& window) {
  if (block.dimensions.empty()) return {};
  const CopyDimension& outer = block.dimensions.front();
  const int64_t inner_reach = TargetReach(block) - (outer.extent - 1) * outer.target_stride;
  const int64_t begin = CeilDivide(window.begin - inner_reach, outer.target_stride);
  const int64_t end = CeilDivide(window.end - block.target_offset, outer.target_stride);
  return {std::max<int64_t>(0, begin), std::min(outer.extent, end)};
}

class CopyRunner {
 public:
  CopyRunner(const CopyRange& copy, const Window& window, std::span<std::byte> buffer,
             checkpoint::DType target_dtype)
      : copy_(copy),
        window_(window),
        buffer_(buffer),
        source_(checkpoint::StorageBytes(*copy.source)) {
    conversion_.source_dtype = copy.source->dtype;
    conversion_.target_dtype = target_dtype;
    conversion_.factor = copy.factor;
  }

  int64_t Run() {
    const auto& dimensions = copy_.block.dimensions;
    const OuterRange range = ClipOutermost(copy_.block, window_);
    if (range.begin >= range.end) return 0;
    if (dimensions.size() < 2)
      return RunInnermost(copy_.block.source_offset, copy_.block.target_offset);
    int64_t overflowed = 0,
            rows = 1;  // rows: of the dimensions between the outermost and the innermost
    for (size_t i = 1; i + 1 < dimensions.size(); ++i) rows *= dimensions[i].extent;
    for (int64_t outer = range.begin; outer < range.end; ++outer) {
      for (int64_t row = 0; row < rows; ++row) {
        int64_t source = copy_.block.source_offset + outer * dimensions[0].source_stride;
        int64_t target = copy_.block.target_offset + outer * dimensions[0].target_stride;
        int64_t rest = row;
        for (size_t i = dimensions.size() - 1; i-- > 1;) {
          source += rest % dimensions[i].extent * dimensions[i].source_stride;
          target += rest % dimensions[i].extent * dimensions[i].target_stride;
          rest /= dimensions[i].extent;
        }
        overflowed += RunInnermost(source, target);
      }
    }
    return overflowed;
  }

 private:
  int64_t RunInnermost(int64_t source, int64_t target) {
    CopyDimension inner{1, 1, 1};
    if (!copy_.block.dimensions.empty()) inner = copy_.block.dimensions.back();
    // Rows may be a few elements long: the stride of one, which they nearly always have, is spared
    // the divisions.
    const auto steps = [&inner](int64_t distance) {
      return inner.target_stride == 1 ? distance : CeilDivide(distance, inner.target_stride);
    };
    const int64_t begin = std::max<int64_t>(0, steps(window_.begin - target));
    const int64_t end = std::min(inner.extent, steps(window_.end - target));
    if (begin >= end) return 0;
    conversion_.source_stride = inner.source_stride;
    conversion_.target_stride = inner.target_stride;
    const int64_t from =
        (source + begin * inner.source_stride) * ElementBytes(conversion_.source_dtype);
    const int64_t to = (target + begin * inner.target_stride - window_.begin) *
                       ElementBytes(conversion_.target_dtype);
    return Convert(conversion_, source_.data() + from, buffer_.data() + to, end - begin);
  }

  const CopyRange& copy_;
  const Window window_;
  std::span<std::byte> buffer_;
  std::span<const std::byte> source_;
  Conversion conversion_;
};

// Copies that may meet the window: they are sorted by their first element; the last one has its
// first element before the window's end.
std::span<const CopyRange> Candidates(const StoragePlan& plan, const Window& window) {
  const auto end = std::partition_point(
      plan.copies.begin(), plan.copies.end(),
      [&](const CopyRange& copy) { return copy.block.target_offset < window.end; });
  return {plan.copies.begin(), end};
}

bool Meets(const CopyRange& copy, const Window& window) {
  return copy.block.target_offset < window.end && TargetReach(copy.block) >= window.begin;
}

}  // namespace

WindowCopies::WindowCopies(const StoragePlan& plan, const Window& window)
    : plan_(plan), window_(window) {
  for (const CopyRange& copy : Candidates(plan, window)) {
    if (Meets(copy, window)) copies_.push_back(&copy);
  }
}

FillOutcome WindowCopies::Fill(const Window& part, std::span<std::byte> buffer) const {
  FillOutcome outcome;
  if (!plan_.literal.empty()) {
    const int64_t element_bytes = ElementBytes(plan_.target->dtype);
    std::memcpy(buffer.data(), plan_.literal.data() + part.begin * element_bytes, buffer.size());
    return outcome;
  }
  if (plan_.zero_numel > 0) std::memset(buffer.data(), 0, buffer.size());
  for (const CopyRange* copy : copies_) {
    if (!Meets(*copy, part)) continue;
    const int64_t overflowed = CopyRunner(*copy, part, buffer, plan_.target->dtype).Run();
    if (overflowed > 0 && outcome.overflowed == 0) outcome.tensor = copy->tensor;
    outcome.overflowed += overflowed;
  }
  return outcome;
}

std::span<const std::byte> WindowCopies::Direct(const Window& part) const {
  for (const CopyRange* copy : copies_) {
    if (!Meets(*copy, part)) continue;
    const auto& dimensions = copy->block.dimensions;
    const bool one_run = dimensions.size() == 1 && dimensions[0].source_stride == 1 &&
                         dimensions[0].target_stride == 1;
    const bool covers =
        copy->block.target_offset <= part.begin && TargetReach(copy->block) >= part.end - 1;
    if (!one_run || !covers || copy->factor != 1 || copy->source->dtype != plan_.target->dtype)
      return {};
    const int64_t element_bytes = ElementBytes(plan_.target->dtype);
    const int64_t first = copy->block.source_offset + (part.begin - copy->block.target_offset);
    return checkpoint::StorageBytes(*copy->source)
        .subspan(static_cast<size_t>(first * element_bytes),
                 static_cast<size_t>((part.end - part.begin) * element_bytes));
  }
  return {};
}

void WindowCopies::ReleaseSources() const {
  for (const CopyRange* found : copies_) {
    const CopyRange& copy = *found;
    if (copy.block.dimensions.empty()) continue;
    const OuterRange range = ClipOutermost(copy.block, window_);
    if (range.begin >= range.end) continue;
    const CopyDimension& outer = copy.block.dimensions.front();
    int64_t inner_reach = 0;
    for (size_t i = 1; i < copy.block.dimensions.size(); ++i) {
      inner_reach += (copy.block.dimensions[i].extent - 1) * copy.block.dimensions[i].source_stride;
    }
    const int64_t element_bytes = ElementBytes(copy.source->dtype);
    const int64_t first = copy.block.source_offset + range.begin * outer.source_stride;
    const int64_t last =
        copy.block.source_offset + (range.end - 1) * outer.source_stride + inner_reach;
    const int64_t bytes = (last - first + 1) * element_bytes;
    if (bytes >= kReleaseBytesMin)
      copy.source->file->Release(copy.source->file_offset + first * element_bytes, bytes);
  }
}

}  // namespace reshape
