// Which files there are, whether they are all there, and their trees: topology and layout of the
// source.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoint/limits.h"
#include "checkpoint/tree.h"
#include "reshape/source.h"

namespace reshape {
namespace {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::FileKind;
using checkpoint::FileName;
using checkpoint::Get;
using checkpoint::GetPath;
using checkpoint::IsNone;
using checkpoint::Result;
using checkpoint::Status;
using checkpoint::Value;

constexpr size_t kNamesInMessage = 20;
constexpr const char* kFrameworkPrefixes[] = {"mp_rank_", "layer_", "zero_pp_rank_",
                                              "bf16_zero_pp_rank_", "fp16_zero_pp_rank_"};

struct FoundFiles {
  std::map<int64_t, FileName> model;                      // by mp_index number
  std::map<std::pair<int64_t, int64_t>, FileName> optim;  // by (mp_index, zero number)
  std::map<std::pair<int64_t, int64_t>, FileName>
      layers;  // by (layer, model number; 0 where the name has none)
  bool layers_have_model_number = false;
};

Error Twice(const FileName& first, const FileName& second) {
  return MakeError(ErrorCode::kInconsistent, first.name + " and " + second.name,
                   "one file for each rank", second.path.string(),
                   "Remove the file that does not belong to this step.");
}

template <typename Key>
Status Insert(std::map<Key, FileName>& files, Key key, const FileName& name) {
  const auto [position, inserted] = files.emplace(key, name);
  if (!inserted) return Twice(position->second, name);
  return checkpoint::Done{};
}

// A name like that of a rank or layer whose numbers are none: a file of somebody else, or a damaged
// name. Other names (backups, notes) are left alone.
Status CheckOddName(const FileName& name) {
  const bool begins =
      std::any_of(std::begin(kFrameworkPrefixes), std::end(kFrameworkPrefixes),
                  [&](const char* prefix) { return name.name.starts_with(prefix); });
  if (!begins || !name.name.ends_with("_states.pt")) return checkpoint::Done{};
  return MakeError(ErrorCode::kInconsistent, name.name,
                   fmt::format("rank and layer numbers up to {}", checkpoint::kRanksMax),
                   name.path.string(), "Remove the file that does not belong to this step.");
}

Result<FoundFiles> SortFiles(const checkpoint::StepFolder& folder) {
  FoundFiles found;
  for (const FileName& name : folder.files) {
    switch (name.kind) {
      case FileKind::kModelStates:
        CK_DO(Insert<int64_t>(found.model, name.mp_number, name));
        break;
      case FileKind::kOptimStates:
        CK_DO((Insert<std::pair<int64_t, int64_t>>(found.optim, {name.mp_number, name.zero_number},
                                                   name)));
        break;
      case FileKind::kLayer:
        found.layers_have_model_number |= name.model_number >= 0;
        CK_DO((Insert<std::pair<int64_t, int64_t>>(
            found.layers, {name.layer_number, std::max<int64_t>(name.model_number, 0)}, name)));
        break;
      case FileKind::kZeroModelStates:
        return MakeError(ErrorCode::kUnsupported, name.name + " (ZeRO stage 3)",
                         "ZeRO stage 0, 1 or 2", name.path.string(),
                         "ZeRO stage 3 is not supported yet.");
      case FileKind::kExpert:
      case FileKind::kExpertOptim:
        return MakeError(ErrorCode::kUnsupported, name.name + " (mixture of experts)",
                         "a model without experts", name.path.string(),
                         "Mixtures of experts are not supported yet.");
      case FileKind::kUnknown:
        CK_DO(CheckOddName(name));
        break;
      case FileKind::kKnownOther:
        break;
    }
  }
  return found;
}

Result<SourceFile> OpenSourceFile(const FileName& name) {
  CK_TRY(auto torch, checkpoint::OpenTorchFile(name.path));
  return SourceFile{name, std::move(torch)};
}

// What one model file says about the topology; -1 where it says nothing.
struct Recorded {
  int64_t tensor = -1, pipeline = -1, data = -1, model_parallel = -1;
};

int64_t IntOr(const Value& value, int64_t fallback) {
  const auto number = checkpoint::AsInt(value);
  return number ? *number : fallback;
}

Result<Recorded> ReadRecorded(const SourceFile& file) {
  const Value& root = file.torch.root;
  Recorded recorded;
  const Value dimensions = Get(root, "checkpoint_parallel_dimensions");
  const Value args = Get(root, "args");
  recorded.tensor = IntOr(Get(dimensions, "tp_degree"), -1);
  recorded.pipeline = IntOr(Get(dimensions, "pp_degree"), -1);
  const int64_t args_tensor = IntOr(Get(args, "tensor_model_parallel_size"), -1);
  const int64_t args_pipeline = IntOr(Get(args, "pipeline_model_parallel_size"), -1);
  const bool plain = !IsNone(Get(root, "module"));
  if (recorded.tensor > 0 && args_tensor > 0 && recorded.tensor != args_tensor) {
    return MakeError(ErrorCode::kInconsistent,
                     fmt::format("tp_degree {} and args.tensor_model_parallel_size {}",
                                 recorded.tensor, args_tensor),
                     "the same tensor parallel size", file.name.name,
                     "One of the two was edited; restore the file.");
  }
  // Without a pipeline the framework is started with size 1 or left at its default: only the file
  // layout counts there.
  if (!plain && recorded.pipeline > 0 && args_pipeline > 0 && recorded.pipeline != args_pipeline) {
    return MakeError(ErrorCode::kInconsistent,
                     fmt::format("pp_degree {} and args.pipeline_model_parallel_size {}",
                                 recorded.pipeline, args_pipeline),
                     "the same pipeline parallel size", file.name.name,
                     "One of the two was edited; restore the file.");
  }
  if (recorded.tensor <= 0) recorded.tensor = args_tensor;
  if (recorded.pipeline <= 0) recorded.pipeline = plain ? 1 : args_pipeline;
  recorded.data = IntOr(Get(root, "dp_world_size"), -1);
  recorded.model_parallel = IntOr(Get(root, "mp_world_size"), -1);
  for (const int64_t number :
       {recorded.tensor, recorded.pipeline, recorded.data, recorded.model_parallel}) {
    if (number > checkpoint::kRanksMax) {
      return MakeError(ErrorCode::kLimitExceeded, fmt::format("a parallel size of {}", number),
                       fmt::format("at most {}", checkpoint::kRanksMax), file.name.name, "");
    }
  }
  return recorded;
}

Error Missing(const checkpoint::StepFolder& folder, std::vector<std::string> names,
              std::string expected) {
  return MakeError(ErrorCode::kMissingFile, "no " + JoinNames(names, kNamesInMessage),
                   std::move(expected), folder.step_folder.string(),
                   "Copy the missing files from where the checkpoint was written.");
}

std::string ModelName(int64_t mp_index) {
  return fmt::format("mp_rank_{:02d}_model_states.pt", mp_index);
}

Error MissingModel(const checkpoint::StepFolder& folder, const FoundFiles& found, int64_t count) {
  std::vector<std::string> names;
  for (int64_t mp_index = 0; mp_index < count && names.size() < kMissingNamesMax; ++mp_index) {
    if (!found.model.contains(mp_index)) names.push_back(ModelName(mp_index));
  }
  return Missing(folder, std::move(names), fmt::format("{} model files", count));
}

// Sizes of the model-parallel grid: as recorded, else as the file names say.
Status SetModelParallelSizes(const FoundFiles& found, const Recorded& recorded,
                             Inventory& inventory) {
  int64_t layer_ranks = 0;
  for (const auto& [key, name] : found.layers) layer_ranks = std::max(layer_ranks, key.second + 1);
  const int64_t files = found.model.rbegin()->first + 1;
  // A lower record than there are files comes from a tool that stores the tensor parallel size
  // under this key.
  const int64_t all = std::max(recorded.model_parallel, files);
  int64_t tensor = recorded.tensor, pipeline = recorded.pipeline;
  if (tensor <= 0) {
    tensor =
        layer_ranks > 0 ? layer_ranks : std::max<int64_t>(all / std::max<int64_t>(pipeline, 1), 1);
  }
  if (pipeline <= 0) pipeline = std::max<int64_t>(all / tensor, 1);
  if (tensor > checkpoint::kRanksMax / pipeline || files > checkpoint::kRanksMax) {
    return MakeError(ErrorCode::kLimitExceeded, fmt::format("TP {} x PP {}", tensor, pipeline),
                     fmt::format("at most {} ranks", checkpoint::kRanksMax),
                     inventory.folder.step_folder.string(), "");
  }
  if (layer_ranks > tensor) {
    return MakeError(
        ErrorCode::kInconsistent, fmt::format("layer files of {} tensor ranks", layer_ranks),
        fmt::format("{}, the tensor parallel size that the model files record", tensor),
        inventory.folder.step_folder.string(), "Files of two checkpoints are mixed in one folder.");
  }
  if (files > tensor * pipeline) {
    return MakeError(
        ErrorCode::kInconsistent, found.model.rbegin()->second.name,
        fmt::format("{} model files for TP {} x PP {}", tensor * pipeline, tensor, pipeline),
        inventory.folder.step_folder.string(), "Files of two checkpoints are mixed in one folder.");
  }
  if (static_cast<int64_t>(found.model.size()) != tensor * pipeline) {
    return MissingModel(inventory.folder, found, tensor * pipeline);
  }
  inventory.topology.tensor_parallel_size = static_cast<int32_t>(tensor);
  inventory.topology.pipeline_parallel_size = static_cast<int32_t>(pipeline);
  return checkpoint::Done{};
}

Status ReadModelFiles(const FoundFiles& found, Source& source) {
  Inventory& inventory = source.inventory;
  if (found.model.empty()) {
    return Missing(inventory.folder, {ModelName(0)}, "one model file for each model-parallel rank");
  }
  CK_TRY(SourceFile first, OpenSourceFile(found.model.begin()->second));
  CK_DO(CheckModelFile(first));
  CK_TRY(const Recorded recorded, ReadRecorded(first));
  CK_DO(SetModelParallelSizes(found, recorded, inventory));
  for (const auto& [mp_index, name] : found.model) {
    CK_TRY(SourceFile file, OpenSourceFile(name));
    CK_DO(CheckModelFile(file));
    CK_TRY(const Recorded here, ReadRecorded(file));
    if (here.tensor != recorded.tensor || here.pipeline != recorded.pipeline ||
        here.data != recorded.data) {
      return MakeError(
          ErrorCode::kInconsistent,
          fmt::format("TP {} PP {} DP {} in {}", here.tensor, here.pipeline, here.data, name.name),
          fmt::format("TP {} PP {} DP {} as in {}", recorded.tensor, recorded.pipeline,
                      recorded.data, first.name.name),
          name.path.string(), "Files of two checkpoints are mixed in one folder.");
    }
    if (checkpoint::Has(file.torch.root, "num_experts")) {
      return MakeError(ErrorCode::kUnsupported,
                       "num_experts " + checkpoint::Render(Get(file.torch.root, "num_experts"), 40),
                       "a model without experts", name.path.string(),
                       "Mixtures of experts are not supported yet.");
    }
    inventory.model_files.push_back(std::move(file));
  }
  inventory.topology.data_parallel_size = static_cast<int32_t>(std::max<int64_t>(recorded.data, 1));
  return checkpoint::Done{};
}

Status ReadLayerFiles(const FoundFiles& found, Inventory& inventory) {
  const int32_t tensor_ranks = inventory.topology.tensor_parallel_size;
  std::vector<std::string> missing;
  int64_t previous = -1;
  for (const auto& [key, name] : found.layers) {
    if (key.first == previous) continue;
    previous = key.first;
    for (int32_t rank = 0; rank < tensor_ranks; ++rank) {
      if (found.layers.contains({key.first, rank})) continue;
      missing.push_back(
          found.layers_have_model_number
              ? fmt::format("layer_{:02d}-model_{:02d}-model_states.pt", key.first, rank)
              : fmt::format("layer_{:02d}-model_states.pt", key.first));
    }
  }
  if (!missing.empty()) {
    return Missing(inventory.folder, std::move(missing),
                   fmt::format("each layer on {} tensor ranks", tensor_ranks));
  }
  for (const auto& [key, name] : found.layers) {
    CK_TRY(SourceFile file, OpenSourceFile(name));
    inventory.layer_files.emplace(std::pair{key.first, static_cast<int32_t>(key.second)},
                                  std::move(file));
  }
  return checkpoint::Done{};
}

// Data parallel size as the optimizer files record it; -1 where they do not.
int64_t RecordedPartitions(const Value& optimizer) {
  const Value count = Get(optimizer, "partition_count");
  if (const auto list = checkpoint::AsIntList(count); list && !list->empty()) {
    return *std::max_element(list->begin(), list->end());
  }
  return IntOr(count, -1);
}

std::string OptimName(const std::string& prefix, int64_t zero, int64_t mp_index) {
  return fmt::format("{}zero_pp_rank_{}_mp_rank_{:02d}_optim_states.pt", prefix, zero, mp_index);
}

// Whether the model file says that the optimizer lives in files of its own.
bool NeedsOptimFiles(const Value& model_root) {
  const Value optimizer = Get(model_root, "optimizer");
  if (checkpoint::Has(optimizer, "single_partition_of_fp32_groups")) return true;
  return IsNone(optimizer) && !IsNone(Get(model_root, "param_shapes"));
}

// How many data ranks the optimizer files are of: as the optimizer recorded, where it disagrees
// with the engine.
Result<int64_t> DataRanks(const FoundFiles& found, int64_t recorded, Inventory& inventory) {
  int64_t data = inventory.topology.data_parallel_size;
  const FileName& name = found.optim.begin()->second;
  if (recorded > checkpoint::kRanksMax) {
    return MakeError(ErrorCode::kLimitExceeded, fmt::format("partition_count {}", recorded),
                     fmt::format("at most {}", checkpoint::kRanksMax), name.path.string(), "");
  }
  int64_t files = 0;
  for (const auto& [key, other] : found.optim) files = std::max(files, key.second + 1);
  if (recorded > 0 && recorded != data) {
    inventory.notices.push_back({"data-parallel-size-disagrees",
                                 fmt::format("dp_world_size is {}, partition_count is {}: the "
                                             "optimizer files are read as {} partitions.",
                                             data, recorded, recorded),
                                 {name.name}});
    data = recorded;
  }
  if (files > data || files > checkpoint::kRanksMax) {
    return MakeError(ErrorCode::kInconsistent,
                     fmt::format("optimizer files of {} data ranks", files),
                     fmt::format("{} as recorded", data), inventory.folder.step_folder.string(),
                     "Files of two checkpoints are mixed in one folder.");
  }
  return data;
}

Status ReadOptimFiles(const FoundFiles& found, Inventory& inventory) {
  const Value& root = inventory.model_files.front().torch.root;
  const int64_t model_ranks = static_cast<int64_t>(inventory.model_files.size());
  int64_t data = inventory.topology.data_parallel_size;
  std::string prefix =
      checkpoint::AsBool(GetPath(root, {"ds_config", "bf16", "enabled"})).value_or(false) ? "bf16_"
                                                                                          : "";
  if (found.optim.empty()) {
    if (inventory.folder.universal || !NeedsOptimFiles(root)) return checkpoint::Done{};
  } else {
    const FileName& name = found.optim.begin()->second;
    prefix = name.prefix;
    CK_TRY(const SourceFile file, OpenSourceFile(name));
    const int64_t recorded = RecordedPartitions(Get(file.torch.root, "optimizer_state_dict"));
    CK_TRY(data, DataRanks(found, recorded, inventory));
    inventory.topology.data_parallel_size = static_cast<int32_t>(data);
  }
  std::vector<std::string> missing;
  inventory.optim_files.resize(static_cast<size_t>(model_ranks));
  for (int64_t mp_index = 0; mp_index < model_ranks; ++mp_index) {
    for (int64_t rank = 0; rank < data && missing.size() < kMissingNamesMax; ++rank) {
      const auto position = found.optim.find({mp_index, rank});
      if (position == found.optim.end()) {
        missing.push_back(OptimName(prefix, rank, mp_index));
        continue;
      }
      if (!missing.empty()) continue;
      CK_TRY(SourceFile file, OpenSourceFile(position->second));
      inventory.optim_files[static_cast<size_t>(mp_index)].push_back(std::move(file));
    }
  }
  if (!missing.empty()) {
    return Missing(
        inventory.folder, std::move(missing),
        fmt::format("optimizer files of {} model-parallel x {} data ranks", model_ranks, data));
  }
  if (!found.optim.empty() && found.optim.rbegin()->first.first >= model_ranks) {
    return MakeError(ErrorCode::kInconsistent, found.optim.rbegin()->second.name,
                     fmt::format("{} model-parallel ranks", model_ranks),
                     inventory.folder.step_folder.string(),
                     "Files of two checkpoints are mixed in one folder.");
  }
  return checkpoint::Done{};
}

}  // namespace

Status ReadSourceFiles(Source& source) {
  Inventory& inventory = source.inventory;
  CK_TRY(const FoundFiles found, SortFiles(inventory.folder));
  CK_DO(ReadModelFiles(found, source));
  CK_DO(ReadLayerFiles(found, inventory));
  CK_DO(ReadOptimFiles(found, inventory));
  CK_DO(DetectWrapper(inventory));
  const bool no_module = IsNone(Get(inventory.model_files.front().torch.root, "module"));
  if (no_module && inventory.layer_files.empty() && !inventory.folder.universal) {
    return Missing(inventory.folder, {"layer_*-model_states.pt"},
                   "layer files, because the model file holds no module");
  }
  inventory.layout = no_module ? NameLayout::kPipeline : NameLayout::kPlain;
  const Topology& topology = inventory.topology;
  for (int32_t stage = 0; stage < topology.pipeline_parallel_size; ++stage) {
    for (int32_t rank = 0; rank < topology.tensor_parallel_size; ++rank) {
      ModelRank model_rank;
      model_rank.tensor_rank = TensorRank{rank};
      model_rank.stage = PipelineStage{stage};
      source.ranks.push_back(std::move(model_rank));
    }
  }
  return checkpoint::Done{};
}

}  // namespace reshape
