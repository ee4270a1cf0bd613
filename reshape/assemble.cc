// From what each rank holds to logical tensors: one entry a name, with the pieces of each state in full coordinates.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/tree.h"
#include "reshape/group_table.h"
#include "reshape/naming.h"
#include "reshape/shards.h"
#include "reshape/source.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::Fused;
using checkpoint::Get;
using checkpoint::Parallel;
using checkpoint::Result;
using checkpoint::Status;
using checkpoint::TensorView;

struct Position { size_t group = 0, member = 0; };

// One name with everybody who holds it.
struct Holder {
  std::vector<int32_t> stages;         // ascending
  size_t first_local = 0;              // index in ranks[stage.front(), tensor rank 0].tensors
};

class Assembler {
 public:
  explicit Assembler(Source& source) : source_(source), inventory_(source.inventory) {}

  Status Run() {
    CollectHolders();
    CK_TRY(groups_, MakeGroupTable(source_));
    for (const std::string& name : order_) CK_DO(AddTensor(name));
    SetAliases();
    CK_DO(FillGroups());
    SetWeightType();
    return checkpoint::Done{};
  }

 private:
  const ModelRank& Rank(int32_t stage, int32_t tensor_rank) const { return source_.ranks[source_.RankIndex(stage, tensor_rank)]; }
  int32_t TensorSize() const { return inventory_.topology.tensor_parallel_size; }

  void CollectHolders() {
    positions_.resize(source_.ranks.size());
    for (size_t r = 0; r < source_.ranks.size(); ++r) {
      const ModelRank& rank = source_.ranks[r];
      for (size_t g = 0; g < rank.groups.size(); ++g) {
        for (size_t m = 0; m < rank.groups[g].members.size(); ++m) positions_[r][rank.groups[g].members[m].name] = {g, m};
      }
      if (rank.tensor_rank != TensorRank{0}) continue;
      for (size_t i = 0; i < rank.tensors.size(); ++i) {
        Holder& holder = holders_[rank.tensors[i].name];
        if (holder.stages.empty()) {
          order_.push_back(rank.tensors[i].name);
          holder.first_local = i;
        }
        holder.stages.push_back(static_cast<int32_t>(rank.stage));
      }
    }
  }

  std::string Canonical(const std::string& name) const {
    const Naming naming{&inventory_.rules, inventory_.transformer_layers, source_.tied_embedding};
    return CanonicalName(naming, inventory_.layout, name).value_or(name);
  }

  // The tensor on one rank; every tensor rank of a stage must have it, in one shape.
  Result<const LocalTensor*> Local(const std::string& name, int32_t stage, int32_t tensor_rank) const {
    const ModelRank& rank = Rank(stage, tensor_rank);
    const auto position = rank.by_name.find(name);
    if (position == rank.by_name.end()) {
      return MakeError(ErrorCode::kInconsistent, fmt::format("no {} on {}", name, rank.Text()), "the same names on all tensor ranks",
                       source_.ModelFileName(rank), "Files of two runs are mixed.");
    }
    const LocalTensor& tensor = rank.tensors[position->second];
    const ModelRank& first = Rank(stage, 0);
    const LocalTensor& reference = first.tensors[first.by_name.at(name)];
    if (tensor.view.shape != reference.view.shape) {
      return MakeError(ErrorCode::kInconsistent, fmt::format("{} of shape {} on {}", name, ShapeText(tensor.view.shape), rank.Text()),
                       fmt::format("{} as on {}", ShapeText(reference.view.shape), first.Text()), source_.ModelFileName(rank),
                       "Uneven shards are not supported; or files of two runs are mixed.");
    }
    return &tensor;
  }

