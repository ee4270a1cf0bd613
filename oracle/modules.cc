#include "oracle/modules.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "checkpoint/limits.h"
#include "checkpoint/tree.h"

namespace oracle {

using checkpoint::Result;
using checkpoint::Status;
using checkpoint::Value;

namespace {

// Leaves of nested mappings in order, names joined with '.'.
void Flatten(const Value& mapping, const std::string& prefix, int64_t depth,
             std::vector<std::pair<std::string, Value>>& leaves) {
  const checkpoint::Items* items = checkpoint::MappingItems(mapping);
  if (items == nullptr || depth > checkpoint::kPickleDepthMax) return;
  for (const auto& [key, value] : *items) {
    const auto name = checkpoint::AsString(key);
    if (!name) continue;
    if (checkpoint::IsTensor(value)) {
      leaves.emplace_back(prefix + *name, value);
    } else if (checkpoint::MappingItems(value) != nullptr) {
      Flatten(value, prefix + *name + ".", depth + 1, leaves);
    }
  }
}

struct FileModule {
  size_t file = 0;
  int64_t layer = -1;
  int32_t tensor = 0;
  Value mapping;
};

Status AppendFile(Draft& draft, const FileModule& module, ModuleList& list) {
  std::vector<std::pair<std::string, Value>> leaves;
  Flatten(module.mapping, "", 0, leaves);
  for (const auto& [name, value] : leaves) {
    CK_TRY(Stored stored, draft.source.TensorAt(module.file, {module.tensor, 0, 0}, value));
    list.tensors.push_back({name, module.layer, module.tensor, std::move(stored)});
  }
  return checkpoint::Done{};
}

}  // namespace

Result<ModuleList> ListModules(Draft& draft) {
  ModuleList list;
  const Source& source = draft.source;
  for (const auto& [key, file] : source.layers) {
    if (list.layers.empty() || list.layers.back() != key.first) list.layers.push_back(key.first);
    CK_DO(AppendFile(draft, {file, key.first, static_cast<int32_t>(key.second), source.Root(file)},
                     list));
  }
  if (!source.pipelined) {
    for (const auto& [number, file] : source.model) {
      CK_DO(AppendFile(
          draft,
          {file, -1, static_cast<int32_t>(number), checkpoint::Get(source.Root(file), "module")},
          list));
    }
  }
  return list;
}

namespace {

void AddShapes(const Value& shapes, KnownNames& known) {
  const checkpoint::Items* items = checkpoint::MappingItems(shapes);
  if (items == nullptr) return;
  for (const auto& [key, value] : *items) {
    const auto name = checkpoint::AsString(key);
    if (name) known.shapes[*name] = checkpoint::AsIntList(value).value_or(std::vector<int64_t>{-1});
  }
}

void AddMappedNames(const Value& optimizer, KnownNames& known) {
  const Value groups = checkpoint::Get(optimizer, "param_slice_mappings");
  const std::vector<Value>* maps = checkpoint::SequenceItems(groups);
  if (maps == nullptr) return;
  for (const Value& map : *maps) {
    const checkpoint::Items* items = checkpoint::MappingItems(map);
    if (items == nullptr) continue;
    for (const auto& [key, value] : *items) {
      if (const auto name = checkpoint::AsString(key))
        known.shapes.try_emplace(*name, std::vector<int64_t>{-1});
    }
  }
}

using LayerTensors = std::map<std::string, const checkpoint::TensorView*>;

// Two files of one tied layer: the same tensors, equal but for damage.
bool SameLayer(const LayerTensors& first, const LayerTensors& second) {
  if (first.size() != second.size()) return false;
  for (const auto& [key, view] : first) {
    const auto other = second.find(key);
    if (other == second.end() || other->second->shape != view->shape ||
        other->second->storage->dtype != view->storage->dtype) {
      return false;
    }
    const int64_t equal = TensorOf(*view).eq(TensorOf(*other->second)).sum().item<int64_t>();
    if (2 * equal < view->numel()) return false;
  }
  return true;
}

}  // namespace

KnownNames ListKnownNames(const Source& source) {
  KnownNames known;
  for (const auto& [number, file] : source.model) {
    const Value shapes = checkpoint::Get(source.Root(file), "param_shapes");
    if (const std::vector<Value>* groups = checkpoint::SequenceItems(shapes)) {
      for (const Value& group : *groups) AddShapes(group, known);
    }
    AddShapes(checkpoint::Get(source.Root(file), "frozen_param_shapes"), known);
    AddMappedNames(checkpoint::Get(source.Root(file), "optimizer"), known);
  }
  for (const auto& [key, file] : source.optimizer) {
    AddMappedNames(checkpoint::Get(source.Root(file), "optimizer_state_dict"), known);
  }
  for (const std::string& name : source.folder.universal_parameters)
    known.shapes.try_emplace(name, std::vector<int64_t>{-1});
  return known;
}

std::map<int64_t, std::string> TiedLayersByName(const ModuleList& modules,
                                                const KnownNames& known) {
  constexpr char kPrefix[] = "tied_modules.";
  // Tied names as module key -> parameter keys.
  std::map<std::string, std::set<std::string>> tied_modules;
  for (const auto& [name, shape] : known.shapes) {
    if (name.rfind(kPrefix, 0) != 0) continue;
    const size_t dot = name.find('.', sizeof(kPrefix) - 1);
    if (dot == std::string::npos) continue;
    tied_modules[name.substr(sizeof(kPrefix) - 1, dot - sizeof(kPrefix) + 1)].insert(
        name.substr(dot + 1));
  }
  // The layer that has all parameters of the tied module, in their shapes, under none of its own
  // names. A tied layer without a forward function of its own is saved once more where it is used.
  std::map<int64_t, std::string> tied;
  std::map<int64_t, LayerTensors> layers;
  std::set<int64_t> own_names;
  for (const ModuleTensor& tensor : modules.tensors) {
    if (tensor.layer < 0) continue;
    layers[tensor.layer].try_emplace(tensor.key, &tensor.stored.view);
    if (known.shapes.count(std::to_string(tensor.layer) + "." + tensor.key) > 0)
      own_names.insert(tensor.layer);
  }
  for (const auto& [module, keys] : tied_modules) {
    const LayerTensors* first = nullptr;
    for (const auto& [layer, tensors] : layers) {
      if (own_names.count(layer) > 0 || tied.count(layer) > 0) continue;
      const bool all = std::all_of(keys.begin(), keys.end(), [&](const std::string& key) {
        const auto found = tensors.find(key);
        if (found == tensors.end()) return false;
        const std::vector<int64_t>& shape = known.shapes.at(kPrefix + module + "." + key);
        return shape == std::vector<int64_t>{-1} || shape == found->second->shape;
      });
      if (!all || (first != nullptr && !SameLayer(*first, tensors))) continue;
      tied[layer] = module;
      if (first == nullptr) first = &tensors;
    }
  }
  return tied;
}

namespace {

std::set<std::string> BufferNames(const Source& source) {
  std::set<std::string> names;
  for (const auto& [number, file] : source.model) {
    const Value list = checkpoint::Get(source.Root(file), "buffer_names");
    const std::vector<Value>* items = checkpoint::SequenceItems(list);
    if (items == nullptr) continue;
    for (const Value& item : *items) {
      if (const auto name = checkpoint::AsString(item)) names.insert(*name);
    }
  }
  return names;
}

// Declared aliases of the model files: alias -> name.
std::map<std::string, std::string> SharedParameters(const Source& source) {
  std::map<std::string, std::string> shared;
  for (const auto& [number, file] : source.model) {
    const Value declared = checkpoint::Get(source.Root(file), "shared_params");
    const checkpoint::Items* items = checkpoint::MappingItems(declared);
    if (items == nullptr) continue;
    for (const auto& [key, value] : *items) {
      const auto alias = checkpoint::AsString(key), name = checkpoint::AsString(value);
      if (alias && name && *alias != *name) shared[*alias] = *name;
    }
  }
  return shared;
}

std::string NameOf(const ModuleTensor& tensor, const std::map<int64_t, std::string>& tied) {
  if (tensor.layer < 0) return tensor.key;
  const auto module = tied.find(tensor.layer);
  if (module == tied.end()) return std::to_string(tensor.layer) + "." + tensor.key;
  return "tied_modules." + module->second + "." + tensor.key;
}

// Two names of one view of one storage are one parameter: the first in module order is the name,
// later ones are aliases.
class AliasFinder {
 public:
  std::string Find(const ModuleTensor& tensor, const std::string& name) {
    if (tensor.stored.view.numel() == 0) return "";
    const auto& view = tensor.stored.view;
    const auto key = std::make_tuple(view.storage.get(), view.offset, view.shape, view.strides);
    const auto [found, made] = names_.try_emplace(key, name);
    return made || found->second == name ? "" : found->second;
  }

