#include "reshape/state_pieces.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshape/shards.h"

namespace reshape {
namespace {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Result;
using checkpoint::Status;
using checkpoint::TensorView;

// One rank's share of one tensor.
struct Share {
  const Source& source;
  const ModelRank& rank;
  const LogicalTensor& tensor;
  std::vector<Slab> slabs;

  ShardCoordinate Holder(DataRank data_rank) const {
    return {rank.tensor_rank, rank.stage, data_rank};
  }
};

Error MixedTypes(const Share& share, const std::string& state) {
  return MakeError(
      ErrorCode::kInconsistent,
      fmt::format("'{}' of {} in another type on {}", state, share.tensor.name, share.rank.Text()),
      "one element type on all ranks", share.source.ModelFileName(share.rank),
      "Files of two runs are mixed.");
}

// The state's entry, in the type of this rank.
Result<StatePieces*> Entry(const Share& share, const std::string& state, checkpoint::DType dtype,
                           std::map<std::string, StatePieces>& states) {
  const auto [position, inserted] = states.try_emplace(state);
  if (inserted) position->second.dtype = dtype;
  if (position->second.dtype != dtype) return MixedTypes(share, state);
  return &position->second;
}

Status AppendView(const Share& share, const std::string& state, const TensorView& view,
                  std::map<std::string, StatePieces>& states) {
  CK_TRY(StatePieces * entry, Entry(share, state, view.storage->dtype, states));
  const ShardCoordinate holder = share.Holder(DataRank{0});
  if (view.IsContiguous()) {
    AppendPieces(share.slabs, {0, view.numel(), view.storage, view.offset, holder}, entry->pieces);
  } else {
    AppendStridedPieces(share.slabs, {view.storage, view.offset, view.strides, holder},
                        entry->pieces);
  }
  return checkpoint::Done{};
}

// The part of every segment that the member lies in.
Status AppendFlat(const Share& share, const Member& member, const std::vector<Segment>& segments,
                  StatePieces& entry) {
  const int64_t end = member.begin + member.numel;
  auto segment = std::upper_bound(segments.begin(), segments.end(), member.begin,
                                  [](int64_t at, const Segment& other) { return at < other.end; });
  int64_t covered = member.begin;
  for (; segment != segments.end() && segment->begin < end; ++segment) {
    const int64_t from = std::max(member.begin, segment->begin), to = std::min(end, segment->end);
    if (from != covered) break;
    AppendPieces(share.slabs,
                 {from - member.begin, to - member.begin, segment->storage,
                  segment->offset + (from - segment->begin), share.Holder(segment->data_rank)},
                 entry.pieces);
    covered = to;
  }
  if (covered == end) return checkpoint::Done{};
  return MakeError(ErrorCode::kInconsistent,
                   fmt::format("{} of {} elements", covered - member.begin, member.numel),
                   "all of them", member.name + " on " + share.rank.Text(),
                   "A partition was cut short.");
}

Status AppendMember(const Share& share, const LocalGroup& group, const Member& member,
                    std::map<std::string, StatePieces>& states) {
  if (!member.own.empty()) {
    for (const auto& [state, view] : member.own) CK_DO(AppendView(share, state, view, states));
    return checkpoint::Done{};
  }
  for (const auto& [state, segments] : group.flats) {
    CK_TRY(StatePieces * entry, Entry(share, state, group.flat_dtypes.at(state), states));
    CK_DO(AppendFlat(share, member, segments, *entry));
  }
  return checkpoint::Done{};
}

}  // namespace

Result<const LocalTensor*> LocalOn(const Source& source, const std::string& name,
                                   const ModelRank& rank) {
  const auto position = rank.by_name.find(name);
  if (position == rank.by_name.end()) {
    return MakeError(ErrorCode::kInconsistent, fmt::format("no {} on {}", name, rank.Text()),
                     "the same names on all tensor ranks", source.ModelFileName(rank),
                     "Files of two runs are mixed.");
  }
  const LocalTensor& tensor = rank.tensors[position->second];
  const ModelRank& first = source.ranks[source.RankIndex(static_cast<int32_t>(rank.stage), 0)];
  const LocalTensor& reference = first.tensors[first.by_name.at(name)];
  if (tensor.view.shape == reference.view.shape) return &tensor;
  return MakeError(
      ErrorCode::kInconsistent,
      fmt::format("{} of shape {} on {}", name, ShapeText(tensor.view.shape), rank.Text()),
      fmt::format("{} as on {}", ShapeText(reference.view.shape), first.Text()),
      source.ModelFileName(rank),
      "Uneven shards are not supported; or files of two runs are mixed.");
}

Status AppendStates(const Source& source, const StateQuery& query, const LogicalTensor& tensor,
                    std::map<std::string, StatePieces>& states) {
  const int32_t tensor_size = source.inventory.topology.tensor_parallel_size;
  const int32_t holders = SplitDimension(tensor.parallel) < 0 ? 1 : tensor_size;
  for (int32_t t = 0; t < holders; ++t) {
    const ModelRank& rank = source.ranks[source.RankIndex(query.stage, t)];
    CK_TRY(const LocalTensor* local, LocalOn(source, tensor.name, rank));
    const Share share{source, rank, tensor,
                      SlabsOfShard({tensor.parallel, tensor.shape, tensor.sub_parameter_rows},
                                   TensorRank{t}, tensor_size)};
    if (query.with_weight && local->view.storage != nullptr) {
      CK_DO(AppendView(share, kWeightState, local->view, states));
    }
    const auto position = rank.member_of.find(tensor.name);
    if (position == rank.member_of.end()) continue;
    const LocalGroup& group = rank.groups[position->second.group];
    const Member& member = group.members[position->second.member];
    if (member.numel != local->view.numel() ||
        (member.shape && *member.shape != local->view.shape)) {
      return MakeError(
          ErrorCode::kInconsistent, fmt::format("{} elements in the optimizer", member.numel),
          fmt::format("the shape {} of the weight", ShapeText(local->view.shape)),
          tensor.name + " on " + rank.Text(), "Model and optimizer files of two runs are mixed.");
    }
    CK_DO(AppendMember(share, group, member, states));
  }
  return checkpoint::Done{};
}

Status AppendFullStates(const Source& source, LogicalTensor& tensor) {
  const ModelRank& rank =
      source.ranks[source.RankIndex(static_cast<int32_t>(tensor.stages.front()), 0)];
  const Share share{
      source, rank, tensor,
      SlabsOfShard({tensor.parallel, tensor.shape, tensor.sub_parameter_rows}, TensorRank{0}, 1)};
  for (const auto& [state, view] : source.full_tensors.at(tensor.name).states) {
    CK_DO(AppendView(share, state, view, tensor.states));
  }
  return checkpoint::Done{};
}

}  // namespace reshape
