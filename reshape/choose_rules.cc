// Which rule set describes the source: the user's over a built-in one whose names fit all of the
// model's; the number of transformer layers, and whether every layer file is there.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoint/limits.h"
#include "checkpoint/tree.h"
#include "reshape/module_names.h"
#include "reshape/naming.h"
#include "reshape/source.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::Get;
using checkpoint::Rules;
using checkpoint::Status;
using checkpoint::Value;

// A name as the files have it. Layer files do not tell "1.word_embeddings.weight" from
// "tied_modules.embed.word_embeddings.weight": then the number and the key are all that is known.
struct FileEntry {
  std::string name = {};
  int64_t layer = -1;
  std::string key = {};
};

std::vector<FileEntry> Entries(const Source& source) {
  std::vector<FileEntry> entries;
  const Inventory& inventory = source.inventory;
  if (inventory.layout == NameLayout::kPlain) {
    for (const NamedValue& item :
         FlattenModule(Get(inventory.model_files.front().torch.root, "module"))) {
      entries.push_back({.name = item.name});
    }
    return entries;
  }
  if (inventory.folder.universal) {
    for (const std::string& name : inventory.folder.universal_parameters)
      entries.push_back({.name = name});
    return entries;
  }
  for (const auto& [position, file] : inventory.layer_files) {
    if (position.second != 0) continue;
    for (const NamedValue& item : FlattenModule(file.torch.root)) {
      entries.push_back(
          {fmt::format("{}.{}", position.first, item.name), position.first, item.name});
    }
  }
  return entries;
}

// Canonical name of an entry, read as an ordinary layer or, on the embedding layer, as a tied
// module.
std::optional<std::string> CanonicalOf(const Naming& naming, NameLayout layout,
                                       const FileEntry& entry) {
  auto canonical = CanonicalName(naming, layout, entry.name);
  if (canonical || entry.layer < 0 || !naming.rules->numbering ||
      entry.layer != naming.rules->numbering->embedding) {
    return canonical;
  }
  for (const checkpoint::NameRule& rule : naming.rules->names) {
    const auto parts = checkpoint::SplitPipelineName(rule.pipeline);
    if (!parts || parts->layer || parts->tied_key.empty()) continue;
    canonical = CanonicalName(naming, layout, "tied_modules." + parts->tied_key + "." + entry.key);
    if (canonical) return canonical;
  }
  return std::nullopt;
}

// Transformer layers by the names alone: how many numbers in a row have a parameter that a rule
// knows.
int64_t CountLayers(const Rules& rules, NameLayout layout, const std::vector<FileEntry>& entries) {
  std::set<int64_t> indices;
  const Naming naming{&rules, checkpoint::kRanksMax, true};
  for (const FileEntry& entry : entries) {
    const auto canonical = CanonicalName(naming, layout, entry.name);
    if (!canonical || checkpoint::FirstParameterRule(rules, *canonical, true) == nullptr) continue;
    const auto match = checkpoint::MatchTemplate("layers.{layer}.{rest}", *canonical);
    if (match && match->layer) indices.insert(*match->layer);
  }
  int64_t count = 0;
  while (indices.contains(count)) ++count;
  return count;
}

int64_t LayersFromArgs(const Source& source) {
  const Value args = Get(source.inventory.model_files.front().torch.root, "args");
  const auto layers = checkpoint::AsInt(Get(args, "num_layers"));
  return layers && *layers > 0 && *layers <= checkpoint::kRanksMax ? *layers : 0;
}

bool Fits(const Naming& naming, NameLayout layout, const std::vector<FileEntry>& entries) {
  return !entries.empty() &&
         std::all_of(entries.begin(), entries.end(), [&](const FileEntry& entry) {
           return CanonicalOf(naming, layout, entry).has_value();
         });
}

// Layer files behind the last layer of a model that fits built-in rules but for them.
Status CheckNoLayersBehind(int64_t layers, const std::vector<FileEntry>& entries,
                           const Inventory& inventory) {
  if (inventory.layout != NameLayout::kPipeline) return checkpoint::Done{};
  for (const std::string_view name : checkpoint::BuiltinRuleNames()) {
    CK_TRY(const Rules rules,
           checkpoint::ParseRules(checkpoint::BuiltinRulesJson(name), std::string(name)));
    const auto& numbering = rules.numbering;
    if (!numbering) continue;
    const int64_t last =
        numbering->first_layer + layers + std::max(numbering->final_after, numbering->head_after);
    std::vector<FileEntry> within;
    int64_t behind = -1;
    for (const FileEntry& entry : entries) {
      if (entry.layer <= last) within.push_back(entry);
      if (entry.layer > last && behind < 0) behind = entry.layer;
    }
    if (behind < 0 || !Fits(Naming{&rules, layers, true}, inventory.layout, within)) continue;
    return MakeError(
        ErrorCode::kInconsistent, fmt::format("files of layer {}", behind),
        fmt::format("layers up to {} of a model of {} transformer layers", last, layers),
        inventory.folder.step_folder.string(), "Remove the files that do not belong to this step.");
  }
  return checkpoint::Done{};
}

Rules Merge(const std::optional<Rules>& user, const std::optional<Rules>& builtin) {
  if (!user) return builtin.value_or(Rules{});
  Rules merged = *user;
  if (!builtin) return merged;
  if (merged.names.empty()) {
    merged.names = builtin->names;
    if (!merged.numbering) merged.numbering = builtin->numbering;
  }
  merged.parameters.insert(merged.parameters.end(), builtin->parameters.begin(),
                           builtin->parameters.end());
  merged.tied.insert(merged.tied.end(), builtin->tied.begin(), builtin->tied.end());
  if (merged.group_rule == checkpoint::GroupRule::kFromFiles)
    merged.group_rule = builtin->group_rule;
  return merged;
}