  // Kind, full shape and sub-parameters.
  Status Classify(const LocalTensor& local, LogicalTensor& tensor) {
    CK_TRY(auto kind, FindParallelKind({tensor.name, tensor.canonical, local.view.shape}, source_));
    const bool alias = !local.alias_of.empty();
    if (!kind && TensorSize() > 1 && !alias) {
      return MakeError(ErrorCode::kUnnamedParameter, fmt::format("{} of shape {}", tensor.name, ShapeText(local.view.shape)),
                       "a rule that says how it is cut over tensor ranks", inventory_.rules_origin.empty() ? "no rules in force"
                       : inventory_.rules_origin, "Name it in a rules file (--rules).");
    }
    if (kind) {
      tensor.parallel = kind->parallel;
      tensor.fused = kind->fused;
    }
    const auto full = source_.full_tensors.find(tensor.name);
    if (full != source_.full_tensors.end()) {
      tensor.shape = full->second.states.at(kMasterState).shape;
    } else {
      CK_TRY(tensor.shape, FullShape(tensor.parallel, local.view.shape, TensorSize(), tensor.name));
    }
    if (kind) CK_DO(SetSubParameters(kind->sub_parameter_rows, tensor));
    return checkpoint::Done{};
  }

  Status SetSubParameters(const std::vector<int64_t>& declared, LogicalTensor& tensor) {
    const int64_t rows = tensor.shape.empty() ? 0 : tensor.shape.front();
    tensor.sub_parameter_rows = declared;
    if (tensor.fused == Fused::kQueryKeyValue) {
      inventory_.has_fused_qkv = true;
      if (inventory_.qkv_layout == checkpoint::QkvLayout::kPerShard && declared.empty()) {
        CK_TRY(tensor.sub_parameter_rows, QueryKeyValueRows(rows, tensor.name));
      }
    } else if (tensor.fused == Fused::kGatedLinear && declared.empty()) {
      tensor.sub_parameter_rows = {rows / 2, rows - rows / 2};
    }
    int64_t sum = 0;
    for (const int64_t part : tensor.sub_parameter_rows) {
      sum += part;
      if (part >= 0 && part % TensorSize() == 0) continue;
      return MakeError(ErrorCode::kInconsistent, fmt::format("a sub-parameter of {} rows", part),
                       fmt::format("a multiple of {} tensor ranks", TensorSize()), tensor.name, "Correct the rule of this parameter.");
    }
    if (tensor.sub_parameter_rows.empty() || sum == rows) return checkpoint::Done{};
    return MakeError(ErrorCode::kInconsistent, fmt::format("sub-parameters of {} rows in all", sum), fmt::format("{} rows", rows),
                     tensor.name, "Correct the rule of this parameter.");
  }

  // Rows of q, k and v in the full tensor, from the model's arguments.
  Result<std::vector<int64_t>> QueryKeyValueRows(int64_t rows, const std::string& name) const {
    const checkpoint::Value args = Get(inventory_.model_files.front().torch.root, "args");
    const auto heads = checkpoint::AsInt(Get(args, "num_attention_heads"));
    auto groups = checkpoint::AsInt(Get(args, "num_key_value_heads"));
    if (!groups && checkpoint::AsBool(Get(args, "group_query_attention")).value_or(false)) {
      groups = checkpoint::AsInt(Get(args, "num_query_groups"));
    }
    if (!groups) groups = heads;
    if (!heads || *heads <= 0 || *groups <= 0 || rows % (*heads + 2 * *groups) != 0) {
      return MakeError(ErrorCode::kUndeclared, fmt::format("fused query, key and value of {} rows", rows),
                       "the rows of each: args.num_attention_heads (and num_key_value_heads), or sub_parameter_rows in a rules file",
                       name, "Declare sub_parameter_rows for this parameter in a rules file.");
    }
    const int64_t head_rows = rows / (*heads + 2 * *groups);
    return std::vector<int64_t>{*heads * head_rows, *groups * head_rows, *groups * head_rows};
  }

  ShardForm FormOf(const LogicalTensor& tensor) const { return {tensor.parallel, tensor.shape, tensor.sub_parameter_rows}; }

  ShardCoordinate Coordinate(const ModelRank& rank, DataRank data_rank) const { return {rank.tensor_rank, rank.stage, data_rank}; }

  Status AddView(const TensorView& view, const std::vector<Slab>& slabs, const ModelRank& rank, const std::string& state,
                 LogicalTensor& tensor, std::map<std::string, StatePieces>& states) const {
    StatePieces& pieces = states[state];
    if (pieces.pieces.empty()) pieces.dtype = view.storage->dtype;
    if (pieces.dtype != view.storage->dtype) return MixedTypes(tensor, state, rank);
    const ShardCoordinate holder = Coordinate(rank, DataRank{0});
    if (view.IsContiguous()) {
      AppendPieces(slabs, {0, view.numel(), view.storage, view.offset, holder}, pieces.pieces);
    } else {
      AppendStridedPieces(slabs, {view.storage, view.offset, view.strides, holder}, pieces.pieces);
    }
    return checkpoint::Done{};
  }

