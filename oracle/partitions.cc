#include "oracle/partitions.h"

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

namespace {

constexpr int64_t kProofWindowNumel =
    256;  // per parameter: enough to tell orders apart; law S4 compares every element

// The optimizer dictionaries of one model-parallel rank. BF16_Optimizer without files leaves a copy
// in the model file.
RankFiles FilesOf(const Source& source, int32_t stage, int32_t tensor) {
  RankFiles rank;
  rank.stage = stage;
  rank.tensor = tensor;
  rank.dictionaries.resize(static_cast<size_t>(source.grid.data));
  rank.files.resize(static_cast<size_t>(source.grid.data), source.AnyModel());
  for (int32_t data = 0; data < source.grid.data; ++data) {
    const auto found = source.optimizer.find({source.ModelNumber(stage, tensor), data});
    if (found == source.optimizer.end()) continue;
    rank.files[static_cast<size_t>(data)] = found->second;
    rank.dictionaries[static_cast<size_t>(data)] =
        checkpoint::Get(source.Root(found->second), "optimizer_state_dict");
  }
  return rank;
}

// The dictionary that a stage 0 run in bf16 leaves in the model file besides the optimizer files:
// data rank 0's.
RankFiles ModelCopyOf(const Source& source, int32_t stage, int32_t tensor) {
  RankFiles rank;
  rank.stage = stage;
  rank.tensor = tensor;
  const auto found = source.model.find(source.ModelNumber(stage, tensor));
  if (found == source.model.end()) return rank;
  const Value copy = checkpoint::Get(source.Root(found->second), "optimizer");
  if (!checkpoint::Has(copy, "single_partition_of_fp32_groups")) return rank;
  rank.dictionaries.assign(static_cast<size_t>(source.grid.data), Value());
  rank.files.assign(static_cast<size_t>(source.grid.data), found->second);
  rank.dictionaries[0] = copy;
  return rank;
}

int32_t GroupCount(const RankFiles& rank) {
  const Value list = checkpoint::Get(rank.First(), "single_partition_of_fp32_groups");
  const std::vector<Value>* groups = checkpoint::SequenceItems(list);
  return groups == nullptr ? 0 : static_cast<int32_t>(groups->size());
}

Result<GroupFacts> FactsOf(const Draft& draft, const RankFiles& rank, int32_t position) {
  GroupFacts facts;
  facts.position = position;
  const Value& first = rank.First();
  const auto counts = checkpoint::AsIntList(checkpoint::Get(first, "partition_count"));
  facts.partition_count = static_cast<int64_t>(rank.dictionaries.size());
  if (counts && position < static_cast<int32_t>(counts->size())) {
    const int64_t said = (*counts)[static_cast<size_t>(position)];
    if (said != facts.partition_count) {
      return Error{
          ErrorCode::kInconsistent, "partition_count " + std::to_string(said),
          std::to_string(facts.partition_count) + " data ranks", rank.FirstPlace(draft.source).file,
          "The files of the step come from different runs, or some data ranks are missing."};
    }
  }
  facts.elastic =
      checkpoint::SequenceItems(checkpoint::Get(first, "base_optimizer_state")) != nullptr;
  facts.keeps_padding = draft.summary.wrapper == "BF16_Optimizer";
  return facts;
}

// Numel of a 1-D partition; -1 where there is none.
int64_t StoredNumel(const Value& value) {
  if (!checkpoint::IsTensor(value)) return -1;
  auto view = checkpoint::DecodeTensor(value, "");
  return view.ok() && view.value().shape.size() == 1 ? view.value().numel() : -1;
}

// The partition length of the files where they hold padding, else by the rule.
int64_t MeasuredPartition(const RankFiles& rank, const GroupFacts& facts, int64_t group_numel) {
  for (const Value& dictionary : rank.dictionaries) {
    if (!dictionary) continue;
    if (facts.keeps_padding) {
      const int64_t numel = StoredNumel(PartitionValue(dictionary, facts.position, kMaster));
      if (numel >= 0) return numel;
    }
    if (facts.elastic) continue;
    for (const std::string& key : StateKeys(dictionary, facts.position)) {
      const int64_t numel = StoredNumel(PartitionValue(dictionary, facts.position, key));
      if (numel >= 0) return numel;
    }
  }
  if (group_numel >= 0) return PartitionNumel(group_numel, facts.partition_count);
  int64_t longest = 0;
  for (const Value& dictionary : rank.dictionaries) {
    longest = std::max(longest, StoredNumel(PartitionValue(dictionary, facts.position, kMaster)));
  }
  return longest;
}

// One state of the group over all data ranks.
Result<std::shared_ptr<FlatState>> GatherState(const Draft& draft, const RankFiles& rank,
                                               const GroupFacts& facts, const std::string& state) {
  auto flat = std::make_shared<FlatState>();
  flat->partition_numel = facts.partition_numel;
  flat->partitions.resize(rank.dictionaries.size());
  bool any = false;
  for (size_t data = 0; data < rank.dictionaries.size(); ++data) {
    if (!rank.dictionaries[data]) continue;
    const Value value = PartitionValue(rank.dictionaries[data], facts.position, state);
    if (StoredNumel(value) < 0) continue;
    CK_TRY(Stored stored, draft.source.TensorAt(rank.files[data], rank.RankOf(data), value));
    if (any && stored.view.storage->dtype != flat->dtype) continue;  // reported as uncovered
    flat->dtype = stored.view.storage->dtype;
    flat->partitions[data] = std::move(stored);
    any = true;
  }
  if (!any) return std::shared_ptr<FlatState>();
  return flat;
}

Holder MemberHolder(const RankFiles& rank, const Member& member,
                    std::shared_ptr<const FlatState> flat) {
  Holder holder;
  holder.rank = {rank.tensor, rank.stage, 0};
  holder.shape = member.shape;
  holder.start = member.start;
  holder.flat = std::move(flat);
  return holder;
}

struct ProofScore {
  int64_t proved = 0, provable = 0;
};

// How many parameters' masters round to their weights in this order.
ProofScore ScoreOf(const Draft& draft, const RankFiles& rank, const GroupLayout& layout,
                   const std::shared_ptr<const FlatState>& masters) {
  ProofScore score;
  for (const Member& member : layout.members) {
    const Holder* weight = draft.WeightOf(member.name, rank.tensor);
    if (weight == nullptr || weight->numel() != member.numel() || member.numel() == 0) continue;
    ++score.provable;
    if (MasterMatchesWeight(MemberHolder(rank, member, masters), *weight, kProofWindowNumel))
      ++score.proved;
  }
  return score;
}

// The order that round_robin_gradients gives: every count-th parameter from 0 on, then from 1 on,
// and so on.
Value RoundRobinOrder(const Value& shapes, int64_t count) {
  const checkpoint::Items* items = checkpoint::MappingItems(shapes);
  if (items == nullptr) return shapes;
  checkpoint::Items reordered;
  for (size_t bucket = 0; bucket < static_cast<size_t>(count) && bucket < items->size(); ++bucket) {
    for (size_t i = bucket; i < items->size(); i += static_cast<size_t>(count))
      reordered.push_back((*items)[i]);
  }
  return checkpoint::MakeDict(std::move(reordered));
}

std::vector<int64_t> AlignmentPads(const Value& dictionary, int32_t position) {
  const Value pads = checkpoint::Get(dictionary, "param_alignment_paddings");
  const std::vector<Value>* groups = checkpoint::SequenceItems(pads);
  if (groups == nullptr || position >= static_cast<int32_t>(groups->size())) return {};
  return checkpoint::AsIntList((*groups)[static_cast<size_t>(position)])
      .value_or(std::vector<int64_t>());
}

std::map<std::string, std::vector<int64_t>> WeightShapes(const Draft& draft, int32_t tensor) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const TensorEntry& entry : draft.tensors) {
    const Holder* weight = draft.WeightOf(entry.info.name, tensor);
    if (weight != nullptr) shapes[entry.info.name] = weight->shape;
  }
  return shapes;
}

