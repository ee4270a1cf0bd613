#include "oracle/source.h"

#include <algorithm>
#include <optional>

#include "checkpoint/file.h"
#include "checkpoint/limits.h"
#include "checkpoint/tree.h"

namespace oracle {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::FileKind;
using checkpoint::FileName;
using checkpoint::Result;
using checkpoint::Value;

std::string Rank::ToString() const {
  return "tp" + std::to_string(tensor) + "-pp" + std::to_string(stage) + "-dp" +
         std::to_string(data);
}

size_t Source::AnyModel() const {
  for (const auto& [number, file] : model)
    if (checkpoint::Has(files[file].root, "module")) return file;
  return model.begin()->second;
}

Value Source::Model(int32_t stage, int32_t tensor) const {
  const auto found = model.find(ModelNumber(stage, tensor));
  return found == model.end() ? Value() : files[found->second].root;
}

Result<Stored> Source::TensorAt(size_t file, Rank rank, const Value& value) const {
  CK_TRY(checkpoint::TensorView view, checkpoint::DecodeTensor(value, labels[file]));
  if (!view.storage->file) {
    return Error{ErrorCode::kMalformedTensor, "a tensor without bytes", "a storage of the file",
                 labels[file], "Copy the file anew."};
  }
  const std::string record =
      files[file].legacy ? "storage " + view.storage->key : "data/" + view.storage->key;
  return Stored{std::move(view), {labels[file], record, rank}};
}

namespace {

Error Unsupported(std::string found, const std::string& where) {
  return {ErrorCode::kUnsupported, std::move(found), "ZeRO stage 0, 1 or 2 without experts", where,
          "Save it from stage 0, 1 or 2 without experts; shardproof reads no other yet."};
}

checkpoint::Status RefuseUnsupported(const Source& source) {
  for (const FileName& file : source.folder.files) {
    if (file.kind == FileKind::kExpert || file.kind == FileKind::kExpertOptim) {
      return Unsupported("a mixture-of-experts checkpoint (MoE)", file.name);
    }
    if (file.kind == FileKind::kZeroModelStates)
      return Unsupported("a ZeRO-3 checkpoint", file.name);
  }
  return checkpoint::Done{};
}

checkpoint::Status OpenInto(Source& source, const FileName& name, size_t& index) {
  CK_TRY(checkpoint::TorchFile file, checkpoint::OpenTorchFile(name.path));
  index = source.files.size();
  source.files.push_back(std::move(file));
  source.labels.push_back(source.folder.tag + "/" + name.name);
  return checkpoint::Done{};
}

// Two files that claim one rank: the first in the folder's order is read, both are named.
template <typename Key>
checkpoint::Status OpenAs(Source& source, const FileName& name, std::map<Key, size_t>& into,
                          Key key) {
  if (into.count(key) > 0) {
    source.findings.push_back(
        {"two-files-of-one-rank",
         name.name + " claims the rank of " + source.labels[into[key]] + "; the latter is read",
         {name.name},
         true,
         {source.folder.tag + "/" + name.name, "", {}}});
    return checkpoint::Done{};
  }
  size_t index = 0;
  CK_DO(OpenInto(source, name, index));
  into[key] = index;
  return checkpoint::Done{};
}

checkpoint::Status OpenFiles(Source& source) {
  for (const FileName& name : source.folder.files) {
    if (name.mp_number > checkpoint::kRanksMax || name.zero_number > checkpoint::kRanksMax ||
        name.layer_number > checkpoint::kRanksMax || name.model_number > checkpoint::kRanksMax) {
      return Error{ErrorCode::kLimitExceeded, name.name,
                   "rank and layer numbers up to " + std::to_string(checkpoint::kRanksMax),
                   source.folder.step_folder.string(), "Remove the foreign file."};
    }
    switch (name.kind) {
      case FileKind::kModelStates:
        CK_DO(OpenAs(source, name, source.model, name.mp_number));
        break;
      case FileKind::kOptimStates:
        CK_DO(OpenAs(source, name, source.optimizer,
                     std::make_pair(name.mp_number, name.zero_number)));
        break;
      case FileKind::kLayer:
        CK_DO(OpenAs(source, name, source.layers,
                     std::make_pair(name.layer_number, std::max<int64_t>(name.model_number, 0))));
        break;
      default:
        break;
    }
  }
  return checkpoint::Done{};
}

bool IsLeftOut(const Source& source, const OpenOptions& options, const std::string& name) {
  return options.leave_out.count(source.folder.tag + "/" + name) > 0;
}

checkpoint::Status OpenUniversalFiles(Source& source, const OpenOptions& options) {
  const std::filesystem::path zero = source.folder.step_folder / "zero";
  for (const std::string& parameter : source.folder.universal_parameters) {
    std::error_code ignored;
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(zero / parameter, ignored)) {
      if (entry.path().extension() == ".pt") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) {
      FileName name;
      name.path = path;
      name.name = "zero/" + parameter + "/" + path.filename().string();
      if (IsLeftOut(source, options, name.name)) continue;
      size_t index = 0;
      CK_DO(OpenInto(source, name, index));
      source.universal[parameter + "/" + path.stem().string()] = index;
    }
  }
  if (std::filesystem::exists(zero / "optimizer_state.pt") &&
      !IsLeftOut(source, options, "zero/optimizer_state.pt")) {
    FileName name;
    name.path = zero / "optimizer_state.pt";
    name.name = "zero/optimizer_state.pt";
    size_t index = 0;
    CK_DO(OpenInto(source, name, index));
    source.universal["optimizer_state"] = index;
  }
  return checkpoint::Done{};
}

// Reads a positive count under one of several paths.
std::optional<int64_t> CountAt(const Value& root, std::initializer_list<std::string_view> path) {
  const auto count = checkpoint::AsInt(checkpoint::GetPath(root, path));
  return count && *count >= 1 ? count : std::nullopt;
}

// What one model file says about the topology; 0 where it says nothing.
struct Claim {
  int64_t tensor = 0, pipeline = 0, data = 0, model_parallel = 0;
};

Claim ClaimOf(const Value& root) {
  Claim claim;
  claim.tensor = CountAt(root, {"checkpoint_parallel_dimensions", "tp_degree"})
                     .value_or(CountAt(root, {"args", "tensor_model_parallel_size"}).value_or(0));
  claim.pipeline =
      CountAt(root, {"checkpoint_parallel_dimensions", "pp_degree"})
          .value_or(CountAt(root, {"args", "pipeline_model_parallel_size"}).value_or(0));
  claim.data = CountAt(root, {"dp_world_size"}).value_or(0);
  claim.model_parallel = CountAt(root, {"mp_world_size"}).value_or(0);
  return claim;
}

// The first file that says a count decides; files that say another are reported.
void Settle(Source& source, int64_t Claim::*field, const char* what, int64_t& settled) {
  for (const auto& [number, file] : source.model) {
    const int64_t said = ClaimOf(source.Root(file)).*field;
    if (said == 0) continue;
    if (settled == 0) settled = said;
    if (said != settled) {
      source.findings.push_back({"topology-contradiction",
                                 source.labels[file] + " says " + what + " " +
                                     std::to_string(said) + ", an earlier file " +
                                     std::to_string(settled),
                                 {source.labels[file]},
                                 true,
                                 source.PlaceOf(file, {})});
    }
  }
}

checkpoint::Status DetectGrid(Source& source) {
  int64_t tensor = 0, pipeline = 0, data = 0, model_parallel = 0;
  Settle(source, &Claim::tensor, "tensor parallel size", tensor);
  Settle(source, &Claim::pipeline, "pipeline parallel size", pipeline);
  Settle(source, &Claim::data, "data parallel size", data);
  Settle(source, &Claim::model_parallel, "model parallel size", model_parallel);
  int64_t layer_ranks = 0, data_ranks = 0;
  for (const auto& [key, file] : source.layers) layer_ranks = std::max(layer_ranks, key.second + 1);
  for (const auto& [key, file] : source.optimizer)
    data_ranks = std::max(data_ranks, key.second + 1);
  const int64_t highest = source.model.rbegin()->first + 1;
  const int64_t model_ranks = std::max(model_parallel, highest);
  if (tensor == 0)
    tensor = layer_ranks > 0    ? layer_ranks
             : source.pipelined ? 1
                                : model_ranks / std::max<int64_t>(pipeline, 1);
  if (pipeline == 0) pipeline = std::max<int64_t>(1, model_ranks / std::max<int64_t>(tensor, 1));
  if (data == 0) data = std::max<int64_t>(data_ranks, 1);
  if (tensor > checkpoint::kRanksMax || pipeline > checkpoint::kRanksMax ||
      data > checkpoint::kRanksMax || tensor * pipeline > checkpoint::kRanksMax ||
      tensor * pipeline * data > checkpoint::kFilesMax) {
    return Error{ErrorCode::kLimitExceeded,
                 std::to_string(tensor) + " x " + std::to_string(pipeline) + " x " +
                     std::to_string(data) + " ranks",
                 "at most " + std::to_string(checkpoint::kRanksMax) + " ranks",
                 source.labels[source.AnyModel()], "The topology in the file is damaged."};
  }
  source.grid = {static_cast<int32_t>(tensor), static_cast<int32_t>(pipeline),
                 static_cast<int32_t>(data)};
  if (highest > tensor * pipeline || layer_ranks > tensor || data_ranks > data) {
    source.findings.push_back(
        {"surplus-ranks",
         "files of " + std::to_string(highest) + " model-parallel, " + std::to_string(layer_ranks) +
             " layer tensor and " + std::to_string(data_ranks) +
             " data ranks, but the files name the topology " + std::to_string(tensor) + " x " +
             std::to_string(pipeline) + " x " + std::to_string(data),
         {},
         true,
         {source.folder.tag, "", {}}});
  }
  return checkpoint::Done{};
}

// Files of ranks beyond the topology are reported (above) and not read.
void DropSurplus(Source& source) {
  const int64_t model_parallel = int64_t{source.grid.tensor} * source.grid.pipeline;
  std::erase_if(source.model, [&](const auto& item) { return item.first >= model_parallel; });
  std::erase_if(source.layers,
                [&](const auto& item) { return item.first.second >= source.grid.tensor; });
  std::erase_if(source.optimizer, [&](const auto& item) {
    return item.first.first >= model_parallel || item.first.second >= source.grid.data;
  });
}

// The folder that latest_universal names, where that is asked for; a step folder is what it is.
Result<std::string> TagOf(const std::filesystem::path& path, const OpenOptions& options) {
  if (!options.universal || !options.tag.empty()) return options.tag;
  auto text = checkpoint::ReadSmallFile(path / "latest_universal", 4096);
  if (!text.ok()) {
    std::error_code code;
    if (!std::filesystem::exists(path / "latest", code)) return options.tag;
    return Error{ErrorCode::kMissingFile, "no readable latest_universal",
                 "a run folder with a universal folder beside its steps",
                 (path / "latest_universal").string(),
                 "Leave --universal out to read the native files."};
  }
  std::string tag = text.value();
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == ' ' || tag.back() == '\r'))
    tag.pop_back();
  return tag;
}

}  // namespace

