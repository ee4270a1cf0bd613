#include <fmt/format.h>

#include <cstring>

#include "reshape/target_builder.h"

namespace reshape {
namespace {

using checkpoint::AsBool;
using checkpoint::AsInt;
using checkpoint::AsNumber;
using checkpoint::DType;
using checkpoint::Get;
using checkpoint::GetPath;
using checkpoint::IsNone;
using checkpoint::MakeBool;
using checkpoint::MakeFloat;
using checkpoint::MakeInt;
using checkpoint::Value;

constexpr char kScalerModule[] = "deepspeed.runtime.fp16.loss_scaler";

// The loss scaler in the words of the scaler object; values are carried as they stand in the
// source's tree.
struct ScalerFacts {
  bool dynamic = false;
  bool made_up = false;
  Value cur_scale, cur_iter, last_overflow_iter, scale_factor, scale_window;
};

Value Or(Value value, Value otherwise) { return IsNone(value) ? otherwise : value; }

Value ConfigEntry(const TargetBuilder& builder, const char* key) {
  return GetPath(SourceRoot(builder.source), {"ds_config", "fp16", key});
}

// A scaler for a run that had none: what the framework would begin with.
ScalerFacts FreshScaler(const TargetBuilder& builder) {
  const auto fixed = AsNumber(ConfigEntry(builder, "loss_scale"));
  const bool dynamic = !fixed || *fixed == 0;
  const int64_t power = AsInt(ConfigEntry(builder, "initial_scale_power")).value_or(16);
  ScalerFacts facts;
  facts.dynamic = dynamic;
  facts.made_up = true;
  facts.cur_scale = dynamic ? MakeInt(int64_t{1} << std::clamp<int64_t>(power, 0, 62))
                            : ConfigEntry(builder, "loss_scale");
  facts.cur_iter = MakeInt(0);
  facts.last_overflow_iter = MakeInt(-1);
  facts.scale_factor = MakeFloat(2.0);
  facts.scale_window = Or(ConfigEntry(builder, "loss_scale_window"), MakeInt(1000));
  return facts;
}

ScalerFacts ReadScaler(const TargetBuilder& builder, size_t source_rank) {
  const Value dict = SourceOptimizerDict(builder.source, source_rank);
  if (builder.source.weight_dtype != DType::kFloat16) return FreshScaler(builder);
  const Value object = Get(dict, "loss_scaler");
  const Value& from = object != nullptr ? object : dict;
  if (IsNone(Get(from, "cur_scale"))) return FreshScaler(builder);
  const ScalerFacts fresh = FreshScaler(builder);
  ScalerFacts facts;
  facts.dynamic =
      AsBool(object != nullptr ? Get(object, "dynamic") : Get(dict, "dynamic_loss_scale"))
          .value_or(false);
  facts.cur_scale = Get(from, "cur_scale");
  facts.cur_iter =
      Or(Get(from, "cur_iter"), Or(Get(SourceRoot(builder.source), "global_steps"), MakeInt(0)));
  facts.last_overflow_iter = Or(Get(from, "last_overflow_iter"), fresh.last_overflow_iter);
  facts.scale_factor = Or(Get(from, "scale_factor"), fresh.scale_factor);
  facts.scale_window = Or(Get(from, "scale_window"), fresh.scale_window);
  return facts;
}

void NotifyFresh(TargetBuilder& builder, const ScalerFacts& facts) {
  for (const Notice& notice : builder.target.notices) {
    if (notice.kind == "fresh-loss-scaler") return;
  }
  builder.Notify("fresh-loss-scaler",
                 "The source has no loss scaler; the target begins with a scale of " +
                     checkpoint::Render(facts.cur_scale, 40) + ", as the framework would.");
}

}  // namespace

Value StepTree(TargetBuilder& builder, const StepValue& step) {
  if (!step.tensor) {
    const auto whole = static_cast<int64_t>(step.value);
    return static_cast<double>(whole) == step.value ? MakeInt(whole) : MakeFloat(step.value);
  }
  checkpoint::TensorView view;
  view.storage = checkpoint::MakeStorage(DType::kFloat32, 1);
  const auto value = static_cast<float>(step.value);
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  builder.target.literals.push_back({view.storage, std::move(bytes)});
  return checkpoint::MakeTensor(view);
}

checkpoint::Result<std::optional<StepValue>> StepOfGroup(const TargetBuilder& builder,
                                                         const std::vector<int32_t>& tensors,
                                                         int32_t group) {
  std::optional<StepValue> step;
  const LogicalTensor* first = nullptr;
  for (const int32_t index : tensors) {
    const LogicalTensor& tensor = builder.source.tensors[static_cast<size_t>(index)];
    if (!tensor.step) continue;
    if (step && step->value != tensor.step->value) {
      return Unreachable(fmt::format("step {:g} of {} and step {:g} of {} in one group",
                                     step->value, first->name, tensor.step->value, tensor.name),
                         "one step for each group: this wrapper keeps no other",
                         "Choose a wrapper that keeps parameters apart.");
    }
    if (!step) first = &tensor;
    step = tensor.step;
  }
  // apex keeps the count in param_groups only: there it is carried with the hyper-parameters.
  const Group& source_group = builder.source.groups[static_cast<size_t>(group)];
  if (!step && !checkpoint::Has(source_group.hyper_parameters, "step")) step = source_group.step;
  return step;
}

Value ParamGroup(const TargetBuilder& builder, int32_t source_group, std::vector<Value> ids) {
  const Value& stored = builder.source.groups[static_cast<size_t>(source_group)].hyper_parameters;
  Entries entries;
  if (const checkpoint::Items* items = checkpoint::MappingItems(stored)) {
    for (const auto& [key, value] : *items) {
      if (checkpoint::AsString(key) != "params") entries.emplace_back(key, value);
    }
  }
  Append(entries, "params", checkpoint::MakeList(std::move(ids)));
  return checkpoint::MakeDict(std::move(entries));
}

void Append(Entries& entries, const std::string& key, Value value) {
  entries.emplace_back(checkpoint::MakeString(key), std::move(value));
}

void AppendScalerEntries(TargetBuilder& builder, size_t source_rank, Entries& entries) {
  if (builder.choice.dtype != DType::kFloat16) {
    // The fused wrapper writes nothing where the loss is not scaled; the unfused one does.
    if (builder.choice.wrapper == Wrapper::kFused) return;
    Append(entries, "dynamic_loss_scale", MakeBool(false));
    Append(entries, "cur_scale", MakeFloat(1.0));
    const Value stored = builder.source.wrapper == Wrapper::kUnfused
                             ? Get(SourceOptimizerDict(builder.source, source_rank), "cur_iter")
                             : nullptr;
    Append(entries, "cur_iter",
           Or(stored, Or(Get(SourceRoot(builder.source), "global_steps"), MakeInt(0))));
    return;
  }
  const ScalerFacts facts = ReadScaler(builder, source_rank);
  if (facts.made_up) NotifyFresh(builder, facts);
  Append(entries, "dynamic_loss_scale", MakeBool(facts.dynamic));
  Append(entries, "cur_scale", facts.cur_scale);
  Append(entries, "cur_iter", facts.cur_iter);
  if (!facts.dynamic) return;
  Append(entries, "last_overflow_iter", facts.last_overflow_iter);
  Append(entries, "scale_factor", facts.scale_factor);
  Append(entries, "scale_window", facts.scale_window);
}

Value ScalerObject(TargetBuilder& builder, size_t source_rank) {
  Entries entries;
  if (builder.choice.dtype != DType::kFloat16) {
    Append(entries, "cur_scale", MakeFloat(1.0));
    Append(entries, "dynamic", MakeBool(false));
    return checkpoint::MakeInstance(kScalerModule, "LossScaler",
                                    checkpoint::MakeDict(std::move(entries)));
  }
  const ScalerFacts facts = ReadScaler(builder, source_rank);
  if (facts.made_up) NotifyFresh(builder, facts);
  Append(entries, "cur_scale", facts.cur_scale);
  Append(entries, "dynamic", MakeBool(facts.dynamic));
  if (!facts.dynamic)
    return checkpoint::MakeInstance(kScalerModule, "LossScaler",
                                    checkpoint::MakeDict(std::move(entries)));
  const Value hysteresis = Or(ConfigEntry(builder, "hysteresis"), MakeInt(2));
  Append(entries, "cur_iter", facts.cur_iter);
  Append(entries, "last_overflow_iter", facts.last_overflow_iter);
  Append(entries, "scale_factor", facts.scale_factor);
  Append(entries, "scale_window", facts.scale_window);
  Append(entries, "min_scale", Or(ConfigEntry(builder, "min_loss_scale"), MakeInt(1)));
  Append(entries, "delayed_shift", hysteresis);
  Append(entries, "cur_hysteresis", hysteresis);
  Append(entries, "consecutive_hysteresis",
         Or(ConfigEntry(builder, "consecutive_hysteresis"), MakeBool(false)));
  Append(entries, "raise_error_at_min_scale", MakeBool(true));
  Append(entries, "dtype", checkpoint::MakeGlobal("torch", "float16"));
  return checkpoint::MakeInstance(kScalerModule, "DynamicLossScaler",
                                  checkpoint::MakeDict(std::move(entries)));
}

Value ClipGrad(const TargetBuilder& builder, size_t source_rank) {
  const Value stored = Get(SourceOptimizerDict(builder.source, source_rank), "clip_grad");
  return Or(stored, Or(GetPath(SourceRoot(builder.source), {"ds_config", "gradient_clipping"}),
                       MakeFloat(0.0)));
}

}  // namespace reshape
