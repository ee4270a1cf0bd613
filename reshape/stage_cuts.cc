// Stages of a pipeline whose files do not name the parameters of a stage: by the element counts of
// the optimizers, which the content then proves, and by the framework's rule where several fit.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/tree.h"
#include "reshape/layer_partition.h"
#include "reshape/module_names.h"
#include "reshape/source.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::Result;

constexpr size_t kGuessesMax = 64;
constexpr int64_t kGuessStepsMax = 100'000;

// Trainable elements of each layer file of tensor rank 0.
struct LayerSize {
  int64_t layer = 0, numel = 0;
};

std::vector<LayerSize> LayerSizes(const Source& source) {
  std::set<std::string> buffers;
  for (const ModelRank& rank : source.ranks) {
    if (const auto* items =
            checkpoint::SequenceItems(checkpoint::Get(source.ModelRoot(rank), "buffer_names"))) {
      for (const auto& item : *items) {
        if (auto name = checkpoint::AsString(item)) buffers.insert(std::move(*name));
      }
    }
  }
  std::vector<LayerSize> sizes;
  for (const auto& [position, file] : source.inventory.layer_files) {
    if (position.second != 0) continue;
    LayerSize layer{position.first, 0};
    for (const NamedValue& item : FlattenModule(file.torch.root)) {
      const auto view = checkpoint::DecodeTensor(item.value, item.name);
      if (!view.ok() || !checkpoint::IsFloating(view.value().storage->dtype)) continue;
      if (buffers.contains(fmt::format("{}.{}", position.first, item.name))) continue;
      layer.numel += view.value().numel();
    }
    sizes.push_back(layer);
  }
  return sizes;
}

// Elements in the optimizer of each stage's tensor rank 0; -1 where the sizes are not known (a bare
// optimizer without state).
std::vector<int64_t> StageSizes(const Source& source) {
  std::vector<int64_t> sizes;
  for (const ModelRank& rank : source.ranks) {
    if (rank.tensor_rank != TensorRank{0}) continue;
    int64_t numel = 0;
    for (const LocalGroup& group : rank.groups) {
      if (group.nameless.empty()) numel += group.numel;
      for (const auto& states : group.nameless) {
        if (states.empty())
          return std::vector<int64_t>(
              static_cast<size_t>(source.inventory.topology.pipeline_parallel_size), -1);
        numel += states.begin()->second.numel();
      }
    }
    sizes.push_back(numel);
  }
  return sizes;
}

// Depth-first over stages: each takes the next layers, and may hold one earlier layer as a tied
// copy.
class CutSearch {
 public:
  CutSearch(const std::vector<LayerSize>& layers, const std::vector<int64_t>& stages)
      : layers_(layers), stages_(stages) {
    for (size_t i = 0; i < layers.size(); ++i) {
      if (layers[i].numel > 0) by_numel_[layers[i].numel].push_back(i);
    }
  }

  // Ends of the stages as indices into the layers, and the layer index that each stage holds as a
  // copy (-1: none).
  struct Guess {
    std::vector<size_t> ends;
    std::vector<int64_t> copies;
  };

  std::vector<Guess> Run() {
    struct Level {
      size_t begin;
      std::vector<std::pair<size_t, int64_t>> options;
      size_t next;
    };
    std::vector<Guess> guesses;
    std::vector<Level> levels{{0, Options(0, 0), 0}};
    int64_t steps = 0;
    while (!levels.empty() && guesses.size() < kGuessesMax && ++steps < kGuessStepsMax) {
      Level& level = levels.back();
      if (level.next == level.options.size()) {
        levels.pop_back();
        continue;
      }
      const auto [end, copy] = level.options[level.next++];
      if (levels.size() == stages_.size()) {
        if (end != layers_.size()) continue;
        Guess guess;
        for (const Level& chosen : levels) {
          guess.ends.push_back(chosen.options[chosen.next - 1].first);
          guess.copies.push_back(chosen.options[chosen.next - 1].second);
        }
        guesses.push_back(std::move(guess));
        continue;
      }
      const size_t stage = levels.size();
      levels.push_back({end, Options(stage, end), 0});
    }
    return guesses;
  }

 private:
  std::vector<std::pair<size_t, int64_t>> Options(size_t stage, size_t begin) const {
    std::vector<std::pair<size_t, int64_t>> options;
    int64_t sum = 0;
    for (size_t end = begin; end <= layers_.size() && sum <= stages_[stage]; ++end) {
      if (sum == stages_[stage]) options.emplace_back(end, -1);
      const auto alike = by_numel_.find(stages_[stage] - sum);
      for (size_t i = 0; alike != by_numel_.end() && i < alike->second.size(); ++i) {
        const size_t copy = alike->second[i];
        if (stage > 0 && copy < begin) options.emplace_back(end, static_cast<int64_t>(copy));
      }
      if (end < layers_.size()) sum += layers_[end].numel;
    }
    return options;
  }

  std::map<int64_t, std::vector<size_t>>
      by_numel_;  // layers with parameters, by their number of elements
  const std::vector<LayerSize>& layers_;
  const std::vector<int64_t>& stages_;
};

// The key under which the model ties its embedding, where the rules name one.
std::string TiedKeyName(const Source& source) {
  for (const auto& rule : source.inventory.rules.names) {
    const auto parts = checkpoint::SplitPipelineName(rule.pipeline);
    if (parts && !parts->tied_key.empty()) return parts->tied_key;
  }
  return "embed";
}

