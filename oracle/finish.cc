// Once all files are read: what names mean, full shapes, stale copies, and the rest of the summary.
#include <algorithm>
#include <set>

#include "checkpoint/tree.h"
#include "oracle/draft.h"

namespace oracle {

using checkpoint::DType;
using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Parallel;
using checkpoint::Status;
using checkpoint::Value;

Status DecideKinds(Draft& draft) {
  std::map<std::pair<bool, std::string>, std::vector<std::string>> disagreements;
  for (TensorEntry& entry : draft.tensors) {
    if (!entry.kind.canonical.empty()) continue;
    CK_TRY(entry.kind, draft.naming.KindOf(entry.info.name));
    if (!entry.kind.disagreement.empty())
      disagreements[{entry.kind.against_file, entry.kind.disagreement}].push_back(entry.info.name);
    entry.info.rule_in_doubt = entry.kind.against_file ? entry.kind.disagreement : "";
  }
  for (auto& [said, names] : disagreements)
    draft.Note("rules-disagree", said.second, std::move(names));
  return checkpoint::Done{};
}

namespace {

int64_t LayerOf(const std::string& name) {
  const auto match = checkpoint::MatchTemplate("{layer}.{rest}", name);
  return match && match->layer ? *match->layer : -1;
}

class Finisher {
 public:
  explicit Finisher(Draft& draft) : draft_(draft) {}

  Status Run() {
    AddUncoveredStates();
    if (draft_.summary.wrapper == "torch") WeightsAreMasters();
    for (TensorEntry& entry : draft_.tensors) {
      CK_DO(Describe(entry));
      MarkStaleCopies(entry);
      CK_DO(MeasureShape(entry));
    }
    for (TensorEntry& entry : draft_.tensors) {
      const TensorEntry* named = draft_.Find(entry.info.alias_of);
      if (named != nullptr) entry.info.shape = named->info.shape;
    }
    SortTensors();
    FillCuts();
    PlaceWeights();
    return checkpoint::Done{};
  }

 private:
  // States whose files are missing exist all the same, with nobody who holds them.
  void AddUncoveredStates() {
    std::map<std::string, DType> trained;
    std::optional<DType> weight;
    for (const TensorEntry& entry : draft_.tensors) {
      if (entry.info.role != Role::kTrainable) continue;
      for (const auto& [state, dtype] : entry.info.states)
        (state == kWeight ? weight.emplace(dtype) : trained[state] = dtype);
    }
    for (const std::string& name : draft_.incomplete) {
      TensorEntry& entry = draft_.Entry(name);
      entry.info.role = Role::kTrainable;
      for (const auto& [state, dtype] : trained) AddEmpty(entry, state, dtype);
    }
    if (draft_.source.folder.universal) return;  // its layer files were never copied
    for (TensorEntry& entry : draft_.tensors) {
      if (entry.info.alias_of.empty()) AddEmpty(entry, kWeight, weight.value_or(DType::kFloat32));
    }
  }

  static void AddEmpty(TensorEntry& entry, const std::string& state, DType dtype) {
    entry.holders.try_emplace(state);
    entry.info.states.try_emplace(state, dtype);
  }

  void WeightsAreMasters() {
    draft_.summary.master_is_weight = true;
    for (TensorEntry& entry : draft_.tensors) {
      if (entry.info.role != Role::kTrainable || entry.info.states.count(kWeight) == 0) continue;
      entry.holders[kMaster] = entry.holders[kWeight];
      entry.info.states[kMaster] = entry.info.states[kWeight];
    }
  }