Result<Source> OpenSource(const std::filesystem::path& path, const OpenOptions& options) {
  Source source;
  CK_TRY(const std::string tag, TagOf(path, options));
  CK_TRY(source.folder, checkpoint::OpenStepFolder(path, tag));
  CK_DO(RefuseUnsupported(source));
  std::erase_if(source.folder.files,
                [&](const FileName& file) { return IsLeftOut(source, options, file.name); });
  CK_DO(OpenFiles(source));
  if (source.folder.universal) CK_DO(OpenUniversalFiles(source, options));
  if (source.model.empty()) {
    return Error{ErrorCode::kMissingFile, "no mp_rank_XX_model_states.pt",
                 "at least one model file", source.folder.step_folder.string(),
                 "Copy the model files of the step as well."};
  }
  for (const auto& [number, file] : source.model) {
    const Value& root = source.Root(file);
    if (checkpoint::Has(root, "num_experts") || checkpoint::Has(root, "ds_autoep_layers") ||
        checkpoint::Has(root, "autoep_layers")) {
      return Unsupported("a mixture-of-experts checkpoint (MoE)", source.labels[file]);
    }
    if (checkpoint::AsInt(checkpoint::GetPath(root, {"ds_config", "zero_optimization", "stage"}))
            .value_or(0) == 3) {
      return Unsupported("a ZeRO-3 checkpoint", source.labels[file]);
    }
  }
  source.pipelined = !source.layers.empty() ||
                     checkpoint::IsNone(checkpoint::Get(source.Root(source.AnyModel()), "module"));
  CK_DO(DetectGrid(source));
  DropSurplus(source);
  return source;
}

}  // namespace oracle
