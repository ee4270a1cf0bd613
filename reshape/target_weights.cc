// Weights in model files: module dictionaries of the plain layout, layer files of the pipeline
// layout.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "reshape/target_builder.h"

namespace reshape {
namespace {

using checkpoint::MakeDict;
using checkpoint::MakeOrderedDict;
using checkpoint::MakeString;
using checkpoint::TensorView;
using checkpoint::Value;

constexpr int kModuleDepthMax = 32;  // of nested dictionaries in a module; real ones have three

using Leaf = std::function<Value(const std::string& name)>;

// A copy of a nested module dictionary with each tensor replaced by what `leaf` gives for its name
// (keys joined by dots); null: kept.
Value MapModule(const Value& module, const std::string& prefix, const Leaf& leaf, int depth) {
  if (depth > kModuleDepthMax || checkpoint::MappingItems(module) == nullptr) return module;
  Value out = std::make_shared<checkpoint::Node>(*module);
  auto* dict = checkpoint::As<checkpoint::DictNode>(out);
  auto* object = checkpoint::As<checkpoint::ObjectNode>(out);
  if (dict == nullptr && object == nullptr) return module;
  for (auto& [key, value] : dict != nullptr ? dict->items : object->items) {
    const auto text = checkpoint::AsString(key);
    if (!text) continue;
    const std::string name = prefix.empty() ? *text : prefix + "." + *text;
    Value replaced =
        checkpoint::IsTensor(value) ? leaf(name) : MapModule(value, name, leaf, depth + 1);
    if (replaced != nullptr) value = std::move(replaced);
  }
  return out;
}

TensorView View(const RankTensor& local, const checkpoint::StoragePtr& storage, int64_t offset) {
  TensorView view;
  view.storage = storage;
  view.offset = offset;
  view.shape = local.shape;
  view.strides = checkpoint::ContiguousStrides(local.shape);
  return view;
}

// Index into RankLayout::tensors by name in the target, aliases included.
std::map<std::string, size_t> IndexByName(const TargetBuilder& builder, const RankLayout& rank) {
  std::map<std::string, size_t> by_name, by_canonical;
  for (size_t i = 0; i < rank.tensors.size(); ++i) {
    by_name.emplace(builder.NameOf(rank.tensors[i]), i);
    by_canonical.emplace(builder.Tensor(rank.tensors[i]).canonical, i);
  }
  for (size_t i = 0; i < builder.source.tensors.size(); ++i) {
    const LogicalTensor& tensor = builder.source.tensors[i];
    const auto owner =
        tensor.alias_of.empty() ? by_canonical.end() : by_canonical.find(tensor.alias_of);
    if (owner != by_canonical.end()) by_name.emplace(builder.names[i].name, owner->second);
  }
  return by_name;
}

// The module dictionary of a Megatron model: embeddings by submodule, the encoder flat, the output
// layer.
Value ComposeModule(const TargetBuilder& builder, const RankLayout& rank,
                    const RankWeights& weights) {
  Entries embedding, encoder, output;
  const auto add = [](Entries& parent, const std::string& submodule, const std::string& key,
                      Value tensor) {
    for (auto& [name, entry] : parent) {
      if (checkpoint::AsString(name) == submodule) {
        entry = checkpoint::WithEntry(entry, key, std::move(tensor));
        return;
      }
    }
    Entries one;
    Append(one, key, std::move(tensor));
    Append(parent, submodule, MakeOrderedDict(std::move(one)));
  };
  for (size_t i = 0; i < rank.tensors.size(); ++i) {
    const auto match =
        checkpoint::MatchTemplate("language_model.{rest}", builder.NameOf(rank.tensors[i]));
    const std::string rest = match ? match->rest : builder.NameOf(rank.tensors[i]);
    const size_t first = rest.find('.'), second = rest.find('.', first + 1);
    Value tensor = checkpoint::MakeTensor(weights.views[i]);
    if (rest.starts_with("embedding.") && second != std::string::npos) {
      add(embedding, rest.substr(first + 1, second - first - 1), rest.substr(second + 1),
          std::move(tensor));
    } else if (rest.starts_with("encoder.")) {
      Append(encoder, rest.substr(first + 1), std::move(tensor));
    } else {
      add(output, rest.substr(0, first), rest.substr(first + 1), std::move(tensor));
    }
  }
  Entries model, top;
  Append(model, "embedding", MakeDict(std::move(embedding)));
  Append(model, "encoder", MakeOrderedDict(std::move(encoder)));
  for (auto& entry : output) model.push_back(std::move(entry));
  Append(top, "language_model", MakeDict(std::move(model)));
  return MakeDict(std::move(top));
}

// First holders of the tensors of one layer on one tensor rank, in module order.
std::vector<const RankTensor*> LayerTensors(const TargetBuilder& builder, int64_t layer,
                                            int32_t tensor_rank) {
  std::vector<const RankTensor*> found;
  for (const RankLayout& rank : builder.ranks) {
    if (static_cast<int32_t>(rank.tensor_rank) != tensor_rank) continue;
    for (const RankTensor& local : rank.tensors) {
      const auto& layers = builder.names[static_cast<size_t>(local.tensor)].layers;
      if (!local.later_copy && !layers.empty() && layers.front() == layer) found.push_back(&local);
    }
  }
  return found;
}

std::string LayerFileName(const TargetBuilder& builder, int64_t layer, int32_t tensor_rank) {
  bool has_model_number = true;
  if (!builder.source.layer_files.empty())
    has_model_number = builder.source.layer_files.begin()->second.name.model_number >= 0;
  if (!has_model_number && builder.choice.topology.tensor_parallel_size == 1)
    return fmt::format("layer_{:02d}-model_states.pt", layer);
  return fmt::format("layer_{:02d}-model_{:02d}-model_states.pt", layer, tensor_rank);
}

// A layer file is the source's where nothing that it holds changes.
bool KeepsLayerFiles(const TargetBuilder& builder) {
  const bool same_rows =
      std::all_of(builder.source.tensors.begin(), builder.source.tensors.end(),
                  [&](const LogicalTensor& tensor) {
                    return tensor.parallel != checkpoint::Parallel::kVocabulary ||
                           tensor.shape[0] == builder.choice.vocabulary_rows;
                  });
  return !builder.source.layer_files.empty() &&
         !ChangesTensorParallel(builder.source, builder.choice) && same_rows &&
         builder.source.weight_dtype == builder.choice.dtype;
}

Value LayerTree(TargetBuilder& builder, int64_t layer, int32_t tensor_rank) {
  const std::vector<const RankTensor*> locals = LayerTensors(builder, layer, tensor_rank);
  const auto tensor = [&](const RankTensor& local) {
    return checkpoint::MakeTensor(OwnTensor(builder, local, kWeight, true));
  };
  const int32_t source_rank = tensor_rank * builder.source.topology.tensor_parallel_size /
                              builder.choice.topology.tensor_parallel_size;
  const auto from = builder.source.layer_files.find({layer, source_rank});
  if (from != builder.source.layer_files.end()) {
    return MapModule(
        from->second.torch.root, "",
        [&](const std::string& key) -> Value {
          for (const RankTensor* local : locals) {
            if (builder.names[static_cast<size_t>(local->tensor)].layer_key == key)
              return tensor(*local);
          }
          return nullptr;
        },
        0);
  }
  Entries entries;
  for (const RankTensor* local : locals)
    Append(entries, builder.names[static_cast<size_t>(local->tensor)].layer_key, tensor(*local));
  return MakeOrderedDict(std::move(entries));
}

}  // namespace

RankWeights PlainWeights(TargetBuilder& builder, const RankLayout& rank) {
  RankWeights weights;
  weights.views.resize(rank.tensors.size());
  std::vector<bool> done(rank.tensors.size(), false);
  const bool flat = builder.partitioned() || builder.choice.wrapper == Wrapper::kFused;
  for (const FlatGroup& group : rank.groups) {
    if (!flat) break;
    const StateChoice first =
        ChooseState(builder, rank.tensors[group.members.front().rank_tensor], kWeight);
    const auto storage = checkpoint::MakeStorage(
        first.target_dtype, group.form.partition_numel * group.form.partition_count);
    for (const FlatMember& member : group.members) {
      const RankTensor& local = rank.tensors[member.rank_tensor];
      weights.views[member.rank_tensor] = View(local, storage, member.begin);
      done[member.rank_tensor] = true;
      Place(builder, local, ChooseState(builder, local, kWeight),
            {storage, 0, local.numel(), member.begin});
    }
  }
  for (size_t i = 0; i < rank.tensors.size(); ++i) {
    if (!done[i]) weights.views[i] = OwnTensor(builder, rank.tensors[i], kWeight, true);
  }
  return weights;
}

Value ModuleTree(const TargetBuilder& builder, const RankLayout& rank, const RankWeights& weights) {
  if (CrossesLayouts(builder.source, builder.choice)) return ComposeModule(builder, rank, weights);
  const std::map<std::string, size_t> by_name = IndexByName(builder, rank);
  // One Value a tensor: aliases stay two views of one storage, as they were.
  const Value module =
      checkpoint::Get(builder.source.model_files[builder.SourceRank(rank)].torch.root, "module");
  return MapModule(
      module, "",
      [&](const std::string& name) -> Value {
        const auto found = by_name.find(name);
        return found == by_name.end() ? nullptr
                                      : checkpoint::MakeTensor(weights.views[found->second]);
      },
      0);
}

void AddLayerFiles(TargetBuilder& builder) {
  std::set<int64_t> layers;
  for (const auto& [position, file] : builder.source.layer_files) layers.insert(position.first);
  if (layers.empty()) {
    for (const TargetName& name : builder.names) {
      if (!name.layers.empty()) layers.insert(name.layers.front());
    }
  }
  const bool keeps = KeepsLayerFiles(builder);
  for (const int64_t layer : layers) {
    for (int32_t tensor_rank = 0; tensor_rank < builder.choice.topology.tensor_parallel_size;
         ++tensor_rank) {
      TargetFile file;
      file.path = builder.PathOf(LayerFileName(builder, layer, tensor_rank));
      const auto from = builder.source.layer_files.find({layer, tensor_rank});
      if (keeps && from != builder.source.layer_files.end()) {
        file.copied_from = from->second.name.path;
      } else {
        file.root = LayerTree(builder, layer, tensor_rank);
      }
      builder.target.files.push_back(std::move(file));
    }
  }
}

}  // namespace reshape
