#include "oracle/assemble.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

namespace oracle {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Result;

at::Tensor JoinShards(const std::vector<at::Tensor>& shards, int64_t dimension,
                      const Shares& shares) {
  if (shards.size() == 1) return shards[0];
  if (shares.size() < 2) return at::cat(shards, dimension);
  const int64_t total = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  std::vector<std::vector<at::Tensor>> sub_parameters(shares.size());
  for (const at::Tensor& shard : shards) {
    std::vector<int64_t> extents;
    for (const int64_t share : shares) extents.push_back(shard.size(dimension) / total * share);
    const std::vector<at::Tensor> parts = shard.split_with_sizes(extents, dimension);
    for (size_t i = 0; i < parts.size(); ++i) sub_parameters[i].push_back(parts[i]);
  }
  std::vector<at::Tensor> ordered;
  for (const auto& shards_of_one : sub_parameters)
    ordered.insert(ordered.end(), shards_of_one.begin(), shards_of_one.end());
  return at::cat(ordered, dimension);
}

namespace {

struct Copy {
  const Holder* holder = nullptr;
  std::vector<Segment> segments;
  int64_t present = 0;
};

class Assembler {
 public:
  Assembler(const TensorEntry& entry, const std::string& state, const JoinRule& rule)
      : entry_(entry),
        holders_(entry.holders.at(state)),
        dtype_(entry.info.states.at(state)),
        rule_(rule) {
    const bool full = std::any_of(holders_.begin(), holders_.end(),
                                  [](const Holder& holder) { return holder.full; });
    split_ = entry.info.partition_dim >= 0 && rule.tensor_parallel > 1 && !full;
  }

  Result<Assembled> Run(bool stale) {
    auto numel = checkpoint::NumelOf(entry_.info.shape, entry_.info.name);
    if (!numel.ok()) return numel.error();
    if (numel.value() > rule_.bytes_max / checkpoint::ElementBytes(dtype_)) {
      return Error{ErrorCode::kLimitExceeded,
                   entry_.info.name + " with " + std::to_string(numel.value()) + " elements",
                   "no more than the files can hold", "", "A shape in the files is damaged."};
    }
    std::vector<at::Tensor> shards;
    const int32_t parts = split_ ? rule_.tensor_parallel : 1;
    for (int32_t part = 0; part < parts; ++part) shards.push_back(Part(part, stale));
    if (!split_) {
      result_.value = shards[0];
    } else {
      const int64_t dimension = entry_.info.partition_dim;
      const int64_t total = std::accumulate(rule_.shares.begin(), rule_.shares.end(), int64_t{0});
      for (const at::Tensor& shard : shards) {
        if (rule_.shares.size() < 2 || (total > 0 && shard.size(dimension) % total == 0)) continue;
        return Error{ErrorCode::kInconsistent,
                     entry_.info.name + " with a shard of " +
                         std::to_string(shard.size(dimension)) + " rows",
                     "a multiple of its sub-parameters' " + std::to_string(total), "",
                     "Mend the declared sub-parameters."};
      }
      result_.value = JoinShards(shards, dimension, rule_.shares);
    }
    const at::Tensor own = WithoutForeignRows(result_.value);
    result_.covered = std::max<int64_t>(0, result_.covered - (result_.value.numel() - own.numel()));
    result_.value = own.contiguous();
    return std::move(result_);
  }

 private:
  // The shard of one tensor rank (or the whole of a replicated tensor): the first complete copy;
  // all others are compared with it.
  at::Tensor Part(int32_t part, bool stale) {
    std::vector<Copy> copies = CopiesOf(part, stale);
    if (copies.empty())
      return at::zeros(EmptyShape(), at::TensorOptions().dtype(ScalarTypeOf(dtype_)));
    const auto chosen =
        std::max_element(copies.begin(), copies.end(),
                         [](const Copy& a, const Copy& b) { return a.present < b.present; });
    result_.covered += chosen->present;
    for (const Copy& copy : copies) {
      for (const Segment& segment : copy.segments) {
        if (segment.present) result_.holders.push_back(segment.place);
      }
      if (copy.holder->duplicate) result_.held_twice += copy.present;
      if (&copy != &*chosen) Compare(*chosen, copy, false);
    }
    if (!stale) CompareStale(part, *chosen);
    return ShardOf(*chosen->holder, chosen->segments);
  }

  std::vector<Copy> CopiesOf(int32_t part, bool stale) const {
    std::vector<Copy> copies;
    for (const Holder& holder : holders_) {
      if (holder.stale != stale || (split_ && holder.rank.tensor != part)) continue;
      Copy copy{&holder, SegmentsOf(holder), 0};
      copy.present = PresentNumel(copy.segments);
      copies.push_back(std::move(copy));
    }
    return copies;
  }

  void Compare(const Copy& first, const Copy& second, bool known_stale) {
    CopyComparison comparison = CompareCopies(first.segments, second.segments);
    result_.replicas_compared += comparison.compared;
    if (!comparison.disagreement) return;
    comparison.disagreement->known_stale = known_stale;
    result_.disagreements.push_back(*comparison.disagreement);
  }

  // Later stages' copies of a parameter that only the first stage trains: each against the real
  // one, and against each other.
  void CompareStale(int32_t part, const Copy& real) {
    const std::vector<Copy> copies = CopiesOf(part, true);
    for (const Copy& copy : copies) {
      Compare(real, copy, true);
      if (copy.holder->rank.stage == copies.front().holder->rank.stage &&
          &copy != &copies.front()) {
        Compare(copies.front(), copy, false);
      }
    }
  }

  // Shape of a shard that nobody holds.
  std::vector<int64_t> EmptyShape() const {
    std::vector<int64_t> shape = entry_.info.shape;
    if (!split_) return shape;
    const auto axis = static_cast<size_t>(entry_.info.partition_dim);
    for (const auto& [state, holders] : entry_.holders) {
      if (!holders.empty() && axis < holders.front().shape.size()) {
        shape[axis] = holders.front().shape[axis];
        return shape;
      }
    }
    shape[axis] /= rule_.tensor_parallel;
    return shape;
  }

  // Universal folders hold no vocabulary padding; the weights beside them do.
  at::Tensor WithoutForeignRows(const at::Tensor& value) const {
    const bool longer =
        entry_.info.vocabulary_rows >= 0 && value.dim() > 0 && value.size(0) > entry_.info.shape[0];
    return longer ? value.narrow(0, 0, entry_.info.shape[0]) : value;
  }

  const TensorEntry& entry_;
  const std::vector<Holder>& holders_;
  checkpoint::DType dtype_;
  const JoinRule& rule_;
  bool split_ = false;
  Assembled result_;
};

}  // namespace

Result<Assembled> AssembleState(const TensorEntry& entry, const std::string& state,
                                const JoinRule& rule) {
  return Assembler(entry, state, rule).Run(false);
}

Result<at::Tensor> AssembleStale(const TensorEntry& entry, const std::string& state,
                                 const JoinRule& rule) {
  CK_TRY(Assembled assembled, Assembler(entry, state, rule).Run(true));
  return assembled.value;
}

}  // namespace oracle
