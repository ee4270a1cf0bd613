#include "oracle/nameless.h"

#include <algorithm>
#include <set>

#include "checkpoint/limits.h"
#include "checkpoint/tree.h"

namespace oracle {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Result;
using checkpoint::Status;
using checkpoint::Value;

std::optional<int64_t> NamelessRank::Numel() const {
  int64_t numel = 0;
  for (const NamelessGroup& group : groups) {
    if (group.flat) numel += group.numel;
    for (const Slot& slot : group.slots) {
      if (!slot.shape) return std::nullopt;
      numel += Product(*slot.shape);
    }
  }
  return numel;
}

int64_t NamelessRank::Count() const {
  int64_t count = 0;
  for (const NamelessGroup& group : groups) count += static_cast<int64_t>(group.slots.size());
  return count;
}

bool HasNamelessOptimizer(const Value& model_root) {
  const Value optimizer = checkpoint::Get(model_root, "optimizer");
  return checkpoint::Has(optimizer, "fp32_groups_flat") ||
         checkpoint::Has(optimizer, "fp32_groups") ||
         (checkpoint::Has(optimizer, "state") && checkpoint::Has(optimizer, "param_groups"));
}

namespace {

// Reads the groups of one model file.
class NamelessReader {
 public:
  NamelessReader(const Source& source, NamelessRank& rank) : source_(source), rank_(rank) {}

  Status Read() {
    const Value optimizer = checkpoint::Get(source_.Root(rank_.file), "optimizer");
    const bool bare = !checkpoint::Has(optimizer, "optimizer_state_dict");
    const Value base = bare ? optimizer : checkpoint::Get(optimizer, "optimizer_state_dict");
    state_ = checkpoint::Get(base, "state");
    parameters_ = checkpoint::Get(base, "param_groups");
    if (const std::vector<Value>* groups = checkpoint::SequenceItems(parameters_))
      rank_.hyper_parameters = *groups;
    const Value flat = checkpoint::Get(optimizer, "fp32_groups_flat"),
                lists = checkpoint::Get(optimizer, "fp32_groups");
    if (const std::vector<Value>* groups = checkpoint::SequenceItems(flat)) {
      for (size_t i = 0; i < groups->size(); ++i)
        CK_DO(ReadFlat(static_cast<int64_t>(i), (*groups)[i]));
    } else if (const std::vector<Value>* masters = checkpoint::SequenceItems(lists)) {
      int64_t id = 0;
      for (const Value& list : *masters) CK_DO(ReadList(list, id));
    } else {
      for (const Value& group : rank_.hyper_parameters) CK_DO(ReadBare(group));
    }
    return checkpoint::Done{};
  }

 private:
  Rank Holder0() const { return {rank_.tensor, rank_.stage, 0}; }

  // Tensors of a state dictionary but its step.
  Status ReadStates(const Value& state,
                    const std::function<void(const std::string&, Stored)>& take) {
    const checkpoint::Items* items = checkpoint::MappingItems(state);
    if (items == nullptr) return checkpoint::Done{};
    for (const auto& [key, value] : *items) {
      const auto name = checkpoint::AsString(key);
      if (!name || *name == "step" || !checkpoint::IsTensor(value)) continue;
      CK_TRY(Stored stored, source_.TensorAt(rank_.file, Holder0(), value));
      take(*name, std::move(stored));
    }
    return checkpoint::Done{};
  }

  static std::shared_ptr<const FlatState> OnePartition(Stored stored) {
    auto flat = std::make_shared<FlatState>();
    flat->partition_numel = stored.view.numel();
    flat->dtype = stored.view.storage->dtype;
    flat->partitions.emplace_back(std::move(stored));
    return flat;
  }

  Status ReadFlat(int64_t id, const Value& master) {
    CK_TRY(Stored stored, source_.TensorAt(rank_.file, Holder0(), master));
    NamelessGroup group;
    group.flat = true;
    group.numel = stored.view.numel();
    group.states[kMaster] = OnePartition(std::move(stored));
    const Value state = checkpoint::GetIndex(state_, id);
    CK_DO(ReadStates(state, [&](const std::string& name, Stored moment) {
      if (moment.view.shape.size() == 1) group.states[name] = OnePartition(std::move(moment));
    }));
    group.step = StepOf(checkpoint::Get(state, "step"));
    rank_.groups.push_back(std::move(group));
    return checkpoint::Done{};
  }

