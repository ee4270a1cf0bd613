// Optimizer state by parameter, without names: FP16_UnfusedOptimizer (stage 0) and a bare torch
// optimizer (fp32). Ids run over the groups in their order. Format: docs/format/optimizer.md.
#include <fmt/format.h>

#include "checkpoint/tree.h"
#include "reshape/source.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::Get;
using checkpoint::Status;
using checkpoint::TensorView;
using checkpoint::Value;

// States of one id. A bare optimizer that has not stepped yet, or a parameter that never had a
// gradient, has none.
Status ReadId(const Value& state, int64_t id, const std::string& where, LocalGroup& group) {
  auto& tensors = group.nameless.back();
  const auto master = tensors.find(kMasterState);
  const int64_t numel = master == tensors.end() ? -1 : master->second.numel();
  CK_TRY(OptimizerEntry entry, ReadOptimizerEntry(checkpoint::GetIndex(state, id), numel,
                                                  fmt::format("{} id {}", where, id)));
  for (auto& [key, view] : entry.tensors) tensors[key] = std::move(view);
  group.nameless_steps.back() = entry.step;
  group.step_in_state |= entry.step.has_value();
  if (entry.step && !group.step) group.step = entry.step;
  return checkpoint::Done{};
}

Status ReadRank(ModelRank& rank, const Source& source) {
  const std::string file = source.ModelFileName(rank);
  const Value optimizer = Get(source.ModelRoot(rank), "optimizer");
  const bool bare = source.inventory.wrapper == Wrapper::kFp32;
  const Value base = bare ? optimizer : Get(optimizer, "optimizer_state_dict");
  const auto* hyper = checkpoint::SequenceItems(Get(base, "param_groups"));
  const auto* masters = checkpoint::SequenceItems(Get(optimizer, "fp32_groups"));
  if (hyper == nullptr || (!bare && (masters == nullptr || masters->size() != hyper->size()))) {
    return MakeError(ErrorCode::kInconsistent,
                     fmt::format("{} lists of masters", masters == nullptr ? 0 : masters->size()),
                     fmt::format("one for each of {} groups", hyper == nullptr ? 0 : hyper->size()),
                     file, "Model files of two runs are mixed.");
  }
  for (size_t index = 0; index < hyper->size(); ++index) {
    const std::string where = fmt::format("{} group {}", file, index);
    LocalGroup group;
    group.hyper_parameters = (*hyper)[index];
    const auto ids = checkpoint::AsIntList(Get(group.hyper_parameters, "params"));
    const auto* shaped = bare ? nullptr : checkpoint::SequenceItems((*masters)[index]);
    if (!ids || (!bare && (shaped == nullptr || shaped->size() != ids->size()))) {
      return MakeError(ErrorCode::kInconsistent,
                       fmt::format("{} masters", shaped == nullptr ? 0 : shaped->size()),
                       fmt::format("one for each of {} parameter ids", ids ? ids->size() : 0),
                       where, "");
    }
    for (size_t i = 0; i < ids->size(); ++i) {
      group.nameless.emplace_back();
      group.nameless_steps.emplace_back();
      if (!bare) {
        CK_TRY(TensorView master, checkpoint::DecodeTensor((*shaped)[i], where + " fp32_groups"));
        if (master.numel() > master.storage->numel) {
          return MakeError(ErrorCode::kUnsupported, "a master that repeats its elements",
                           "one stored element for each", where, "");
        }
        group.nameless.back().emplace(kMasterState, std::move(master));
      }
      CK_DO(ReadId(Get(base, "state"), (*ids)[i], where, group));
    }
    // apex FusedAdam keeps the count in the group.
    bool stepped = false;
    for (const auto& tensors : group.nameless) stepped |= tensors.size() > (bare ? 0U : 1U);
    if (!group.step && stepped) group.step = ReadStep(Get(group.hyper_parameters, "step"));
    rank.groups.push_back(std::move(group));
  }
  return checkpoint::Done{};
}

}  // namespace

Status ReadUnfusedGroups(Source& source) {
  for (ModelRank& rank : source.ranks) CK_DO(ReadRank(rank, source));
  return checkpoint::Done{};
}

}  // namespace reshape