// The layer files that the numbering asks for.
Status CheckLayerFiles(const Source& source) {
  const Inventory& inventory = source.inventory;
  const auto& numbering = inventory.rules.numbering;
  if (!numbering || inventory.layer_files.empty() || inventory.transformer_layers == 0)
    return checkpoint::Done{};
  std::vector<int64_t> wanted{numbering->embedding};
  for (int64_t i = 0; i < inventory.transformer_layers; ++i)
    wanted.push_back(numbering->first_layer + i);
  wanted.push_back(numbering->first_layer + inventory.transformer_layers + numbering->final_after);
  const Value args = Get(inventory.model_files.front().torch.root, "args");
  if (checkpoint::AsBool(Get(args, "untie_embeddings_and_output_weights")).value_or(false)) {
    wanted.push_back(numbering->first_layer + inventory.transformer_layers + numbering->head_after);
  }
  const std::string& example = inventory.layer_files.begin()->second.name.name;
  const bool has_model_number = example.find("-model_0") != std::string::npos;
  std::vector<std::string> missing;
  for (const int64_t layer : wanted) {
    for (int32_t rank = 0;
         rank < inventory.topology.tensor_parallel_size && missing.size() < kMissingNamesMax;
         ++rank) {
      if (inventory.layer_files.contains({layer, rank})) continue;
      missing.push_back(has_model_number
                            ? fmt::format("layer_{:02d}-model_{:02d}-model_states.pt", layer, rank)
                            : fmt::format("layer_{:02d}-model_states.pt", layer));
    }
  }
  if (missing.empty()) return checkpoint::Done{};
  return MakeError(ErrorCode::kMissingFile, "no " + JoinNames(missing, 20),
                   fmt::format("the layer files of a model of {} transformer layers",
                               inventory.transformer_layers),
                   inventory.folder.step_folder.string(),
                   "Copy the missing files from where the checkpoint was written.");
}

void SetModelFacts(const ReadOptions& options, Source& source) {
  Inventory& inventory = source.inventory;
  const Value& root = inventory.model_files.front().torch.root;
  const Value args = Get(root, "args");
  inventory.qkv_layout = options.qkv_layout ? options.qkv_layout : inventory.rules.qkv_layout;
  source.swiglu = checkpoint::AsBool(Get(args, "swiglu")).value_or(false) ||
                  checkpoint::AsString(Get(args, "glu_activation")).has_value() ||
                  !source.universal.two_sub_parameters.empty();
  for (const Value& holder :
       {Get(root, "universal_checkpoint_info"), Get(root, "checkpoint_info")}) {
    const auto rows = checkpoint::AsInt(Get(holder, "original_vocab_size"));
    if (rows && *rows > 0 && inventory.original_vocabulary_rows == 0)
      inventory.original_vocabulary_rows = *rows;
  }
}

}  // namespace

Status ChooseRules(const ReadOptions& options, Source& source) {
  Inventory& inventory = source.inventory;
  const SourceFile& model = inventory.model_files.front();
  CK_TRY(source.universal, ReadUniversalInfo(model.torch.root, model.name.name));
  source.user_rules = options.rules;
  const std::vector<FileEntry> entries = Entries(source);
  const int64_t from_args = LayersFromArgs(source);
  for (const std::string_view name : checkpoint::BuiltinRuleNames()) {
    CK_TRY(const Rules rules,
           checkpoint::ParseRules(checkpoint::BuiltinRulesJson(name), std::string(name)));
    const int64_t layers =
        from_args > 0 ? from_args : CountLayers(rules, inventory.layout, entries);
    if (layers == 0 || !Fits(Naming{&rules, layers, true}, inventory.layout, entries)) continue;
    source.builtin_rules = rules;
    inventory.transformer_layers = layers;
    break;
  }
  if (!source.builtin_rules && from_args > 0) {
    CK_DO(CheckNoLayersBehind(from_args, entries, inventory));
  }
  inventory.rules = Merge(source.user_rules, source.builtin_rules);
  if (inventory.transformer_layers == 0 && !inventory.rules.names.empty()) {
    inventory.transformer_layers =
        from_args > 0 ? from_args : CountLayers(inventory.rules, inventory.layout, entries);
  }
  inventory.megatron = source.builtin_rules &&
                       checkpoint::ClassName(Get(model.torch.root, "args")) == "argparse.Namespace";
  std::vector<std::string> origins;
  if (source.user_rules)
    origins.push_back(options.rules_origin.empty() ? "rules of the user" : options.rules_origin);
  if (source.universal.present) origins.push_back("universal_checkpoint_info");
  if (source.builtin_rules) origins.push_back("built-in " + source.builtin_rules->name);
  inventory.rules_origin = JoinNames(origins, 3);
  SetModelFacts(options, source);

  // A model with an output layer of its own is not tied.
  const Naming naming{&inventory.rules, inventory.transformer_layers, true};
  source.tied_embedding = std::none_of(entries.begin(), entries.end(), [&](const FileEntry& entry) {
    return CanonicalOf(naming, inventory.layout, entry) == "output_layer.weight";
  });
  return CheckLayerFiles(source);
}

}  // namespace reshape