  Status Describe(TensorEntry& entry) const {
    const ParameterKind& kind = entry.kind;
    const bool parameter = entry.info.role != Role::kBuffer && entry.info.alias_of.empty();
    if (parameter && !kind.named && draft_.source.grid.tensor > 1) {
      return Error{ErrorCode::kUnnamedParameter,
                   "parameter " + entry.info.name + " that no rule names",
                   "a rule that says whether and how it is split over " +
                       std::to_string(draft_.source.grid.tensor) + " tensor ranks",
                   draft_.source.folder.step_folder.string(), "Name it in a rules file (--rules)."};
    }
    entry.info.canonical = kind.canonical;
    entry.info.rule = kind.rule;
    switch (kind.parallel) {
      case Parallel::kReplicated:
        entry.info.parallel = "replicated";
        break;
      case Parallel::kColumn:
        entry.info.parallel = "column";
        break;
      case Parallel::kRow:
        entry.info.parallel = "row";
        break;
      case Parallel::kVocabulary:
        entry.info.parallel = "vocabulary";
        break;
    }
    entry.info.partition_dim = kind.parallel == Parallel::kReplicated ? -1
                               : kind.parallel == Parallel::kRow      ? 1
                                                                      : 0;
    return checkpoint::Done{};
  }

  // The first stage's copy is the real one.
  static void MarkStaleCopies(TensorEntry& entry) {
    if (!entry.kind.stale_copy) return;
    for (auto& [state, holders] : entry.holders) {
      int32_t first = INT32_MAX;
      for (const Holder& holder : holders) first = std::min(first, holder.rank.stage);
      for (Holder& holder : holders) holder.stale = holder.rank.stage > first;
    }
  }

  // Shapes of the shards by tensor rank: the weight's where there is one.
  static std::map<int32_t, std::vector<int64_t>> ShardShapes(const TensorEntry& entry) {
    std::map<int32_t, std::vector<int64_t>> shapes;
    const auto weights = entry.holders.find(kWeight);
    if (weights != entry.holders.end()) {
      for (const Holder& holder : weights->second)
        shapes.try_emplace(holder.rank.tensor, holder.shape);
    }
    for (const auto& [state, holders] : entry.holders) {
      for (const Holder& holder : holders) shapes.try_emplace(holder.rank.tensor, holder.shape);
    }
    return shapes;
  }

  Status MeasureShape(TensorEntry& entry) {
    if (const auto full = FullShape(entry)) {
      entry.info.shape = *full;
      return FinishVocabulary(entry);
    }
    const std::map<int32_t, std::vector<int64_t>> shapes = ShardShapes(entry);
    if (shapes.empty()) return checkpoint::Done{};
    DropForeignShapes(entry, shapes);
    entry.info.shape = shapes.begin()->second;
    const int32_t dimension = entry.info.partition_dim;
    if (dimension < 0 || !entry.info.alias_of.empty()) {
      for (const auto& [tensor, shape] : shapes) {
        if (shape == entry.info.shape) continue;
        draft_.Fault("shape-contradiction",
                     entry.info.name + " is replicated, but its shape differs between tensor ranks",
                     {entry.info.name});
      }
      return FinishVocabulary(entry);
    }
    if (dimension >= static_cast<int32_t>(entry.info.shape.size())) {
      return Error{
          ErrorCode::kInconsistent,
          entry.info.name + " with " + std::to_string(entry.info.shape.size()) + " dimensions",
          "at least " + std::to_string(dimension + 1) + " (" + entry.info.rule + ")",
          draft_.source.folder.step_folder.string(), "Mend the rule."};
    }
    int64_t extent = 0;
    for (int32_t tensor = 0; tensor < draft_.source.grid.tensor; ++tensor) {
      const auto shape = shapes.count(tensor) > 0 ? shapes.at(tensor) : shapes.begin()->second;
      const auto axis = static_cast<size_t>(dimension);
      extent += axis < shape.size() ? shape[axis] : 0;
    }
    entry.info.shape[static_cast<size_t>(dimension)] = extent;
    return FinishVocabulary(entry);
  }

  static std::optional<std::vector<int64_t>> FullShape(const TensorEntry& entry) {
    for (const auto& [state, holders] : entry.holders) {
      for (const Holder& holder : holders) {
        if (holder.full) return holder.shape;
      }
    }
    return std::nullopt;
  }

