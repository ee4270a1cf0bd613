// DeepSpeed's universal folder: one folder a parameter, whole tensors without vocabulary padding.
// Format: docs/format/universal.md.
#include <algorithm>
#include <set>

#include "checkpoint/tree.h"
#include "oracle/draft.h"

// Last, because libtorch has a macro CHECK of its own.
#include <ATen/Tensor.h>
#include <ATen/ops/allclose.h>

namespace oracle {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Status;
using checkpoint::Value;

namespace {

// Parameters in the order of param_shapes (stage by stage, group by group), with the position of
// their group.
std::vector<std::pair<std::string, int32_t>> ListedParameters(const Source& source) {
  std::vector<std::pair<std::string, int32_t>> listed;
  for (const auto& [number, file] : source.model) {
    const Value shapes = checkpoint::Get(source.Root(file), "param_shapes");
    const std::vector<Value>* groups = checkpoint::SequenceItems(shapes);
    if (groups == nullptr) continue;
    for (size_t g = 0; g < groups->size(); ++g) {
      const checkpoint::Items* items = checkpoint::MappingItems((*groups)[g]);
      if (items == nullptr) continue;
      for (const auto& [key, value] : *items) {
        if (const auto name = checkpoint::AsString(key))
          listed.emplace_back(*name, static_cast<int32_t>(g));
      }
    }
  }
  return listed;
}

std::string StateName(const std::string& stem) { return stem == "fp32" ? kMaster : stem; }

// The converter, told to make up what it does not find, writes each frozen parameter, buffer and
// alias once more, widened. Such a copy is no state: the module beside it is what it repeats.
bool IsUntrainedCopy(const Draft& draft, const std::string& parameter,
                     const std::set<std::string>& trained) {
  const TensorEntry* entry = draft.Find(parameter);
  const bool in_module =
      entry != nullptr && (!entry->info.alias_of.empty() || entry->holders.count(kWeight) > 0);
  if (trained.empty() || trained.count(parameter) > 0 || !in_module) return false;
  const auto file = draft.source.universal.lower_bound(parameter + "/");
  const auto next = file == draft.source.universal.end() ? file : std::next(file);
  return file != draft.source.universal.end() && file->first == parameter + "/fp32" &&
         (next == draft.source.universal.end() || next->first.rfind(parameter + "/", 0) != 0);
}

Status CompareUntrainedCopy(Draft& draft, const std::string& parameter) {
  const size_t file = draft.source.universal.at(parameter + "/fp32");
  const Place place = draft.source.PlaceOf(file, {});
  const Value value = checkpoint::Get(draft.source.Root(file), "param");
  const std::string& alias = draft.Find(parameter)->info.alias_of;
  const Holder* weight = draft.WeightOf(alias.empty() ? parameter : alias, 0);
  draft.untrained_copies.insert(parameter);
  bool equal = false;
  if (weight != nullptr && checkpoint::IsTensor(value)) {
    CK_TRY(const Stored copy, draft.source.TensorAt(file, {}, value));
    const at::Tensor widened = ShardOf(*weight, SegmentsOf(*weight)).to(at::kFloat);
    const at::Tensor held = TensorOf(copy.view);
    equal = held.scalar_type() == at::kFloat && held.sizes() == widened.sizes() &&
            at::allclose(held, widened, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true);
  }
  if (!equal) {
    draft.Fault("universal-copy-differs",
                parameter + " is not trained, and its folder holds something else than the module",
                {parameter}, place);
  }
  return checkpoint::Done{};
}

Status AddStateFile(Draft& draft, const std::string& parameter, const std::string& stem,
                    size_t file) {
  const Value& root = draft.source.Root(file);
  if (stem == "step") {
    draft.Entry(parameter).info.step = StepOf(root);
    const auto step = StepOf(root);
    if (step)
      draft.summary.counters.push_back({"optimizer step", *step, draft.source.PlaceOf(file, {})});
    return checkpoint::Done{};
  }
  const Value value = checkpoint::Get(root, "param");
  if (!checkpoint::IsTensor(value)) {
    return Error{
        ErrorCode::kUnsupported, "a state file without 'param'",
        "a dictionary with the whole parameter", draft.source.labels[file],
        "Universal folders made from ZeRO-3 hold bare flat tensors; they are not read yet."};
  }
  Holder holder;
  CK_TRY(holder.whole, draft.source.TensorAt(file, {}, value));
  holder.shape = holder.whole->view.shape;
  holder.full = true;
  draft.AddHolder(parameter, StateName(stem), std::move(holder));
  draft.Entry(parameter).info.role = Role::kTrainable;
  return checkpoint::Done{};
}

void AddGroups(Draft& draft) {
  const auto state = draft.source.universal.find("optimizer_state");
  if (state == draft.source.universal.end()) return;
  const Value parameters = checkpoint::Get(draft.source.Root(state->second), "param_groups");
  const std::vector<Value>* groups = checkpoint::SequenceItems(parameters);
  if (groups == nullptr) return;
  const Place place = draft.source.PlaceOf(state->second, {});
  std::map<std::string, int32_t> seen;
  std::vector<int32_t> index;
  for (size_t g = 0; g < groups->size(); ++g) {
    index.push_back(draft.GroupIndex((*groups)[g], static_cast<int32_t>(g), seen, place));
  }
  for (const auto& [name, position] : ListedParameters(draft.source)) {
    if (position < static_cast<int32_t>(index.size()) && draft.Find(name) != nullptr) {
      draft.AddGroupMember(index[static_cast<size_t>(position)], name);
    }
  }
}

}  // namespace

Status ReadUniversal(Draft& draft) {
  std::vector<std::string> order;
  std::set<std::string> trained;
  for (const auto& [name, position] : ListedParameters(draft.source)) {
    trained.insert(name);
    const auto& folders = draft.source.folder.universal_parameters;
    if (std::binary_search(folders.begin(), folders.end(), name)) order.push_back(name);
  }
  order.insert(order.end(), draft.source.folder.universal_parameters.begin(),
               draft.source.folder.universal_parameters.end());
  for (const std::string& parameter : order) {
    if (IsUntrainedCopy(draft, parameter, trained)) {
      CK_DO(CompareUntrainedCopy(draft, parameter));
      continue;
    }
    if (draft.Entry(parameter).holders.count(kMaster) > 0) continue;  // listed on several ranks
    for (auto file = draft.source.universal.lower_bound(parameter + "/");
         file != draft.source.universal.end(); ++file) {
      if (file->first.rfind(parameter + "/", 0) != 0) break;
      CK_DO(AddStateFile(draft, parameter, file->first.substr(parameter.size() + 1), file->second));
    }
  }
  if (!draft.untrained_copies.empty()) {
    draft.Note("universal-copies",
               "folders of what is not trained repeat the module, widened to fp32; not read",
               {draft.untrained_copies.begin(), draft.untrained_copies.end()});
  }
  AddGroups(draft);
  return checkpoint::Done{};
}

}  // namespace oracle