  Status ReadSlot(int64_t id, Slot& slot) {
    const Value state = checkpoint::GetIndex(state_, id);
    CK_DO(ReadStates(state, [&](const std::string& name, Stored moment) {
      if (!slot.shape) slot.shape = moment.view.shape;
      if (moment.view.shape == *slot.shape) slot.states[name] = std::move(moment);
    }));
    slot.step = StepOf(checkpoint::Get(state, "step"));
    return checkpoint::Done{};
  }

  Status ReadList(const Value& list, int64_t& id) {
    NamelessGroup group;
    const std::vector<Value>* masters = checkpoint::SequenceItems(list);
    if (masters == nullptr) return checkpoint::Done{};
    for (const Value& master : *masters) {
      Slot slot;
      CK_TRY(Stored stored, source_.TensorAt(rank_.file, Holder0(), master));
      slot.shape = stored.view.shape;
      slot.states[kMaster] = std::move(stored);
      CK_DO(ReadSlot(id++, slot));
      group.slots.push_back(std::move(slot));
    }
    rank_.groups.push_back(std::move(group));
    return checkpoint::Done{};
  }

  Status ReadBare(const Value& parameters) {
    NamelessGroup group;
    const auto ids = checkpoint::AsIntList(checkpoint::Get(parameters, "params"));
    for (const int64_t id : ids.value_or(std::vector<int64_t>())) {
      Slot slot;
      CK_DO(ReadSlot(id, slot));
      group.slots.push_back(std::move(slot));
    }
    rank_.groups.push_back(std::move(group));
    return checkpoint::Done{};
  }

