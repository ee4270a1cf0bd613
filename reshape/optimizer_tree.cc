// Small readers that the optimizer layouts share: entries of a torch optimizer's state, steps,
// texts of messages.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/tree.h"
#include "reshape/source.h"

namespace reshape {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Result;
using checkpoint::TensorView;
using checkpoint::Value;

Error MakeError(ErrorCode code, std::string found, std::string expected, std::string where,
                std::string advice) {
  return Error{code, std::move(found), std::move(expected), std::move(where), std::move(advice)};
}

std::string JoinNames(const std::vector<std::string>& names, size_t names_max) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < names_max; ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > names_max) text += fmt::format(", ... ({} in all)", names.size());
  return text;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

void Source::Notify(std::string kind, std::string text, std::vector<std::string> names) {
  auto& all = inventory.notices;
  const auto same = std::find_if(all.begin(), all.end(), [&](const Notice& other) {
    return other.kind == kind && other.text == text;
  });
  if (same == all.end()) {
    all.push_back({std::move(kind), std::move(text), std::move(names)});
    return;
  }
  for (std::string& name : names) {
    if (std::find(same->names.begin(), same->names.end(), name) == same->names.end())
      same->names.push_back(std::move(name));
  }
}

size_t Source::RankIndex(int32_t stage, int32_t tensor_rank) const {
  return static_cast<size_t>(stage) * static_cast<size_t>(inventory.topology.tensor_parallel_size) +
         static_cast<size_t>(tensor_rank);
}

const Value& Source::ModelRoot(const ModelRank& rank) const {
  const size_t index =
      RankIndex(static_cast<int32_t>(rank.stage), static_cast<int32_t>(rank.tensor_rank));
  return inventory.model_files[index].torch.root;
}

std::string Source::ModelFileName(const ModelRank& rank) const {
  const size_t index =
      RankIndex(static_cast<int32_t>(rank.stage), static_cast<int32_t>(rank.tensor_rank));
  return inventory.model_files[index].name.name;
}

std::string ModelRank::Text() const {
  return fmt::format("tp{}-pp{}", static_cast<int32_t>(tensor_rank), static_cast<int32_t>(stage));
}

std::optional<StepValue> ReadStep(const Value& value) {
  if (const auto number = checkpoint::AsNumber(value)) return StepValue{*number, false};
  if (!checkpoint::IsTensor(value)) return std::nullopt;
  const auto view = checkpoint::DecodeTensor(value, "step");
  if (!view.ok() || view.value().numel() != 1) return std::nullopt;
  const auto numbers = checkpoint::ReadNumbers(view.value(), 1, "step");
  if (!numbers.ok()) return std::nullopt;
  return StepValue{numbers.value().front(), true};
}

Result<OptimizerEntry> ReadOptimizerEntry(const Value& entry, int64_t numel,
                                          const std::string& where) {
  OptimizerEntry result;
  const auto* items = checkpoint::MappingItems(entry);
  if (items == nullptr) return result;
  for (const auto& [key_value, value] : *items) {
    const std::string key =
        checkpoint::AsString(key_value).value_or(checkpoint::Render(key_value, 40));
    if (key == "step") {
      result.step = ReadStep(value);
      continue;
    }
    if (checkpoint::IsNone(value)) continue;
    if (!checkpoint::IsTensor(value)) {
      return MakeError(ErrorCode::kUnsupported,
                       fmt::format("optimizer state '{}' = {}", key, checkpoint::Render(value, 60)),
                       "a tensor of the parameter's shape, or a step", where,
                       "This optimizer is not supported yet.");
    }
    CK_TRY(TensorView view, checkpoint::DecodeTensor(value, where + " " + key));
    if (view.numel() > view.storage->numel) {
      return MakeError(ErrorCode::kUnsupported,
                       fmt::format("optimizer state '{}' that repeats its elements", key),
                       "one stored element for each", where,
                       "Write the checkpoint with dense states.");
    }
    if (numel >= 0 && view.numel() != numel) {
      return MakeError(ErrorCode::kUnsupported,
                       fmt::format("optimizer state '{}' of {} elements", key, view.numel()),
                       fmt::format("{} elements, as the parameter has", numel), where,
                       "Optimizers with factored or compressed states are not supported yet.");
    }
    result.tensors.emplace(key, std::move(view));
  }
  return result;
}

}  // namespace reshape