Value GroupShapes(const Draft& draft, const RankFiles& rank, int32_t position) {
  const Value shapes = checkpoint::Get(draft.source.Model(rank.stage, rank.tensor), "param_shapes");
  const std::vector<Value>* groups = checkpoint::SequenceItems(shapes);
  if (groups == nullptr || position >= static_cast<int32_t>(groups->size())) return Value();
  return (*groups)[static_cast<size_t>(position)];
}

// Reads one model-parallel rank.
class RankReader {
 public:
  // `copy`: the second dictionary in the model file, whose groups lie as `layouts` says (those of
  // the files, where there are files).
  RankReader(Draft& draft, RankFiles rank, bool copy, std::vector<GroupLayout>& layouts)
      : draft_(draft), rank_(std::move(rank)), copy_(copy), layouts_(layouts) {}

  Status Read() {
    std::map<std::string, int32_t> seen;
    for (int32_t position = 0; position < GroupCount(rank_); ++position) {
      CK_TRY(GroupFacts facts, FactsOf(draft_, rank_, position));
      const auto index = static_cast<size_t>(position);
      if (index >= layouts_.size()) {
        CK_TRY(GroupLayout layout, LayoutOf(facts));
        layouts_.push_back(std::move(layout));
      } else {
        facts.partition_numel = MeasuredPartition(rank_, facts, layouts_[index].numel);
      }
      CK_DO(Register(facts, layouts_[index], seen));
    }
    return checkpoint::Done{};
  }

