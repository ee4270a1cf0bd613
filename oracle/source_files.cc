// Which files a checkpoint of this topology consists of, against what is there (law S1).
#include <algorithm>
#include <map>
#include <set>

#include "checkpoint/tree.h"
#include "oracle/source.h"

namespace oracle {

using checkpoint::FileKind;
using checkpoint::FileName;

namespace {

std::string KindName(FileKind kind) {
  switch (kind) {
    case FileKind::kModelStates:
      return "model states";
    case FileKind::kZeroModelStates:
      return "ZeRO-3 model states";
    case FileKind::kOptimStates:
      return "optimizer states";
    case FileKind::kLayer:
      return "layer";
    case FileKind::kExpert:
      return "expert";
    case FileKind::kExpertOptim:
      return "expert optimizer states";
    case FileKind::kKnownOther:
      return "known companion";
    case FileKind::kUnknown:
      return "unknown";
  }
  return "unknown";
}

// Names as the first present file of the kind is written: "bf16_" or not, with or without the
// underscore, "-model_00" or not.
struct Spelling {
  std::string optimizer_prefix, optimizer_suffix = "_optim_states.pt";
  bool layer_model = true, layer_double_dash = false;
};

Spelling SpellingOf(const Source& source) {
  Spelling spelling;
  const auto bf16 = checkpoint::AsBool(
      checkpoint::GetPath(source.Root(source.AnyModel()), {"ds_config", "bf16", "enabled"}));
  if (bf16.value_or(false)) spelling.optimizer_prefix = "bf16_";
  for (const FileName& file : source.folder.files) {
    if (file.kind == FileKind::kOptimStates) {
      spelling.optimizer_prefix = file.prefix;
      if (file.name.find("_optim_states") == std::string::npos)
        spelling.optimizer_suffix = "optim_states.pt";
    }
    if (file.kind == FileKind::kLayer) {
      spelling.layer_model = file.model_number >= 0;
      spelling.layer_double_dash = file.name.find("--") != std::string::npos;
    }
  }
  return spelling;
}

// Two digits at least, as "%02d".
std::string TwoDigits(int64_t number) { return (number < 10 ? "0" : "") + std::to_string(number); }

std::string LayerName(const Spelling& spelling, int64_t layer, int32_t tensor) {
  if (spelling.layer_model)
    return "layer_" + TwoDigits(layer) + "-model_" + TwoDigits(tensor) + "-model_states.pt";
  return "layer_" + TwoDigits(layer) + (spelling.layer_double_dash ? "--" : "-") +
         "model_states.pt";
}

}  // namespace

std::vector<FileFact> ListFiles(const Source& source, bool optimizer_files,
                                const std::vector<int64_t>& layer_numbers) {
  std::map<std::string, FileFact> facts;
  for (const FileName& file : source.folder.files)
    facts[file.name] = {file.name, KindName(file.kind), false, true};
  const auto expect = [&](const std::string& name, FileKind kind) {
    FileFact& fact = facts[name];
    if (fact.name.empty()) fact = {name, KindName(kind), true, false};
    fact.expected = true;
  };
  const Spelling spelling = SpellingOf(source);
  const int64_t model_parallel = int64_t{source.grid.tensor} * source.grid.pipeline;
  for (int64_t number = 0; number < model_parallel; ++number) {
    expect("mp_rank_" + TwoDigits(number) + "_model_states.pt", FileKind::kModelStates);
    for (int32_t data = 0; optimizer_files && data < source.grid.data; ++data) {
      expect(spelling.optimizer_prefix + "zero_pp_rank_" + std::to_string(data) + "_mp_rank_" +
                 TwoDigits(number) + spelling.optimizer_suffix,
             FileKind::kOptimStates);
    }
  }
  std::set<int64_t> layers(layer_numbers.begin(), layer_numbers.end());
  for (const auto& [key, file] : source.layers) layers.insert(key.first);
  for (const int64_t layer : layers) {
    for (int32_t tensor = 0; tensor < source.grid.tensor; ++tensor)
      expect(LayerName(spelling, layer, tensor), FileKind::kLayer);
  }
  std::vector<FileFact> list;
  for (const auto& [name, fact] : facts) list.push_back(fact);
  for (const std::string& name : source.folder.run_files) {
    std::error_code ignored;
    const bool folder = std::filesystem::is_directory(source.folder.run_folder / name, ignored);
    const FileKind kind = checkpoint::ParseFileName(name).kind;
    list.push_back({"../" + name, folder ? "folder" : KindName(kind), false, true});
  }
  return list;
}

}  // namespace oracle
