// The module of each model-parallel rank: names, shapes, where the weights lie; buffers and tied
// names.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "checkpoint/tree.h"
#include "reshape/module_names.h"
#include "reshape/naming.h"
#include "reshape/source.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::Get;
using checkpoint::Result;
using checkpoint::Status;
using checkpoint::TensorView;
using checkpoint::Value;

std::set<std::string> BufferNames(const Value& model_root) {
  std::set<std::string> names;
  if (const auto* items = checkpoint::SequenceItems(Get(model_root, "buffer_names"))) {
    for (const Value& item : *items) {
      if (auto name = checkpoint::AsString(item)) names.insert(std::move(*name));
    }
  }
  return names;
}

Status AddTensor(LocalTensor tensor, ModelRank& rank, const std::string& where) {
  const auto [position, inserted] = rank.by_name.emplace(tensor.name, rank.tensors.size());
  if (!inserted) {
    return MakeError(ErrorCode::kInconsistent, "two tensors named " + tensor.name, "one", where,
                     "");
  }
  rank.tensors.push_back(std::move(tensor));
  return checkpoint::Done{};
}

// Names that the optimizer knows on this rank.
std::set<std::string> MemberNames(const ModelRank& rank) {
  std::set<std::string> names;
  for (const LocalGroup& group : rank.groups) {
    for (const Member& member : group.members) names.insert(member.name);
  }
  return names;
}

// Tied names of one rank: as shared_params says, and every pair of equal views of one storage.
void MarkAliases(const Value& model_root, ModelRank& rank) {
  if (const auto* items = checkpoint::MappingItems(Get(model_root, "shared_params"))) {
    for (const auto& [alias_value, owner_value] : *items) {
      const auto alias = checkpoint::AsString(alias_value),
                 owner = checkpoint::AsString(owner_value);
      if (!alias || !owner || *alias == *owner) continue;
      const auto position = rank.by_name.find(*alias);
      if (position != rank.by_name.end() && rank.by_name.contains(*owner))
        rank.tensors[position->second].alias_of = *owner;
    }
  }
  const std::set<std::string> members = MemberNames(rank);
  std::map<
      std::tuple<const checkpoint::Storage*, int64_t, std::vector<int64_t>, std::vector<int64_t>>,
      size_t>
      owners;
  for (size_t i = 0; i < rank.tensors.size(); ++i) {
    LocalTensor& tensor = rank.tensors[i];
    if (tensor.view.numel() == 0 || !tensor.alias_of.empty() || tensor.view.storage == nullptr)
      continue;
    const auto key = std::tuple{static_cast<const checkpoint::Storage*>(tensor.view.storage.get()),
                                tensor.view.offset, tensor.view.shape, tensor.view.strides};
    const auto [position, inserted] = owners.emplace(key, i);
    if (inserted) continue;
    LocalTensor& first = rank.tensors[position->second];
    // The owner is the name that the optimizer knows, else the first one.
    if (members.contains(tensor.name) && !members.contains(first.name)) {
      first.alias_of = tensor.name;
      position->second = i;
    } else {
      tensor.alias_of = first.name;
    }
  }
}

// Layers of the files and, of each, the elements by key.
std::map<int64_t, std::map<std::string, int64_t>> LayerKeys(const Source& source) {
  std::map<int64_t, std::map<std::string, int64_t>> layers;
  for (const auto& [position, file] : source.inventory.layer_files) {
    if (position.second != 0) continue;
    auto& keys = layers[position.first];
    for (const NamedValue& item : FlattenModule(file.torch.root)) {
      const auto view = checkpoint::DecodeTensor(item.value, item.name);
      keys[item.name] = view.ok() ? view.value().numel() : -1;
    }
  }
  return layers;
}

struct NamesOfStages {
  std::map<int64_t, int32_t> stage_of_layer;
  std::map<std::string, std::set<std::string>> keys_of_layer;  // "5" -> named keys
  std::map<std::string, std::map<std::string, int64_t>> tied;  // key -> rest -> numel
  std::map<std::string, std::set<int32_t>> tied_stages;
};

Status PlaceLayer(int64_t layer, int32_t stage, NamesOfStages& names) {
  const auto [position, inserted] = names.stage_of_layer.emplace(layer, stage);
  if (!inserted && position->second != stage) {
    return MakeError(ErrorCode::kInconsistent,
                     fmt::format("layer {} on stages {} and {}", layer, position->second, stage),
                     "each layer on one stage", "param_shapes and buffer_names of the model files",
                     "Model files of two runs are mixed.");
  }
  return checkpoint::Done{};
}