 private:
  std::map<
      std::tuple<const checkpoint::Storage*, int64_t, std::vector<int64_t>, std::vector<int64_t>>,
      std::string>
      names_;
};

}  // namespace

Status AddModules(Draft& draft, const ModuleList& modules,
                  const std::map<int64_t, std::string>& tied) {
  const std::set<std::string> buffers = BufferNames(draft.source);
  const std::map<std::string, std::string> shared = SharedParameters(draft.source);
  AliasFinder aliases;
  for (const ModuleTensor& tensor : modules.tensors) {
    const std::string name = NameOf(tensor, tied);
    TensorEntry& entry = draft.Entry(name);
    if (entry.layer < 0) entry.layer = tensor.layer;
    std::string alias = aliases.Find(tensor, name);
    const auto declared = shared.find(name);
    const bool copied =
        alias.empty() && declared != shared.end() && draft.Find(declared->second) != nullptr;
    if (copied) alias = declared->second;
    entry.info.alias_of = alias;
    if (!alias.empty() && !copied) continue;
    const std::string own =
        tensor.layer < 0 ? name : std::to_string(tensor.layer) + "." + tensor.key;
    // Trainable ones are found by their optimizer group later.
    entry.info.role = buffers.count(name) + buffers.count(own) > 0 ? Role::kBuffer : Role::kFrozen;
    Holder holder;
    holder.copy =
        draft.WeightOf(name, tensor.tensor) != nullptr;  // the second file of a tied layer
    holder.rank = {tensor.tensor, 0, 0};
    holder.shape = tensor.stored.view.shape;
    holder.whole = tensor.stored;
    if (copied) {
      // A tied weight that was cloned when it was saved: a second copy that must agree.
      holder.copy = true;
      draft.AddHolder(alias, kWeight, std::move(holder));
      continue;
    }
    if (!tensor.stored.view.IsContiguous()) entry.info.weight_strides = tensor.stored.view.strides;
    draft.AddHolder(name, kWeight, std::move(holder));
  }
  return checkpoint::Done{};
}

}  // namespace oracle