 private:
  // param_shapes first; slice mappings where there are none, or where only they fit the content.
  Result<GroupLayout> LayoutOf(GroupFacts& facts) {
    const Value shapes = GroupShapes(draft_, rank_, facts.position);
    const std::vector<int64_t> pads = AlignmentPads(rank_.First(), facts.position);
    GroupLayout layout = LayoutFromShapes(shapes, pads);
    facts.partition_numel =
        MeasuredPartition(rank_, facts, layout.members.empty() ? -1 : layout.numel);
    if (layout.members.empty()) {
      auto mapped = LayoutFromMaps(rank_, facts, WeightShapes(draft_, rank_.tensor));
      if (mapped) return *std::move(mapped);
      if (draft_.source.Model(rank_.stage, rank_.tensor)) return NoOrder();
      draft_.Fault("order-unproved",
                   "optimizer states of this rank cannot be named while its model file is missing",
                   {}, rank_.FirstPlace(draft_.source));
      return layout;
    }
    if (MapsAgree(rank_, facts, layout) && checkpoint::Has(rank_.First(), "param_slice_mappings"))
      return layout;
    return ProvedByContent(facts, shapes, std::move(layout));
  }

  Error NoOrder() const {
    return {ErrorCode::kUnprovedOrder,
            "an optimizer file without names and a model file without param_shapes",
            "param_shapes or consistent param_slice_mappings", rank_.FirstPlace(draft_.source).file,
            "The files come from a version that is not known, or are damaged."};
  }

  // Slice mappings and param_shapes disagree, or there are no mappings: the order whose masters
  // round to the weights is right.
  Result<GroupLayout> ProvedByContent(const GroupFacts& facts, const Value& shapes,
                                      GroupLayout layout) {
    CK_TRY(const std::shared_ptr<const FlatState> masters,
           GatherState(draft_, rank_, facts, kMaster));
    const bool mapped = checkpoint::Has(rank_.First(), "param_slice_mappings");
    const Place place = rank_.FirstPlace(draft_.source);
    const ProofScore by_shapes = masters ? ScoreOf(draft_, rank_, layout, masters) : ProofScore{};
    if (by_shapes.proved < by_shapes.provable && masters) {
      std::vector<GroupLayout> others;
      if (auto maps = LayoutFromMaps(rank_, facts, WeightShapes(draft_, rank_.tensor));
          mapped && maps)
        others.push_back(*maps);
      others.push_back(LayoutFromShapes(RoundRobinOrder(shapes, facts.partition_count), {}));
      for (const GroupLayout& other : others) {
        const ProofScore score = ScoreOf(draft_, rank_, other, masters);
        if (score.proved <= by_shapes.proved || score.proved < score.provable) continue;
        draft_.Note("order-from-content",
                    "group " + std::to_string(facts.position) +
                        ": the order of param_shapes does not fit the content (" +
                        std::to_string(by_shapes.proved) + " of " +
                        std::to_string(by_shapes.provable) +
                        " parameters); another order fits all and is used",
                    {}, place);
        return other;
      }
    }
    if (mapped && !copy_) {
      std::vector<std::string> names;
      for (const Member& member : layout.members) names.push_back(member.name);
      draft_.Note("false-slice-maps",
                  "group " + std::to_string(facts.position) +
                      ": param_slice_mappings contradict param_shapes; the content fits "
                      "param_shapes for " +
                      std::to_string(by_shapes.proved) + " of " +
                      std::to_string(by_shapes.provable) + " parameters",
                  std::move(names), place);
    }
    return layout;
  }