StageCuts ToStageCuts(const CutSearch::Guess& guess, const std::vector<LayerSize>& layers,
                      const Source& source) {
  StageCuts result;
  result.cuts.push_back(0);
  for (const size_t end : guess.ends) {
    result.cuts.push_back(end < layers.size() ? layers[end].layer : layers.back().layer + 1);
  }
  std::map<int64_t, TiedKey> tied;  // by index of the layer
  for (size_t stage = 0; stage < guess.copies.size(); ++stage) {
    const int64_t copy = guess.copies[stage];
    if (copy < 0) continue;
    TiedKey& key = tied[copy];
    if (key.layers.empty()) {
      key.layers = {layers[static_cast<size_t>(copy)].layer};
      const auto owner =
          std::upper_bound(guess.ends.begin(), guess.ends.end(), static_cast<size_t>(copy));
      key.stages = {static_cast<int32_t>(owner - guess.ends.begin())};
    }
    key.stages.push_back(static_cast<int32_t>(stage));
  }
  // A model that the rules call tied uses the tied names on a single stage, too.
  const auto& numbering = source.inventory.rules.numbering;
  if (numbering && source.builtin_rules && source.tied_embedding && tied.empty()) {
    const auto owner =
        std::upper_bound(result.cuts.begin(), result.cuts.end(), numbering->embedding) -
        result.cuts.begin() - 1;
    tied[0] = TiedKey{{numbering->embedding}, {static_cast<int32_t>(owner)}};
  }
  bool first = true;
  for (auto& [copy, key] : tied) {
    const std::string name =
        first ? TiedKeyName(source) : fmt::format("tied_{}", key.layers.front());
    result.tied.emplace(name, std::move(key));
    first = false;
  }
  return result;
}

// The cuts that the rules declare, else the partition that the framework makes of a transformer;
// empty where neither is known.
std::vector<int64_t> ExpectedCuts(const Source& source) {
  const Inventory& inventory = source.inventory;
  const int32_t stages = inventory.topology.pipeline_parallel_size;
  if (static_cast<int64_t>(inventory.rules.cuts.size()) == stages + 1) return inventory.rules.cuts;
  if (!inventory.rules.numbering || inventory.transformer_layers == 0) return {};
  const auto method = checkpoint::AsString(checkpoint::GetPath(
      inventory.model_files.front().torch.root, {"args", "pp_partition_method"}));
  TransformerLayers layers{*inventory.rules.numbering, inventory.transformer_layers};
  layers.count_embeddings = method && method->find("embedding") != std::string::npos;
  return TransformerCuts(layers, stages);
}

// The layers, as a set of first numbers of stages, are those of the rule.
bool FollowsRule(const StageCuts& cuts, const std::vector<int64_t>& rule,
                 const std::vector<LayerSize>& layers) {
  if (rule.size() != cuts.cuts.size()) return false;
  return std::all_of(layers.begin(), layers.end(), [&](const LayerSize& layer) {
    const auto stage_of = [&](const std::vector<int64_t>& bounds) {
      return std::upper_bound(bounds.begin() + 1, bounds.end() - 1, layer.layer) - bounds.begin();
    };
    return stage_of(cuts.cuts) == stage_of(rule);
  });
}

// The expected cuts as a guess of their own, where the sizes tell nothing: frozen layers, or no
// optimizer at all.
CutSearch::Guess GuessFromCuts(const std::vector<int64_t>& cuts,
                               const std::vector<LayerSize>& layers, const Source& source) {
  CutSearch::Guess guess;
  for (size_t stage = 1; stage < cuts.size(); ++stage) {
    const auto end = std::lower_bound(
        layers.begin(), layers.end(), cuts[stage],
        [](const LayerSize& layer, int64_t number) { return layer.layer < number; });
    guess.ends.push_back(stage + 1 == cuts.size() ? layers.size()
                                                  : static_cast<size_t>(end - layers.begin()));
    guess.copies.push_back(-1);
  }
  const auto& numbering = source.inventory.rules.numbering;
  if (numbering && source.builtin_rules && source.tied_embedding && guess.ends.size() > 1) {
    for (size_t i = 0; i < layers.size(); ++i) {
      if (layers[i].layer == numbering->embedding) guess.copies.back() = static_cast<int64_t>(i);
    }
  }
  return guess;
}

}  // namespace

Result<std::vector<StageCuts>> FindStageCuts(const Source& source) {
  const std::vector<LayerSize> layers = LayerSizes(source);
  const std::vector<int64_t> stages = StageSizes(source);
  std::vector<StageCuts> guesses;
  for (const CutSearch::Guess& guess : CutSearch(layers, stages).Run()) {
    guesses.push_back(ToStageCuts(guess, layers, source));
  }
  std::vector<int64_t> expected = ExpectedCuts(source);
  if (source.inventory.topology.pipeline_parallel_size == 1 && expected.empty())
    expected = {0, layers.back().layer + 1};
  if (guesses.empty() && !expected.empty()) {
    guesses.push_back(ToStageCuts(GuessFromCuts(expected, layers, source), layers, source));
  }
  if (guesses.empty()) {
    std::vector<std::string> sizes;
    for (const int64_t numel : stages) sizes.push_back(std::to_string(numel));
    return MakeError(ErrorCode::kUnprovedOrder,
                     fmt::format("stages whose optimizers hold {} elements", JoinNames(sizes, 16)),
                     fmt::format("stages of whole layers out of {} layer files", layers.size()),
                     source.inventory.folder.step_folder.string(),
                     "Layer files and model files do not belong together, or some parameters are "
                     "frozen; declare the cuts of this checkpoint in a rules file.");
  }
  std::stable_partition(guesses.begin(), guesses.end(),
                        [&](const StageCuts& cuts) { return FollowsRule(cuts, expected, layers); });
  return guesses;
}

}  // namespace reshape
