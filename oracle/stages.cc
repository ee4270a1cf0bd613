// Which pipeline stage owns which layer at ZeRO stage 0, where no file says it: layers are
// contiguous, and the parameters of a stage must have as many elements (or, where shapes are
// unknown, be as many) as its optimizer groups hold. No partition rule is assumed.
#include <algorithm>
#include <set>

#include "checkpoint/tree.h"
#include "oracle/nameless.h"

namespace oracle {

using checkpoint::Value;

namespace {

struct Hypothesis {
  int64_t tied_layer = -1;  // -1: none
  std::vector<int32_t> tied_stages;
};

class StageFinder {
 public:
  StageFinder(const Draft& draft, const ModuleList& modules, const std::vector<NamelessRank>& ranks)
      : draft_(draft) {
    bool by_numel = true;
    for (const NamelessRank& rank : ranks) by_numel = by_numel && rank.Numel();
    const std::set<std::string> buffers = Buffers();
    for (const ModuleTensor& tensor : modules.tensors) {
      if (tensor.tensor != FirstTensorRank(modules)) continue;
      const bool buffer = buffers.count(std::to_string(tensor.layer) + "." + tensor.key) > 0;
      const int64_t numel = buffer ? 0 : tensor.stored.view.numel();
      extent_[tensor.layer] += by_numel ? numel : std::min<int64_t>(numel, 1);
    }
    totals_.resize(static_cast<size_t>(draft.source.grid.pipeline));
    for (const NamelessRank& rank : ranks) {
      if (!totals_[static_cast<size_t>(rank.stage)])
        totals_[static_cast<size_t>(rank.stage)] = by_numel ? rank.Numel() : rank.Count();
    }
  }

  // The first hypothesis whose sums fit.
  std::optional<std::pair<Hypothesis, std::vector<std::vector<int64_t>>>> Find() const {
    for (const Hypothesis& hypothesis : Hypotheses()) {
      auto stages = Assign(hypothesis);
      if (stages) return std::make_pair(hypothesis, *std::move(stages));
    }
    return std::nullopt;
  }

 private:
  static int32_t FirstTensorRank(const ModuleList& modules) {
    return modules.tensors.empty() ? 0 : modules.tensors.front().tensor;
  }

  std::set<std::string> Buffers() const {
    std::set<std::string> names;
    for (const auto& [number, file] : draft_.source.model) {
      const Value list = checkpoint::Get(draft_.source.Root(file), "buffer_names");
      const std::vector<Value>* items = checkpoint::SequenceItems(list);
      if (items == nullptr) continue;
      for (const Value& item : *items) names.insert(checkpoint::AsString(item).value_or(""));
    }
    return names;
  }

  // A tied layer lives on two stages, mostly the first and the last. Where the model says that it
  // ties, that is tried first.
  std::vector<Hypothesis> Hypotheses() const {
    const auto stages = static_cast<int32_t>(totals_.size());
    const Value args = checkpoint::Get(draft_.source.Root(draft_.source.AnyModel()), "args");
    const int64_t embedding = draft_.naming.embedding_layer();
    const bool untied =
        checkpoint::AsBool(checkpoint::Get(args, "untie_embeddings_and_output_weights"))
            .value_or(false) ||
        HasHead(embedding);
    std::vector<int32_t> ends{0};
    if (stages > 1) ends.push_back(stages - 1);
    std::vector<Hypothesis> list;
    if (embedding >= 0 && !untied && extent_.count(embedding) > 0)
      list.push_back({embedding, ends});
    list.push_back({});
    if (embedding >= 0 || stages == 1) return list;
    for (const auto& [layer, numel] : extent_) list.push_back({layer, ends});
    for (const auto& [layer, numel] : extent_) {
      for (int32_t first = 0; first < stages; ++first) {
        for (int32_t second = first + 1; second < stages; ++second)
          list.push_back({layer, {first, second}});
      }
    }
    return list;
  }

  // Megatron's untied head has a file of its own behind the final norm.
  bool HasHead(int64_t embedding) const {
    const std::vector<int64_t> numbers = draft_.naming.LayerNumbers();
    return embedding >= 0 && !numbers.empty() && !extent_.empty() &&
           extent_.rbegin()->first > numbers.back();
  }

