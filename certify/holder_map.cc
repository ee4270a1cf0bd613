#include "certify/holder_map.h"

#include <ATen/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <tuple>

#include "certify/format.h"

namespace certify {
namespace {

// Above this an index tensor costs more than the words are worth.
constexpr int64_t kMappedNumelMax = 1LL << 26;

using Parts = std::vector<const oracle::HolderPart*>;

// Row-major indices of what one tensor rank holds, by narrowing the index tensor; `halves`: each
// half of the split dimension is cut on its own.
at::Tensor ShardIndices(const oracle::TensorInfo& info, int64_t tensor_rank, int64_t ranks,
                        bool halves) {
  const at::Tensor indices = at::arange(NumelOfShape(info.shape), at::kLong).view(info.shape);
  if (info.partition_dim < 0) return indices.flatten();
  const int64_t pieces = halves ? 2 : 1;
  const int64_t extent = indices.size(info.partition_dim) / pieces;
  std::vector<at::Tensor> cut;
  for (int64_t piece = 0; piece < pieces; ++piece)
    cut.push_back(indices.narrow(info.partition_dim,
                                 piece * extent + tensor_rank * (extent / ranks), extent / ranks));
  return at::cat(cut, info.partition_dim).flatten();
}

bool Divides(const oracle::TensorInfo& info, int64_t ranks, int64_t pieces) {
  if (info.partition_dim < 0) return pieces == 1;
  if (info.partition_dim >= static_cast<int64_t>(info.shape.size())) return false;
  return info.shape[static_cast<size_t>(info.partition_dim)] % (ranks * pieces) == 0;
}

// Shares of the parts of one copy of a shard, if their content is that of `value` at these indices.
bool AppendShares(const Parts& parts, const at::Tensor& indices, const at::Tensor& value,
                  const std::vector<bool>& marked, std::vector<HolderShare>& shares) {
  std::vector<at::Tensor> flats;
  for (const oracle::HolderPart* part : parts) flats.push_back(part->flat.flatten());
  const at::Tensor joined = at::cat(flats, 0);
  if (joined.numel() != indices.numel() || joined.scalar_type() != value.scalar_type())
    return false;
  if (!joined.equal(value.flatten().index_select(0, indices))) return false;
  const int64_t* index = indices.const_data_ptr<int64_t>();
  int64_t at = 0;
  for (const oracle::HolderPart* part : parts) {
    HolderShare share{part->place, part->flat.numel(), 0};
    for (int64_t i = 0; i < share.numel; ++i, ++at)
      share.marked += marked[static_cast<size_t>(index[at])] ? 1 : 0;
    shares.push_back(share);
  }
  return true;
}

}  // namespace

std::vector<HolderShare> SharesOfHolders(const Subject& subject, size_t index,
                                         const std::string& state,
                                         const std::vector<bool>& marked) {
  const oracle::TensorInfo& info = subject.tensors()[index];
  const int64_t ranks = info.partition_dim < 0 ? 1 : subject.summary().tensor_parallel;
  if (ranks < 1 || NumelOfShape(info.shape) > kMappedNumelMax) return {};
  const auto assembled = subject.oracle->Assemble(index, state);
  const auto holders = subject.oracle->PartOfEachHolder(index, state);
  if (!assembled.ok() || !holders.ok()) return {};
  Parts sorted;
  for (const oracle::HolderPart& part : holders.value()) sorted.push_back(&part);
  const auto shard_of = [](const oracle::HolderPart* part) {
    return std::tuple(part->place.rank.tensor, part->place.rank.stage);
  };
  std::stable_sort(sorted.begin(), sorted.end(), [&](const auto* a, const auto* b) {
    if (shard_of(a) != shard_of(b)) return shard_of(a) < shard_of(b);
    return a->place.rank.data < b->place.rank.data;
  });
  for (const bool halves : {false, true}) {
    if (!Divides(info, ranks, halves ? 2 : 1)) continue;
    std::vector<HolderShare> shares;
    bool proved = !sorted.empty();
    for (size_t begin = 0; begin < sorted.size() && proved;) {
      size_t end = begin;
      while (end < sorted.size() && shard_of(sorted[end]) == shard_of(sorted[begin])) ++end;
      const int64_t rank = info.partition_dim < 0 ? 0 : sorted[begin]->place.rank.tensor;
      proved = rank >= 0 && rank < ranks &&
               AppendShares(Parts(sorted.begin() + static_cast<std::ptrdiff_t>(begin),
                                  sorted.begin() + static_cast<std::ptrdiff_t>(end)),
                            ShardIndices(info, rank, ranks, halves), assembled.value().value,
                            marked, shares);
      begin = end;
    }
    if (proved) return shares;
  }
  return {};
}

std::string HoldersText(const std::vector<HolderShare>& shares) {
  std::vector<std::string> concerned;
  for (const HolderShare& share : shares)
    if (share.marked > 0)
      concerned.push_back(Format("{} ({}): {} of {}", share.place.rank.ToString(), share.place.file,
                                 share.marked, share.numel));
  if (concerned.empty()) return "";
  if (concerned.size() == shares.size() && shares.size() > 1) return "; in every part";
  return "; held by " + JoinText(concerned, ", ");
}

}  // namespace certify
