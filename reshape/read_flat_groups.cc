// FP16_Optimizer (stage 0, fused): one flat buffer a group in the model file, without names, shapes
// or padding. Format: docs/format/optimizer.md.
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

Status AddFlat(const std::string& state, const TensorView& view, const std::string& where,
               LocalGroup& group) {
  if (!view.IsContiguous()) {
    return MakeError(ErrorCode::kInconsistent, "a flat group with strides", "contiguous elements",
                     where, "");
  }
  group.flat_dtypes[state] = view.storage->dtype;
  if (view.numel() > 0)
    group.flats[state] = {{0, view.numel(), view.storage, view.offset, DataRank{0}}};
  return checkpoint::Done{};
}

Status ReadRank(ModelRank& rank, const Source& source) {
  const std::string file = source.ModelFileName(rank);
  const Value optimizer = Get(source.ModelRoot(rank), "optimizer");
  const auto* flats = checkpoint::SequenceItems(Get(optimizer, "fp32_groups_flat"));
  if (flats == nullptr) {
    return MakeError(ErrorCode::kInconsistent, "no fp32_groups_flat",
                     "flat groups as in the first model file", file,
                     "Model files of two runs are mixed.");
  }
  const Value state = checkpoint::GetPath(optimizer, {"optimizer_state_dict", "state"});
  const auto* hyper = checkpoint::SequenceItems(
      checkpoint::GetPath(optimizer, {"optimizer_state_dict", "param_groups"}));
  for (size_t index = 0; index < flats->size(); ++index) {
    const std::string where = fmt::format("{} group {}", file, index);
    LocalGroup group;
    if (hyper != nullptr && index < hyper->size()) group.hyper_parameters = (*hyper)[index];
    CK_TRY(const TensorView master,
           checkpoint::DecodeTensor((*flats)[index], where + " fp32_groups_flat"));
    group.numel = master.numel();
    CK_DO(AddFlat(kMasterState, master, where, group));
    CK_TRY(const OptimizerEntry entry,
           ReadOptimizerEntry(checkpoint::GetIndex(state, static_cast<int64_t>(index)), group.numel,
                              where));
    for (const auto& [key, view] : entry.tensors)
      CK_DO(AddFlat(key, view, where + " " + key, group));
    group.step = entry.step;
    group.step_in_state = entry.step.has_value();
    if (!group.step && !entry.tensors.empty())
      group.step = ReadStep(Get(group.hyper_parameters, "step"));
    rank.groups.push_back(std::move(group));
  }
  return checkpoint::Done{};
}

}  // namespace

Status ReadFlatGroups(Source& source) {
  for (ModelRank& rank : source.ranks) CK_DO(ReadRank(rank, source));
  return checkpoint::Done{};
}

}  // namespace reshape
