#include "oracle/draft.h"

#include <algorithm>

#include "checkpoint/tree.h"

namespace oracle {

using checkpoint::Value;

int64_t Product(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

int64_t Member::numel() const { return Product(shape); }

TensorEntry& Draft::Entry(const std::string& name) {
  const auto [found, made] = index_of.try_emplace(name, tensors.size());
  if (made) {
    tensors.emplace_back();
    tensors.back().info.name = name;
  }
  return tensors[found->second];
}

const TensorEntry* Draft::Find(const std::string& name) const {
  const auto found = index_of.find(name);
  return found == index_of.end() ? nullptr : &tensors[found->second];
}

const Holder* Draft::WeightOf(const std::string& name, int32_t tensor) const {
  const TensorEntry* entry = Find(name);
  if (entry == nullptr) return nullptr;
  const auto weights = entry->holders.find(kWeight);
  if (weights == entry->holders.end()) return nullptr;
  for (const Holder& holder : weights->second) {
    if (holder.rank.tensor == tensor) return &holder;
  }
  return nullptr;
}

void Draft::AddHolder(const std::string& name, const std::string& state, Holder holder) {
  TensorEntry& entry = Entry(name);
  std::vector<Holder>& holders = entry.holders[state];
  const auto known = entry.info.states.find(state);
  const Place place = holder.whole ? holder.whole->place : Place{"", "", holder.rank};
  if (known != entry.info.states.end() && known->second != holder.dtype()) {
    Fault("type-contradiction", name + " " + state + " is stored in two types", {name}, place);
    return;
  }
  entry.info.states[state] = holder.dtype();
  for (const Holder& other : holders) {
    if (other.copy || holder.copy || other.rank.tensor != holder.rank.tensor ||
        other.rank.stage != holder.rank.stage)
      continue;
    if (!holder.duplicate)
      Fault("held-twice", name + " " + state + " is held twice by one rank", {name}, place);
    holder.duplicate = true;
  }
  holders.push_back(std::move(holder));
}

void Draft::Note(std::string kind, std::string text, std::vector<std::string> names, Place place) {
  summary.findings.push_back(
      {std::move(kind), std::move(text), std::move(names), false, std::move(place)});
}

void Draft::Fault(std::string kind, std::string text, std::vector<std::string> names, Place place) {
  summary.findings.push_back(
      {std::move(kind), std::move(text), std::move(names), true, std::move(place)});
}

namespace {

// Hyper-parameters as text, without the parts that are no hyper-parameters.
std::map<std::string, std::string> RenderHyperParameters(const Value& stored) {
  std::map<std::string, std::string> rendered;
  const checkpoint::Items* items = checkpoint::MappingItems(stored);
  if (items == nullptr) return rendered;
  for (const auto& [key, value] : *items) {
    const std::string name = checkpoint::AsString(key).value_or("");
    if (name.empty() || name == "params" || name == "step") continue;
    rendered[name] = checkpoint::Render(value, 200);
  }
  return rendered;
}

std::string Listed(const std::map<std::string, std::string>& rendered) {
  std::string text;
  for (const auto& [name, value] : rendered)
    text += (text.empty() ? "" : ", ") + name + "=" + value;
  return text;
}

}  // namespace

int32_t Draft::GroupIndex(const Value& stored, int32_t position,
                          std::map<std::string, int32_t>& seen, const Place& place) {
  const std::map<std::string, std::string> rendered = RenderHyperParameters(stored);
  // A group is known by its name or its weight decay, and by how many alike came before it on this
  // rank.
  std::string key = checkpoint::IsNone(stored) ? "position " + std::to_string(position) : "";
  for (const char* part : {"name", "weight_decay"}) {
    const auto found = rendered.find(part);
    if (found != rendered.end()) key += std::string(part) + "=" + found->second + " ";
  }
  key += "#" + std::to_string(seen[key]++);
  const auto known = std::find(group_keys.begin(), group_keys.end(), key);
  if (known != group_keys.end()) {
    const auto index = static_cast<int32_t>(known - group_keys.begin());
    const GroupInfo& group = summary.groups[static_cast<size_t>(index)];
    if (group.hyper_parameters != rendered) {
      Fault("hyper-parameters-differ",
            "group " + std::to_string(index) + " has {" + Listed(rendered) + "} here and {" +
                Listed(group.hyper_parameters) + "} on an earlier rank",
            {}, place);
    }
    return index;
  }
  group_keys.push_back(key);
  GroupInfo group;
  group.hyper_parameters = rendered;
  group.name = checkpoint::AsString(checkpoint::Get(stored, "name")).value_or("");
  group.stored = stored;
  summary.groups.push_back(std::move(group));
  return static_cast<int32_t>(group_keys.size()) - 1;
}

void Draft::AddGroupMember(int32_t group, const std::string& name) {
  if (Entry(name).info.group == group) return;
  std::vector<std::string>& members = summary.groups[static_cast<size_t>(group)].members;
  if (std::find(members.begin(), members.end(), name) == members.end()) members.push_back(name);
  TensorEntry& entry = Entry(name);
  if (entry.info.group < 0) entry.info.group = group;
}

std::optional<double> StepOf(const Value& value) {
  if (const auto number = checkpoint::AsNumber(value)) return number;
  if (!checkpoint::IsTensor(value)) return std::nullopt;
  auto view = checkpoint::DecodeTensor(value, "step");
  if (!view.ok() || view.value().numel() != 1 || !view.value().storage->file) return std::nullopt;
  auto numbers = checkpoint::ReadNumbers(view.value(), 1, "step");
  if (!numbers.ok() || numbers.value().size() != 1) return std::nullopt;
  return numbers.value()[0];
}

}  // namespace oracle