Result<NamesOfStages> CollectNames(const Source& source) {
  NamesOfStages names;
  for (const ModelRank& rank : source.ranks) {
    if (rank.tensor_rank != TensorRank{0}) continue;
    const auto stage = static_cast<int32_t>(rank.stage);
    for (const LocalGroup& group : rank.groups) {
      for (const Member& member : group.members) {
        const auto parts = checkpoint::SplitPipelineName(member.name);
        if (!parts) {
          return MakeError(ErrorCode::kInconsistent, "parameter " + member.name,
                           "'<layer>.<name>' or 'tied_modules.<key>.<name>'",
                           source.ModelFileName(rank),
                           "Layer files are there, but the names are not those of a pipeline.");
        }
        if (parts->layer) {
          CK_DO(PlaceLayer(*parts->layer, stage, names));
          names.keys_of_layer[std::to_string(*parts->layer)].insert(parts->rest);
        } else {
          names.tied[parts->tied_key][parts->rest] = member.numel;
          names.tied_stages[parts->tied_key].insert(stage);
        }
      }
    }
    for (const std::string& buffer : BufferNames(source.ModelRoot(rank))) {
      const auto parts = checkpoint::SplitPipelineName(buffer);
      if (parts && parts->layer) CK_DO(PlaceLayer(*parts->layer, stage, names));
    }
  }
  return names;
}

// The layer files that hold a tied module: all of its names under keys that no parameter of that
// layer's own uses.
std::vector<int64_t> TiedLayers(const std::map<std::string, int64_t>& rests,
                                const NamesOfStages& names,
                                const std::map<int64_t, std::map<std::string, int64_t>>& layers) {
  std::vector<int64_t> found;
  for (const auto& [layer, keys] : layers) {
    const auto own = names.keys_of_layer.find(std::to_string(layer));
    if (own != names.keys_of_layer.end()) continue;
    const bool holds =
        std::all_of(rests.begin(), rests.end(), [&, &file_keys = keys](const auto& rest) {
          const auto key = file_keys.find(rest.first);
          return key != file_keys.end() && key->second == rest.second;
        });
    if (holds && (found.empty() || layers.at(found.front()) == keys)) found.push_back(layer);
  }
  return found;
}

// Boundaries from the layers of each stage; the last one lies behind every layer and behind a tied
// last use without a file.
std::vector<int64_t> MakeCuts(const std::map<int64_t, int32_t>& stage_of_layer, int32_t stages,
                              int64_t end) {
  std::vector<int64_t> cuts(static_cast<size_t>(stages) + 1, -1);
  for (const auto& [layer, stage] : stage_of_layer) {
    int64_t& cut = cuts[static_cast<size_t>(stage)];
    if (cut < 0) cut = layer;
  }
  cuts.back() = end;
  for (size_t i = cuts.size() - 1; i-- > 0;) {
    if (cuts[i] < 0) cuts[i] = cuts[i + 1];
  }
  cuts.front() = 0;
  return cuts;
}

}  // namespace

Status ReadPlainModules(Source& source) {
  for (ModelRank& rank : source.ranks) {
    const Value& root = source.ModelRoot(rank);
    const std::set<std::string> buffers = BufferNames(root);
    rank.tensors.clear();
    rank.by_name.clear();
    for (const NamedValue& item : FlattenModule(Get(root, "module"))) {
      LocalTensor tensor;
      tensor.name = item.name;
      CK_TRY(tensor.view,
             checkpoint::DecodeTensor(item.value, source.ModelFileName(rank) + " " + item.name));
      tensor.buffer =
          buffers.contains(item.name) || !checkpoint::IsFloating(tensor.view.storage->dtype);
      CK_DO(AddTensor(std::move(tensor), rank, source.ModelFileName(rank)));
    }
    MarkAliases(root, rank);
  }
  return checkpoint::Done{};
}