  Status Register(const GroupFacts& facts, const GroupLayout& layout,
                  std::map<std::string, int32_t>& seen) {
    const Place place = rank_.FirstPlace(draft_.source);
    const Value parameters =
        checkpoint::GetPath(rank_.First(), {"base_optimizer_state", "param_groups"});
    const std::vector<Value>* groups = checkpoint::SequenceItems(parameters);
    const bool stored = groups != nullptr && facts.position < static_cast<int32_t>(groups->size());
    const Value dictionary = stored ? (*groups)[static_cast<size_t>(facts.position)] : Value();
    const int32_t group = draft_.GroupIndex(dictionary, facts.position, seen, place);
    std::set<std::string> states{kMaster};
    for (const Value& file : rank_.dictionaries) {
      for (const std::string& key : StateKeys(file, facts.position)) states.insert(key);
    }
    for (const std::string& state : states) {
      CK_TRY(const std::shared_ptr<const FlatState> flat, GatherState(draft_, rank_, facts, state));
      if (!flat) continue;
      for (const Member& member : layout.members) {
        Holder holder = MemberHolder(rank_, member, flat);
        holder.copy = copy_;
        draft_.AddHolder(member.name, state, std::move(holder));
      }
    }
    const auto step = StepIn(facts.position, dictionary);
    for (const Member& member : layout.members) {
      draft_.AddGroupMember(group, member.name);
      TensorEntry& entry = draft_.Entry(member.name);
      entry.info.role = Role::kTrainable;
      if (!entry.info.step) entry.info.step = step;
    }
    return AccountForPadding(draft_, rank_, facts, layout, group);
  }

  std::optional<double> StepIn(int32_t position, const Value& parameters) const {
    for (const Value& dictionary : rank_.dictionaries) {
      const auto step = StepOf(checkpoint::Get(BaseState(dictionary, position), "step"));
      if (step) return step;
      if (const auto shared = StepOf(checkpoint::Get(dictionary, "base_optimizer_state_step")))
        return shared;
    }
    if (StateKeys(rank_.First(), position).empty()) return std::nullopt;
    return StepOf(checkpoint::Get(parameters, "step"));
  }

  Draft& draft_;
  RankFiles rank_;
  bool copy_;
  std::vector<GroupLayout>& layouts_;
};

// All optimizer files of a rank are missing: its parameters are known from the model file, and not
// covered.
void MarkIncomplete(Draft& draft, const RankFiles& rank) {
  const Value shapes = checkpoint::Get(draft.source.Model(rank.stage, rank.tensor), "param_shapes");
  const std::vector<Value>* groups = checkpoint::SequenceItems(shapes);
  if (groups == nullptr) return;
  for (const Value& group : *groups) {
    const checkpoint::Items* items = checkpoint::MappingItems(group);
    if (items == nullptr) continue;
    for (const auto& [key, value] : *items) {
      if (const auto name = checkpoint::AsString(key)) draft.incomplete.insert(*name);
    }
  }
}

}  // namespace

Status ReadPartitions(Draft& draft) {
  for (int32_t stage = 0; stage < draft.source.grid.pipeline; ++stage) {
    for (int32_t tensor = 0; tensor < draft.source.grid.tensor; ++tensor) {
      RankFiles rank = FilesOf(draft.source, stage, tensor);
      std::vector<GroupLayout> layouts;
      if (!rank.First()) MarkIncomplete(draft, rank);
      if (rank.First()) CK_DO(RankReader(draft, std::move(rank), false, layouts).Read());
      RankFiles copy = ModelCopyOf(draft.source, stage, tensor);
      if (copy.First()) CK_DO(RankReader(draft, std::move(copy), true, layouts).Read());
    }
  }
  return checkpoint::Done{};
}

}  // namespace oracle