  // A copy of as many elements takes the weight's shape; any other contradicts it and is left out.
  void DropForeignShapes(TensorEntry& entry,
                         const std::map<int32_t, std::vector<int64_t>>& shapes) {
    for (auto& [state, holders] : entry.holders) {
      std::erase_if(holders, [&](Holder& holder) {
        const std::vector<int64_t>& shape = shapes.at(holder.rank.tensor);
        if (holder.shape == shape) return false;
        if (holder.flat && holder.numel() == Product(shape)) {
          holder.shape = shape;
          return false;
        }
        draft_.Fault("shape-contradiction",
                     entry.info.name + " " + state + " has another shape than the weight on " +
                         holder.rank.ToString(),
                     {entry.info.name},
                     holder.whole ? holder.whole->place : Place{"", "", holder.rank});
        return true;
      });
    }
  }

  Status FinishVocabulary(TensorEntry& entry) {
    if (entry.kind.parallel != Parallel::kVocabulary || entry.info.shape.empty())
      return checkpoint::Done{};
    const Value& root = draft_.source.Root(draft_.source.AnyModel());
    auto rows = checkpoint::AsInt(
        checkpoint::GetPath(root, {"universal_checkpoint_info", "original_vocab_size"}));
    if (!rows)
      rows =
          checkpoint::AsInt(checkpoint::GetPath(root, {"checkpoint_info", "original_vocab_size"}));
    entry.info.vocabulary_rows = entry.info.shape[0];
    if (!rows) {
      draft_.Note(
          "vocabulary-size-unknown",
          "no file says how many rows of " + entry.info.name + " are vocabulary; all are taken",
          {entry.info.name});
    } else if (*rows < 0 || *rows > entry.info.shape[0]) {
      draft_.Fault("vocabulary-larger-than-tensor",
                   "the files say " + std::to_string(*rows) + " vocabulary rows, " +
                       entry.info.name + " has " + std::to_string(entry.info.shape[0]),
                   {entry.info.name});
    } else {
      entry.info.vocabulary_rows = *rows;
    }
    return checkpoint::Done{};
  }

  void SortTensors() {
    if (!draft_.source.pipelined) return;
    for (TensorEntry& entry : draft_.tensors) {
      if (entry.layer < 0) entry.layer = LayerOf(entry.info.name);
    }
    std::stable_sort(draft_.tensors.begin(), draft_.tensors.end(),
                     [](const TensorEntry& a, const TensorEntry& b) { return a.layer < b.layer; });
    draft_.index_of.clear();
    for (size_t i = 0; i < draft_.tensors.size(); ++i)
      draft_.index_of[draft_.tensors[i].info.name] = i;
  }

  // First layer of each stage that the states show, and one past the last layer.
  void FillCuts() {
    if (!draft_.source.pipelined || draft_.tensors.empty()) return;
    std::map<int32_t, int64_t> first_layer;
    int64_t last = 0;
    for (const TensorEntry& entry : draft_.tensors) {
      last = std::max(last, entry.layer + 1);
      for (const auto& [state, holders] : entry.holders) {
        if (state == kWeight || entry.layer < 0 || holders.empty()) continue;
        const int32_t stage = holders.front().rank.stage;
        const auto found = first_layer.try_emplace(stage, entry.layer).first;
        found->second = std::min(found->second, entry.layer);
      }
    }
    if (static_cast<int32_t>(first_layer.size()) != draft_.source.grid.pipeline) return;
    for (const auto& [stage, layer] : first_layer)
      draft_.summary.cuts.push_back(stage == 0 ? 0 : layer);
    draft_.summary.cuts.push_back(last);
  }

  // Layer files do not say their stage; the cuts do.
  void PlaceWeights() {
    const std::vector<int64_t>& cuts = draft_.summary.cuts;
    if (cuts.size() < 2) return;
    for (TensorEntry& entry : draft_.tensors) {
      const auto weights = entry.holders.find(kWeight);
      if (weights == entry.holders.end() || entry.layer < 0) continue;
      const auto next = std::upper_bound(cuts.begin(), cuts.end() - 1, entry.layer);
      const auto stage = std::max<int32_t>(0, static_cast<int32_t>(next - cuts.begin()) - 1);
      for (Holder& holder : weights->second) {
        holder.rank.stage = stage;
        if (holder.whole) holder.whole->place.rank.stage = stage;
      }
    }
  }

  Draft& draft_;
};

}  // namespace

Status Finish(Draft& draft) {
  CK_DO(DecideKinds(draft));
  return Finisher(draft).Run();
}

}  // namespace oracle