  checkpoint::Error MixedTypes(const LogicalTensor& tensor, const std::string& state, const ModelRank& rank) const {
    return MakeError(ErrorCode::kInconsistent, fmt::format("'{}' of {} in another type on {}", state, tensor.name, rank.Text()),
                     "one element type on all ranks", source_.ModelFileName(rank), "Files of two runs are mixed.");
  }

  // The states that one rank's optimizer holds of a member.
  Status AddMember(const LocalGroup& group, const Member& member, const std::vector<Slab>& slabs, const ModelRank& rank,
                   LogicalTensor& tensor, std::map<std::string, StatePieces>& states) const {
    for (const auto& [state, view] : member.own) CK_DO(AddView(view, slabs, rank, state, tensor, states));
    if (!member.own.empty()) return checkpoint::Done{};
    for (const auto& [state, segments] : group.flats) {
      StatePieces& pieces = states[state];
      if (pieces.pieces.empty()) pieces.dtype = group.flat_dtypes.at(state);
      if (pieces.dtype != group.flat_dtypes.at(state)) return MixedTypes(tensor, state, rank);
      const int64_t end = member.begin + member.numel;
      auto segment = std::upper_bound(segments.begin(), segments.end(), member.begin,
                                      [](int64_t at, const Segment& other) { return at < other.end; });
      int64_t covered = member.begin;
      for (; segment != segments.end() && segment->begin < end; ++segment) {
        const int64_t from = std::max(member.begin, segment->begin), to = std::min(end, segment->end);
        if (from != covered) break;
        AppendPieces(slabs, {from - member.begin, to - member.begin, segment->storage, segment->offset + (from - segment->begin),
                             Coordinate(rank, segment->data_rank)}, pieces.pieces);
        covered = to;
      }
      if (covered != end) {
        return MakeError(ErrorCode::kInconsistent, fmt::format("{} of {} elements of '{}'", covered - member.begin, member.numel, state),
                         "all of them", tensor.name + " on " + rank.Text(), "A partition was cut short.");
      }
    }
    return checkpoint::Done{};
  }

  // All states over the tensor ranks of one stage.
  Status AddStates(int32_t stage, bool with_weight, LogicalTensor& tensor, std::map<std::string, StatePieces>& states) const {
    const int32_t ranks = SplitDimension(tensor.parallel) < 0 ? 1 : TensorSize();
    for (int32_t t = 0; t < ranks; ++t) {
      const ModelRank& rank = Rank(stage, t);
      CK_TRY(const LocalTensor* local, Local(tensor.name, stage, t));
      const std::vector<Slab> slabs = SlabsOfShard(FormOf(tensor), TensorRank{t}, TensorSize());
      if (with_weight && local->view.storage != nullptr) {
        CK_DO(AddView(local->view, slabs, rank, kWeightState, tensor, states));
      }
      const auto& positions = positions_[source_.RankIndex(stage, t)];
      const auto position = positions.find(tensor.name);
      if (position == positions.end()) continue;
      const LocalGroup& group = rank.groups[position->second.group];
      const Member& member = group.members[position->second.member];
      if (member.numel != local->view.numel() || (member.shape && *member.shape != local->view.shape)) {
        return MakeError(ErrorCode::kInconsistent, fmt::format("{} elements in the optimizer", member.numel),
                         fmt::format("the shape {} of the weight", ShapeText(local->view.shape)), tensor.name + " on " + rank.Text(),
                         "Model and optimizer files of two runs are mixed.");
      }
      CK_DO(AddMember(group, member, slabs, rank, tensor, states));
    }
    return checkpoint::Done{};
  }

  Status AddFullTensor(LogicalTensor& tensor) const {
    const ModelRank& rank = Rank(static_cast<int32_t>(tensor.stages.front()), 0);
    const std::vector<Slab> slabs = SlabsOfShard(FormOf(tensor), TensorRank{0}, 1);
    for (const auto& [state, view] : source_.full_tensors.at(tensor.name).states) {
      CK_DO(AddView(view, slabs, rank, state, tensor, tensor.states));
    }
    return checkpoint::Done{};
  }