  const Source& source_;
  NamelessRank& rank_;
  Value state_, parameters_;
};

}  // namespace

Result<std::vector<NamelessRank>> GatherNameless(const Draft& draft) {
  std::vector<NamelessRank> ranks;
  for (const auto& [number, file] : draft.source.model) {
    if (!HasNamelessOptimizer(draft.source.Root(file))) continue;
    NamelessRank rank;
    rank.stage = static_cast<int32_t>(number / draft.source.grid.tensor);
    rank.tensor = static_cast<int32_t>(number % draft.source.grid.tensor);
    rank.file = file;
    CK_DO(NamelessReader(draft.source, rank).Read());
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

namespace {

// What was proved over all ranks, for one notice each.
struct Proofs {
  int64_t proved = 0, provable = 0;
  bool derived = true, bare = false;
  std::set<std::string> unproved, unprovable, ambiguous;
};

class NamelessNamer {
 public:
  explicit NamelessNamer(Draft& draft) : draft_(draft) {}

  Status Name(const std::vector<NamelessRank>& ranks) {
    for (const NamelessRank& rank : ranks) {
      const std::vector<Candidate> candidates = CandidatesOf(rank);
      const auto order = FindOrder(candidates, rank.groups, draft_.naming.group_rule());
      if (!order) {
        CK_DO(Refuse(rank));
        continue;
      }
      Tally(candidates, *order);
      Register(rank, candidates, *order);
    }
    Report();
    return checkpoint::Done{};
  }

 private:
  // Parameters of the rank in module order: the tied layer first, then the stage's layers.
  std::vector<Candidate> CandidatesOf(const NamelessRank& rank) const {
    std::vector<Candidate> tied, own;
    for (const TensorEntry& entry : draft_.tensors) {
      if (entry.info.role == Role::kBuffer || !entry.info.alias_of.empty()) continue;
      const Holder* weight = draft_.WeightOf(entry.info.name, rank.tensor);
      const Holder* any = weight != nullptr ? weight : draft_.WeightOf(entry.info.name, 0);
      if (any == nullptr) continue;
      Candidate candidate{entry.info.name, any->shape, weight};
      if (entry.layer < 0) {
        own.push_back(std::move(candidate));
      } else if (draft_.tied.count(entry.layer) > 0) {
        const std::vector<int32_t>& stages = draft_.tied_stages.at(entry.layer);
        if (std::find(stages.begin(), stages.end(), rank.stage) == stages.end()) continue;
        const bool later = rank.stage != stages.front();
        if (later && draft_.tensors[draft_.index_of.at(entry.info.name)].kind.stale_copy)
          candidate.weight = nullptr;
        tied.push_back(std::move(candidate));
      } else if (OwnsLayer(rank.stage, entry.layer)) {
        own.push_back(std::move(candidate));
      }
    }
    tied.insert(tied.end(), own.begin(), own.end());
    return tied;
  }

  bool OwnsLayer(int32_t stage, int64_t layer) const {
    if (draft_.stage_layers.empty()) return false;
    const std::vector<int64_t>& layers = draft_.stage_layers[static_cast<size_t>(stage)];
    return std::find(layers.begin(), layers.end(), layer) != layers.end();
  }

  // Where files are missing the states stay unread and say so; where none is, the layout is one we
  // do not know.
  Status Refuse(const NamelessRank& rank) {
    const Place place = draft_.source.PlaceOf(rank.file, {rank.tensor, rank.stage, 0});
    const auto files =
        ListFiles(draft_.source, false,
                  draft_.source.pipelined ? draft_.naming.LayerNumbers() : std::vector<int64_t>());
    const bool missing = std::any_of(files.begin(), files.end(), [](const FileFact& file) {
      return file.expected && !file.present;
    });
    if (!missing) {
      return Error{ErrorCode::kUnprovedOrder,
                   std::to_string(rank.groups.size()) + " nameless optimizer groups of " +
                       std::to_string(rank.Numel().value_or(-1)) +
                       " elements that no order of the weights fits",
                   "groups whose sizes are those of the stage's parameters", place.file,
                   "Check that all files are of one step; declare the groups with rules if the "
                   "model is not known."};
    }
    draft_.Fault("order-unproved",
                 "optimizer states of this rank cannot be named while files are missing", {},
                 place);
    return checkpoint::Done{};
  }

  void Tally(const std::vector<Candidate>& candidates, const Order& order) {
    proofs_.proved += order.proved;
    proofs_.provable += order.provable;
    proofs_.derived = proofs_.derived && order.derived;
    proofs_.unproved.insert(order.unproved.begin(), order.unproved.end());
    for (const std::string& name : order.unprovable) {
      const bool stale = draft_.Find(name)->kind.stale_copy;
      if (stale) proofs_.unprovable.insert(name);
      proofs_.bare = proofs_.bare || !stale;
    }
    const std::vector<std::string> ambiguous = AmbiguousNames(candidates, order);
    proofs_.ambiguous.insert(ambiguous.begin(), ambiguous.end());
    if (order.provable == 0) AddInterchangeable(candidates, order);
  }

  // Without masters a frozen parameter of the same shape as a trained one cannot be told from it.
  void AddInterchangeable(const std::vector<Candidate>& candidates, const Order& order) {
    std::set<size_t> placed;
    for (const auto& group : order.groups) placed.insert(group.begin(), group.end());
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (placed.count(i) > 0 || candidates[i].numel() == 0) continue;
      for (const size_t other : placed) {
        if (candidates[other].shape != candidates[i].shape) continue;
        proofs_.ambiguous.insert(candidates[i].name);
        proofs_.ambiguous.insert(candidates[other].name);
      }
    }
  }

  void Register(const NamelessRank& rank, const std::vector<Candidate>& candidates,
                const Order& order) {
    std::map<std::string, int32_t> seen;
    const Place place = draft_.source.PlaceOf(rank.file, {rank.tensor, rank.stage, 0});
    for (size_t g = 0; g < rank.groups.size(); ++g) {
      const Value parameters =
          g < rank.hyper_parameters.size() ? rank.hyper_parameters[g] : Value();
      const int32_t group = draft_.GroupIndex(parameters, static_cast<int32_t>(g), seen, place);
      int64_t start = 0;
      for (size_t i = 0; i < order.groups[g].size(); ++i) {
        const Candidate& candidate = candidates[order.groups[g][i]];
        RegisterMember(rank, rank.groups[g], {candidate.name, candidate.shape, start}, i);
        draft_.AddGroupMember(group, candidate.name);
        start += candidate.numel();
      }
    }
  }

  void RegisterMember(const NamelessRank& rank, const NamelessGroup& group, const Member& member,
                      size_t index) {
    std::vector<std::string> states;
    if (group.flat) {
      for (const auto& [state, flat] : group.states) states.push_back(state);
    } else {
      for (const auto& [state, stored] : group.slots[index].states) states.push_back(state);
    }
    for (const std::string& state : states) {
      Holder holder = PlacedAt(group, index, member.start, member.shape, state);
      holder.rank = {rank.tensor, rank.stage, 0};
      draft_.AddHolder(member.name, state, std::move(holder));
    }
    TensorEntry& entry = draft_.Entry(member.name);
    entry.info.role = Role::kTrainable;
    const auto step = group.flat ? group.step : group.slots[index].step;
    if (!entry.info.step) entry.info.step = step;
  }

  void Report() {
    const std::string counts =
        std::to_string(proofs_.proved) + " of " + std::to_string(proofs_.provable);
    if (proofs_.provable > 0 && proofs_.unproved.empty()) {
      draft_.Note(
          proofs_.derived ? "order-proved" : "order-from-content",
          "the order of the nameless optimizer groups was " +
              std::string(proofs_.derived ? "derived from the module order" : "found by content") +
              "; masters round to the weights for " + counts + " parameters",
          {});
    }
    if (!proofs_.unproved.empty()) {
      draft_.Fault("order-unproved",
                   "masters round to the weights for only " + counts +
                       " parameters; the order of the nameless optimizer groups is "
                       "the derived one. Stale masters look like this (law S4)",
                   {proofs_.unproved.begin(), proofs_.unproved.end()});
    }
    if (!proofs_.unprovable.empty()) {
      draft_.Note("unproved-stale-tied-copy",
                  "the later stage's copy of a tied parameter has its weight in no file; its place "
                  "follows from its neighbours",
                  {proofs_.unprovable.begin(), proofs_.unprovable.end()});
    }
    if (proofs_.bare) {
      draft_.Note("order-not-provable",
                  "a bare fp32 optimizer holds no masters to compare; parameters were matched by "
                  "order and shape",
                  {});
    }
    if (!proofs_.ambiguous.empty()) {
      draft_.Note("order-ambiguous",
                  "these parameters have one shape and cannot be told apart by content; the module "
                  "order decides",
                  {proofs_.ambiguous.begin(), proofs_.ambiguous.end()});
    }
  }

  Draft& draft_;
  Proofs proofs_;
};

// Parameters of stages whose model files are all missing: trained by all we know, and not covered.
void MarkStagesWithoutFiles(Draft& draft, const std::vector<NamelessRank>& ranks) {
  std::set<int32_t> there;
  for (const NamelessRank& rank : ranks) there.insert(rank.stage);
  if (static_cast<int32_t>(there.size()) == draft.source.grid.pipeline) return;
  std::set<int64_t> covered_layers;
  for (const int32_t stage : there) {
    if (draft.stage_layers.empty()) break;
    const auto& layers = draft.stage_layers[static_cast<size_t>(stage)];
    covered_layers.insert(layers.begin(), layers.end());
  }
  for (const TensorEntry& entry : draft.tensors) {
    if (entry.info.role == Role::kFrozen && entry.layer >= 0 &&
        covered_layers.count(entry.layer) == 0) {
      draft.incomplete.insert(entry.info.name);
    }
  }
}

}  // namespace

Status ReadNameless(Draft& draft) {
  CK_TRY(const std::vector<NamelessRank> ranks, GatherNameless(draft));
  CK_DO(NamelessNamer(draft).Name(ranks));
  MarkStagesWithoutFiles(draft, ranks);
  return checkpoint::Done{};
}

}  // namespace oracle
