// Which optimizer wrapper wrote the source, by the keys of its dictionaries. Format:
// docs/format/optimizer.md.
#include <algorithm>

#include "checkpoint/tree.h"
#include "reshape/source.h"

namespace reshape {
namespace {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Get;
using checkpoint::GetPath;
using checkpoint::IsNone;
using checkpoint::Status;
using checkpoint::Value;

std::string KeysOf(const Value& mapping) {
  std::vector<std::string> keys;
  if (const auto* items = checkpoint::MappingItems(mapping)) {
    for (const auto& [key, value] : *items) keys.push_back(checkpoint::Render(key, 40));
  }
  return JoinNames(keys, 12);
}

Error UnknownOptimizer(const SourceFile& file, const Value& optimizer) {
  return MakeError(ErrorCode::kUnsupported, "an optimizer with the keys " + KeysOf(optimizer),
                   "DeepSpeedZeroOptimizer, BF16_Optimizer, FP16_Optimizer, FP16_UnfusedOptimizer "
                   "or a torch optimizer",
                   file.name.path.string(), "This form of optimizer state is not supported yet.");
}

Status SetPartitionWrapper(Inventory& inventory) {
  const SourceFile& file = inventory.optim_files.front().front();
  const Value optimizer = Get(file.torch.root, "optimizer_state_dict");
  const Value& model = inventory.model_files.front().torch.root;
  const auto stage = checkpoint::AsInt(Get(optimizer, "zero_stage"));
  if (stage == 3 || checkpoint::Has(optimizer, "fp32_flat_groups")) {
    return MakeError(ErrorCode::kUnsupported, "ZeRO stage 3 optimizer state",
                     "ZeRO stage 0, 1 or 2", file.name.path.string(),
                     "ZeRO stage 3 is not supported yet.");
  }
  if (!checkpoint::Has(optimizer, "single_partition_of_fp32_groups"))
    return UnknownOptimizer(file, optimizer);
  inventory.elastic =
      checkpoint::As<checkpoint::ListNode>(Get(optimizer, "base_optimizer_state")) != nullptr;
  if (stage) {
    inventory.wrapper = Wrapper::kZero;
    inventory.topology.zero_stage = static_cast<int32_t>(*stage);
    if (*stage != 1 && *stage != 2) return UnknownOptimizer(file, optimizer);
  } else {
    inventory.wrapper = Wrapper::kBf16;
    inventory.topology.zero_stage = IsNone(Get(model, "param_shapes")) ? 0 : 1;
    inventory.bf16_model_optimizer_copy = !IsNone(Get(model, "optimizer"));
  }
  const Value zero_config = GetPath(model, {"ds_config", "zero_optimization"});
  inventory.round_robin =
      checkpoint::AsBool(Get(zero_config, "round_robin_gradients")).value_or(false);
  inventory.parameter_alignment =
      checkpoint::AsBool(Get(zero_config, "parameter_alignment")).value_or(false);
  return checkpoint::Done{};
}

}  // namespace

Status DetectWrapper(Inventory& inventory) {
  const SourceFile& model = inventory.model_files.front();
  const Value optimizer = Get(model.torch.root, "optimizer");
  inventory.legacy_container = model.torch.legacy;
  if (inventory.folder.universal) {
    inventory.wrapper = Wrapper::kUniversal;
    inventory.topology.zero_stage = static_cast<int32_t>(std::clamp<int64_t>(
        checkpoint::AsInt(GetPath(model.torch.root, {"ds_config", "zero_optimization", "stage"}))
            .value_or(1),
        0, 3));
    if (inventory.topology.zero_stage == 3) {
      return MakeError(ErrorCode::kUnsupported, "a universal folder of ZeRO stage 3",
                       "ZeRO stage 0, 1 or 2", model.name.path.string(),
                       "ZeRO stage 3 is not supported yet.");
    }
    return checkpoint::Done{};
  }
  if (!inventory.optim_files.empty()) return SetPartitionWrapper(inventory);
  if (IsNone(optimizer)) {
    inventory.wrapper = Wrapper::kNone;
  } else if (checkpoint::Has(optimizer, "fp32_groups_flat")) {
    inventory.wrapper = Wrapper::kFused;
  } else if (checkpoint::Has(optimizer, "fp32_groups")) {
    inventory.wrapper = Wrapper::kUnfused;
  } else if (checkpoint::Has(optimizer, "state") && checkpoint::Has(optimizer, "param_groups")) {
    inventory.wrapper = Wrapper::kFp32;
  } else {
    return UnknownOptimizer(model, optimizer);
  }
  return checkpoint::Done{};
}

}  // namespace reshape
