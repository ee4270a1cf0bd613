// Copies of one shard of one state: where they lie, and their elements as libtorch tensors. A copy
// is either one whole tensor of a file or the overlap of a parameter with the partitions of a flat
// group. Nothing here knows names, rules or stages. Tested by holder_test.cc. Format:
// docs/format/optimizer.md, flat groups.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/dtype.h"
#include "checkpoint/tensor.h"
#include "oracle/oracle.h"

namespace oracle {

// A tensor of a file with its place.
struct Stored {
  checkpoint::TensorView view;
  Place place;
};

// One state of one flat group on one model-parallel rank: equal partitions in data rank order. A
// partition may be absent (its file is missing) or shorter than `partition_numel` (alignment
// padding cut off).
struct FlatState {
  int64_t partition_numel = 0;
  std::vector<std::optional<Stored>> partitions;
  checkpoint::DType dtype = checkpoint::DType::kFloat32;
};

// One copy of one tensor rank's shard of one state.
struct Holder {
  Rank rank;
  std::vector<int64_t> shape;             // of the shard
  std::optional<Stored> whole;            // a tensor of its own, or ...
  std::shared_ptr<const FlatState> flat;  // ... elements from `start` on of a flat group
  int64_t start = 0;
  bool stale = false;      // the tied copy that is never trained
  bool duplicate = false;  // the same rank holds it twice: no replica, a fault
  bool copy =
      false;  // a second copy by design: the dictionary in the model file, a cloned tied weight
  bool full = false;  // the whole logical tensor, not a shard (universal folder)

  int64_t numel() const;
  checkpoint::DType dtype() const;
};

// Consecutive elements of a copy that lie in one record; zeros where their file is absent.
struct Segment {
  at::Tensor flat;
  bool present = true;
  Place place;
};

at::ScalarType ScalarTypeOf(checkpoint::DType dtype);
// A tensor over the mapped bytes, which it keeps alive; copied only where the bytes are not aligned
// for its type. Read-only.
at::Tensor TensorOf(const checkpoint::TensorView& view);
// The copy in storage order. Their concatenation has numel() elements.
std::vector<Segment> SegmentsOf(const Holder& holder);
int64_t PresentNumel(const std::vector<Segment>& segments);
// The shard: concatenated segments in its shape.
at::Tensor ShardOf(const Holder& holder, const std::vector<Segment>& segments);
// Elements [begin, begin + numel) of the copy, flat. REQUIRES: inside the copy.
at::Tensor SliceOf(const Holder& holder, int64_t begin, int64_t numel);

// Bit-for-bit comparison of two copies where both are present. `compared` counts elements; a
// disagreement is there if any differs.
struct CopyComparison {
  int64_t compared = 0;
  std::optional<Disagreement> disagreement;
};
CopyComparison CompareCopies(const std::vector<Segment>& first, const std::vector<Segment>& second);

// Does `master`, rounded to the weight's type, equal `weight` bit for bit (any NaN equals any NaN)?
// Looks at up to three windows of `window_numel` elements; law S4 compares all. REQUIRES: equal
// numel.
bool MasterMatchesWeight(const Holder& master, const Holder& weight, int64_t window_numel);

}  // namespace oracle