  // Strides of the full weight whose first shard is stored in another order of dimensions.
  static std::vector<int64_t> FullStrides(const TensorView& view, const std::vector<int64_t>& shape) {
    if (view.storage == nullptr || view.IsContiguous()) return {};
    std::vector<size_t> order(shape.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return view.strides[a] < view.strides[b]; });
    std::vector<int64_t> strides(shape.size(), 1);
    int64_t next = 1;
    for (const size_t dimension : order) {
      strides[dimension] = next;
      next *= std::max<int64_t>(shape[dimension], 1);
    }
    return strides;
  }

  void SetLayers(const LocalTensor& local, LogicalTensor& tensor) const {
    if (inventory_.layout == NameLayout::kPlain) return;
    const auto parts = checkpoint::SplitPipelineName(tensor.name);
    if (!parts || parts->layer) {
      if (local.layer >= 0) tensor.layers = {local.layer};
      return;
    }
    const auto& numbering = inventory_.rules.numbering;
    const auto tied = source_.tied.find(parts->tied_key);
    if (tied != source_.tied.end()) tensor.layers = tied->second.layers;
    if (tensor.layers.empty() && numbering) tensor.layers = {numbering->embedding};
    if (numbering && source_.builtin_rules) {
      if (tensor.layers.size() < 2) {
        tensor.layers.push_back(numbering->first_layer + inventory_.transformer_layers + numbering->head_after);
      }
      return;
    }
    // A last use without a file of its own: the number behind the last layer of its stage.
    if (tensor.layers.size() < 2 && tensor.stages.size() > 1) {
      tensor.layers.push_back(inventory_.cuts[static_cast<size_t>(tensor.stages.back()) + 1] - 1);
    }
  }

  Status SetOptimizer(const LocalTensor& local, LogicalTensor& tensor) {
    const size_t rank = source_.RankIndex(static_cast<int32_t>(tensor.stages.front()), 0);
    const auto position = positions_[rank].find(tensor.name);
    if (local.buffer) {
      tensor.role = Role::kBuffer;
    } else if (position == positions_[rank].end() && inventory_.wrapper != Wrapper::kNone) {
      tensor.role = Role::kFrozen;
    }
    if (position == positions_[rank].end()) return checkpoint::Done{};
    const LocalGroup& group = source_.ranks[rank].groups[position->second.group];
    tensor.group = groups_.global[rank][position->second.group];
    const Member& member = group.members[position->second.member];
    const bool own_step = !member.own.empty() || !source_.full_tensors.empty();
    tensor.step = own_step ? member.step : group.step;
    // A bare optimizer with the count in its groups has none in the states.
    if (own_step && !tensor.step && (inventory_.wrapper == Wrapper::kFp32 || inventory_.wrapper == Wrapper::kUnfused) &&
        member.own.size() > 1) {
      tensor.step = group.step;
    }
    return checkpoint::Done{};
  }

  Status AddTensor(const std::string& name) {
    const Holder& holder = holders_.at(name);
    const LocalTensor& local = Rank(holder.stages.front(), 0).tensors[holder.first_local];
    LogicalTensor tensor;
    tensor.name = name;
    tensor.canonical = Canonical(name);
    for (const int32_t stage : holder.stages) tensor.stages.push_back(PipelineStage{stage});
    for (int32_t t = 0; t < TensorSize(); ++t) {
      CK_TRY([[maybe_unused]] const LocalTensor* same, Local(name, holder.stages.front(), t));
    }
    CK_DO(Classify(local, tensor));
    SetLayers(local, tensor);
    if (local.alias_of.empty()) {
      CK_DO(SetOptimizer(local, tensor));
      if (source_.full_tensors.contains(name)) {
        CK_DO(AddFullTensor(tensor));
      } else {
        CK_DO(AddStates(holder.stages.front(), true, tensor, tensor.states));
        tensor.weight_strides = FullStrides(local.view, tensor.shape);
        CK_DO(AddStaleCopy(tensor));
      }
    } else {
      tensor.alias_of = local.alias_of;
    }
    inventory_.tensors.push_back(std::move(tensor));
    return checkpoint::Done{};
  }

  // A copy on a later stage that is not trained: known by rule, or shown by content.
  Status AddStaleCopy(LogicalTensor& tensor) {
    if (tensor.stages.size() < 2 || tensor.group < 0) return checkpoint::Done{};
    const checkpoint::TiedRule* rule = checkpoint::FirstTiedRule(inventory_.rules, tensor.canonical);
    const bool proved = source_.stale_names.contains(tensor.name);
    if (!proved && (rule == nullptr || !rule->stale_copy)) return checkpoint::Done{};
    CK_DO(AddStates(static_cast<int32_t>(tensor.stages.back()), false, tensor, tensor.stale_states));
    if (!proved) {
      source_.Notify("stale-tied-copy",
                     fmt::format("unproved, stale tied copy: the framework does not train {} on its last stage; its states there are "
                                 "carried as they are.", tensor.name), {tensor.name});
    }
    return checkpoint::Done{};
  }

  void SetAliases() {
    std::map<std::string, std::string> canonical;
    for (const LogicalTensor& tensor : inventory_.tensors) canonical[tensor.name] = tensor.canonical;
    for (LogicalTensor& tensor : inventory_.tensors) {
      if (!tensor.alias_of.empty()) tensor.alias_of = canonical[tensor.alias_of];
    }
  }

  Status FillGroups() {
    inventory_.groups = std::move(groups_.groups);
    std::map<std::string, int32_t> index;
    for (size_t i = 0; i < inventory_.tensors.size(); ++i) index[inventory_.tensors[i].name] = static_cast<int32_t>(i);
    for (const ModelRank& rank : source_.ranks) {
      if (rank.tensor_rank != TensorRank{0}) continue;
      const size_t r = source_.RankIndex(static_cast<int32_t>(rank.stage), 0);
      for (size_t g = 0; g < rank.groups.size(); ++g) {
        Group& group = inventory_.groups[static_cast<size_t>(groups_.global[r][g])];
        for (const Member* member : GroupOrderBeforeRoundRobin(rank.groups[g], source_)) {
          const auto position = index.find(member->name);
          if (position == index.end()) {
            return MakeError(ErrorCode::kInconsistent, "optimizer state of " + member->name, "a parameter of that name in the module",
                             source_.ModelFileName(rank), "Model and optimizer files of two runs are mixed.");
          }
          const LogicalTensor& tensor = inventory_.tensors[static_cast<size_t>(position->second)];
          if (tensor.stages.front() == rank.stage && tensor.alias_of.empty()) group.tensors.push_back(position->second);
        }
      }
    }
    return checkpoint::Done{};
  }

  void SetWeightType() {
    const checkpoint::Value config = Get(inventory_.model_files.front().torch.root, "ds_config");
    if (checkpoint::AsBool(checkpoint::GetPath(config, {"bf16", "enabled"})).value_or(false)) {
      inventory_.weight_dtype = checkpoint::DType::kBFloat16;
    } else if (checkpoint::AsBool(checkpoint::GetPath(config, {"fp16", "enabled"})).value_or(false)) {
      inventory_.weight_dtype = checkpoint::DType::kFloat16;
    }
    bool vocabulary = false, typed = false;
    for (const LogicalTensor& tensor : inventory_.tensors) {
      vocabulary |= tensor.parallel == Parallel::kVocabulary;
      const auto weight = tensor.states.find(kWeightState);
      if (typed || tensor.role != Role::kTrainable || weight == tensor.states.end() || weight->second.pieces.empty()) continue;
      inventory_.weight_dtype = weight->second.dtype;
      typed = true;
    }
    if (!vocabulary) inventory_.original_vocabulary_rows = 0;
  }

  Source& source_;
  Inventory& inventory_;
  std::map<std::string, Holder> holders_;
  std::vector<std::string> order_;
  std::vector<std::unordered_map<std::string, Position>> positions_;
  GroupTable groups_;
};

}  // namespace

Status Assemble(const ReadOptions& options, Source& source) {
  CK_DO(Assembler(source).Run());
  return ApplyGivenHyperParameters(options, source);
}

}  // namespace reshape