  // Stage totals less the tied layer, then layers in order until each sum is reached; one stage
  // without a total takes what is left.
  std::optional<std::vector<std::vector<int64_t>>> Assign(const Hypothesis& hypothesis) const {
    std::vector<std::optional<int64_t>> targets = totals_;
    for (const int32_t stage : hypothesis.tied_stages) {
      auto& target = targets[static_cast<size_t>(stage)];
      if (target) *target -= extent_.at(hypothesis.tied_layer);
      if (target && *target < 0) return std::nullopt;
    }
    std::vector<int64_t> layers;
    for (const auto& [layer, numel] : extent_) {
      if (layer != hypothesis.tied_layer) layers.push_back(layer);
    }
    std::vector<std::vector<int64_t>> stages(targets.size());
    size_t begin = 0, end = layers.size(), first = 0, last = targets.size();
    for (; first < last && targets[first]; ++first) {
      if (!Take(layers, begin, end, *targets[first], true, stages[first])) return std::nullopt;
    }
    for (; last > first + 1 && targets[last - 1]; --last) {
      if (!Take(layers, begin, end, *targets[last - 1], false, stages[last - 1]))
        return std::nullopt;
    }
    if (last > first + 1) return std::nullopt;  // two stages without totals
    if (last == first + 1) {
      stages[first].assign(layers.begin() + static_cast<int64_t>(begin),
                           layers.begin() + static_cast<int64_t>(end));
      begin = end;
    }
    // Layers without parameters may be left at the end.
    for (; begin < end; ++begin) {
      if (extent_.at(layers[begin]) > 0) return std::nullopt;
      stages.back().push_back(layers[begin]);
    }
    return stages;
  }

  // Moves layers from the front or the back until `target` elements are taken.
  bool Take(const std::vector<int64_t>& layers, size_t& begin, size_t& end, int64_t target,
            bool front, std::vector<int64_t>& stage) const {
    int64_t taken = 0;
    while (taken < target && begin < end) {
      const int64_t layer = front ? layers[begin++] : layers[--end];
      stage.insert(front ? stage.end() : stage.begin(), layer);
      taken += extent_.at(layer);
    }
    return taken == target;
  }

  const Draft& draft_;
  std::map<int64_t, int64_t>
      extent_;  // elements (or number) of parameters of each layer on one tensor rank
  std::vector<std::optional<int64_t>> totals_;  // the same in the groups of each stage
};

// Frozen parameters spoil the sums; then the cuts must be declared.
void AssignDeclared(Draft& draft, const ModuleList& modules) {
  const std::vector<int64_t>& cuts = draft.naming.declared_cuts();
  const auto stages = static_cast<size_t>(draft.source.grid.pipeline);
  if (cuts.size() != stages + 1 || !std::is_sorted(cuts.begin(), cuts.end())) return;
  draft.stage_layers.resize(stages);
  for (const int64_t layer : modules.layers) {
    const auto next = std::upper_bound(cuts.begin(), cuts.end() - 1, layer);
    if (next != cuts.begin())
      draft.stage_layers[static_cast<size_t>(next - cuts.begin()) - 1].push_back(layer);
  }
}

}  // namespace

void DecideStages(Draft& draft, const ModuleList& modules, const std::vector<NamelessRank>& ranks) {
  const auto found = StageFinder(draft, modules, ranks).Find();
  if (!found) {
    AssignDeclared(draft, modules);
    return;
  }
  draft.stage_layers = found->second;
  if (found->first.tied_layer < 0) return;
  // The key of a tied module stands in no stage 0 file without slice mappings; `embed` is what
  // Megatron-DeepSpeed calls it.
  draft.tied[found->first.tied_layer] = "embed";
  draft.tied_stages[found->first.tied_layer] = found->first.tied_stages;
  if (draft.naming.embedding_layer() < 0) {
    draft.Note("tied-name-assumed",
               "layer " + std::to_string(found->first.tied_layer) +
                   " is used on two stages; no file says its key under tied_modules, "
                   "'embed' is assumed",
               {"tied_modules.embed"});
  }
}

}  // namespace oracle