Result<StageCuts> StageCutsFromNames(const Source& source) {
  CK_TRY(NamesOfStages names, CollectNames(source));
  const auto layers = LayerKeys(source);
  std::vector<std::string> missing;
  if (!source.inventory.folder.universal) {
    for (const auto& [layer, stage] : names.stage_of_layer) {
      if (!layers.contains(layer))
        missing.push_back(fmt::format("layer_{:02d}-*model_states.pt", layer));
    }
  }
  StageCuts result;
  int64_t end = 0;
  for (const auto& [key, rests] : names.tied) {
    TiedKey tied;
    tied.layers = TiedLayers(rests, names, layers);
    tied.stages.assign(names.tied_stages[key].begin(), names.tied_stages[key].end());
    if (tied.layers.empty() && !source.inventory.folder.universal) {
      missing.push_back("the layer file of tied_modules." + key);
    }
    result.tied.emplace(key, std::move(tied));
  }
  if (!missing.empty()) {
    return MakeError(ErrorCode::kMissingFile, "no " + JoinNames(missing, 20),
                     "the layer files of every parameter that param_shapes names",
                     source.inventory.folder.step_folder.string(),
                     "Copy the missing files from where the checkpoint was written.");
  }
  // Layers without parameters of their own (all frozen) follow the layer before them.
  std::set<int64_t> tied_layers;
  for (const auto& [key, tied] : result.tied)
    tied_layers.insert(tied.layers.begin(), tied.layers.end());
  int32_t stage = 0;
  for (const auto& [layer, keys] : layers) {
    end = std::max(end, layer + 1);
    if (tied_layers.contains(layer)) continue;
    const auto known = names.stage_of_layer.emplace(layer, stage);
    stage = known.first->second;
  }
  if (!names.stage_of_layer.empty()) end = std::max(end, names.stage_of_layer.rbegin()->first + 1);
  result.cuts =
      MakeCuts(names.stage_of_layer, source.inventory.topology.pipeline_parallel_size, end);
  return result;
}

namespace {

Status AddLayer(int64_t layer, const std::string& prefix, bool tied_copy, ModelRank& rank,
                const Source& source) {
  const auto& file =
      source.inventory.layer_files.at({layer, static_cast<int32_t>(rank.tensor_rank)});
  const std::set<std::string> buffers = BufferNames(source.ModelRoot(rank));
  for (const NamedValue& item : FlattenModule(file.torch.root)) {
    LocalTensor tensor;
    tensor.name = prefix + item.name;
    CK_TRY(tensor.view, checkpoint::DecodeTensor(item.value, file.name.name + " " + item.name));
    tensor.buffer =
        buffers.contains(tensor.name) || !checkpoint::IsFloating(tensor.view.storage->dtype);
    tensor.layer = layer;
    tensor.tied_copy = tied_copy;
    CK_DO(AddTensor(std::move(tensor), rank, file.name.name));
  }
  return checkpoint::Done{};
}

// Stages by their boundaries may leave the last use of a tied layer without a number of its own: it
// gets the one behind the last layer.
int64_t EndOfLayers(const StageCuts& cuts, const Source& source) {
  int64_t end = cuts.cuts.back();
  const auto& numbering = source.inventory.rules.numbering;
  if (numbering && source.builtin_rules) {
    return std::max(end, numbering->first_layer + source.inventory.transformer_layers +
                             numbering->head_after + 1);
  }
  for (const auto& [key, tied] : cuts.tied) {
    if (tied.stages.size() > 1 && tied.layers.size() < 2) ++end;
  }
  return end;
}

}  // namespace

Status ReadPipelineModules(const StageCuts& cuts, Source& source) {
  Inventory& inventory = source.inventory;
  inventory.cuts = cuts.cuts;
  inventory.cuts.back() = EndOfLayers(cuts, source);
  source.tied = cuts.tied;
  if (inventory.folder.universal) return checkpoint::Done{};
  std::vector<std::pair<int64_t, std::string>> tied_order;
  std::set<int64_t> tied_layers;
  for (const auto& [key, tied] : cuts.tied) {
    tied_order.emplace_back(tied.layers.front(), key);
    tied_layers.insert(tied.layers.begin(), tied.layers.end());
  }
  std::sort(tied_order.begin(), tied_order.end());
  for (ModelRank& rank : source.ranks) {
    const auto stage = static_cast<int32_t>(rank.stage);
    rank.tensors.clear();
    rank.by_name.clear();
    for (const auto& [layer, key] : tied_order) {
      const TiedKey& tied = cuts.tied.at(key);
      if (std::find(tied.stages.begin(), tied.stages.end(), stage) == tied.stages.end()) continue;
      CK_DO(
          AddLayer(layer, "tied_modules." + key + ".", stage != tied.stages.front(), rank, source));
    }
    const auto begin =
        inventory.layer_files.lower_bound({cuts.cuts[static_cast<size_t>(stage)], 0});
    const auto end =
        inventory.layer_files.lower_bound({cuts.cuts[static_cast<size_t>(stage) + 1], 0});
    for (auto file = begin; file != end; ++file) {
      if (file->first.second != static_cast<int32_t>(rank.tensor_rank) ||
          tied_layers.contains(file->first.first))
        continue;
      CK_DO(AddLayer(file->first.first, std::to_string(file->first.first) + ".", false, rank,
                     source));
    }
  }
  return checkpoint::Done{};
}

}  // namespace reshape
