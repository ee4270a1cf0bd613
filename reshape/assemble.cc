// From what each rank holds to logical tensors: one entry a name, with the pieces of each state in
// full coordinates.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/tree.h"
#include "reshape/group_table.h"
#include "reshape/naming.h"
#include "reshape/source.h"
#include "reshape/state_pieces.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::Get;
using checkpoint::Parallel;
using checkpoint::Status;
using checkpoint::TensorView;

// One name with everybody who holds it.
struct Holder {
  std::vector<int32_t> stages;  // ascending
  size_t first_local = 0;       // index in ranks[stage.front(), tensor rank 0].tensors
};

class Assembler {
 public:
  explicit Assembler(Source& source) : source_(source), inventory_(source.inventory) {}

  Status Run() {
    CK_DO(CollectHolders());
    CK_TRY(groups_, MakeGroupTable(source_));
    for (const std::string& name : order_) CK_DO(AddTensor(name));
    SetAliases();
    FindUndeclaredGates(source_);
    CK_DO(FillGroups());
    return SetWeightType();
  }

 private:
  const ModelRank& Rank(int32_t stage, int32_t tensor_rank) const {
    return source_.ranks[source_.RankIndex(stage, tensor_rank)];
  }
  int32_t TensorSize() const { return inventory_.topology.tensor_parallel_size; }

  Status CollectHolders() {
    for (ModelRank& rank : source_.ranks) {
      for (size_t g = 0; g < rank.groups.size(); ++g) {
        const auto& members = rank.groups[g].members;
        for (size_t m = 0; m < members.size(); ++m) {
          if (rank.member_of.emplace(members[m].name, ModelRank::Position{g, m}).second) continue;
          return MakeError(ErrorCode::kInconsistent, members[m].name + " twice in the optimizer",
                           "each parameter once", source_.ModelFileName(rank), "");
        }
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
    return checkpoint::Done{};
  }

  std::string Canonical(const std::string& name) const {
    const Naming naming{&inventory_.rules, inventory_.transformer_layers, source_.tied_embedding};
    return CanonicalName(naming, inventory_.layout, name).value_or(name);
  }

  // Strides of the full weight whose first shard is stored in another order of dimensions.
  static std::vector<int64_t> FullStrides(const TensorView& view,
                                          const std::vector<int64_t>& shape) {
    if (view.storage == nullptr || view.IsContiguous()) return {};
    std::vector<size_t> order(shape.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return view.strides[a] < view.strides[b]; });
    std::vector<int64_t> strides(shape.size(), 1);
    int64_t next = 1;
    for (const size_t dimension : order) {
      strides[dimension] = next;
      next *= std::max<int64_t>(shape[dimension], 1);
    }
    return strides;
  }

  // The layers that the user's rules say use a tied module; they must have the one whose file it
  // is.
  Status DeclareLayers(LogicalTensor& tensor) {
    if (!source_.user_rules) return checkpoint::Done{};
    const checkpoint::TiedRule* rule =
        checkpoint::FirstTiedRule(*source_.user_rules, tensor.canonical);
    if (rule == nullptr) return checkpoint::Done{};
    if (!rule->layers.empty()) {
      const bool has_file = std::find(rule->layers.begin(), rule->layers.end(),
                                      tensor.layers.front()) != rule->layers.end();
      if (has_file && rule->layers.size() > 1) {
        tensor.layers = rule->layers;
        inventory_.cuts.back() = std::max(inventory_.cuts.back(), tensor.layers.back() + 1);
        return checkpoint::Done{};
      }
      return MakeError(ErrorCode::kMalformedRules, "tied layers " + ShapeText(rule->layers),
                       fmt::format("two layers or more, {} among them, whose file holds it",
                                   tensor.layers.front()),
                       tensor.name, "Correct \"layers\" under \"tied\" in the rules file.");
    }
    // Without numbers: on the first stage and at the end of the last, behind all layer files.
    if (tensor.layers.size() > 1) return checkpoint::Done{};
    if (declared_end_ < 0) declared_end_ = inventory_.cuts.back()++;
    tensor.layers.push_back(declared_end_);
    return checkpoint::Done{};
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
    AddDeclaredLayers(tensor);
    if (tensor.layers.empty() && numbering) tensor.layers = {numbering->embedding};
    if (numbering && source_.builtin_rules) {
      if (tensor.layers.size() < 2) {
        tensor.layers.push_back(numbering->first_layer + inventory_.transformer_layers +
                                numbering->head_after);
      }
      return;
    }
    // A last use without a file of its own: the number behind the last layer of its stage.
    if (tensor.layers.size() < 2 && tensor.stages.size() > 1) {
      tensor.layers.push_back(inventory_.cuts[static_cast<size_t>(tensor.stages.back()) + 1] - 1);
    }
  }

  // A universal folder has no layer files, so no use of a tied module is seen.
  void AddDeclaredLayers(LogicalTensor& tensor) const {
    const checkpoint::TiedRule* rule =
        checkpoint::FirstTiedRule(inventory_.rules, tensor.canonical);
    if (rule != nullptr && tensor.layers.empty()) tensor.layers = rule->layers;
  }

  void SetOptimizer(const LocalTensor& local, LogicalTensor& tensor) {
    const size_t index = source_.RankIndex(static_cast<int32_t>(tensor.stages.front()), 0);
    const ModelRank& rank = source_.ranks[index];
    const auto position = rank.member_of.find(tensor.name);
    const bool member_found = position != rank.member_of.end();
    if (local.buffer) {
      tensor.role = Role::kBuffer;
    } else if (!member_found && inventory_.wrapper != Wrapper::kNone) {
      tensor.role = Role::kFrozen;
    }
    if (!member_found) return;
    const LocalGroup& group = rank.groups[position->second.group];
    const Member& member = group.members[position->second.member];
    tensor.group = groups_.global[index][position->second.group];
    const bool by_parameter = inventory_.wrapper == Wrapper::kFp32 ||
                              inventory_.wrapper == Wrapper::kUnfused ||
                              inventory_.wrapper == Wrapper::kUniversal;
    if (by_parameter) {
      tensor.step = member.step;
    } else if (group.step_in_state) {
      tensor.step = group.step;
    }
  }

  Status AddTensor(const std::string& name) {
    const Holder& holder = holders_.at(name);
    const LocalTensor& local = Rank(holder.stages.front(), 0).tensors[holder.first_local];
    LogicalTensor tensor;
    tensor.name = name;
    tensor.canonical = Canonical(name);
    for (const int32_t stage : holder.stages) tensor.stages.push_back(PipelineStage{stage});
    for (int32_t t = 0; t < TensorSize(); ++t) {
      CK_TRY([[maybe_unused]] const LocalTensor* same,
             LocalOn(source_, name, Rank(holder.stages.front(), t)));
    }
    CK_DO(Classify(local, source_, tensor));
    SetLayers(local, tensor);
    if (tensor.name.starts_with("tied_modules.") && !tensor.layers.empty())
      CK_DO(DeclareLayers(tensor));
    if (local.alias_of.empty()) {
      SetOptimizer(local, tensor);
      if (source_.full_tensors.contains(name)) {
        CK_DO(AppendFullStates(source_, tensor));
      } else {
        CK_DO(AppendStates(source_, {holder.stages.front(), true}, tensor, tensor.states));
        tensor.weight_strides = FullStrides(local.view, tensor.shape);
        CK_DO(AddStaleCopy(tensor));
      }
    } else {
      tensor.alias_of = local.alias_of;
    }
    inventory_.tensors.push_back(std::move(tensor));
    return checkpoint::Done{};
  }

  // A copy on a later stage that is not trained (a known property of the framework's tied modules):
  // its states are kept apart.
  Status AddStaleCopy(LogicalTensor& tensor) {
    if (tensor.stages.size() < 2 || tensor.group < 0) return checkpoint::Done{};
    const checkpoint::TiedRule* rule =
        checkpoint::FirstTiedRule(inventory_.rules, tensor.canonical);
    const bool proved = source_.stale_names.contains(tensor.name);
    std::map<std::string, StatePieces> copy;
    CK_DO(AppendStates(source_, {static_cast<int32_t>(tensor.stages.back()), false}, tensor, copy));
    const auto first = tensor.states.find(kMasterState), second = copy.find(kMasterState);
    const bool compared = first != tensor.states.end() && second != copy.end();
    const bool differs = compared && !SameStart(first->second, second->second);
    // Bare optimizers have no masters to compare: there the rule alone knows.
    if (!proved && !differs && (compared || rule == nullptr || !rule->stale_copy))
      return checkpoint::Done{};
    tensor.stale_states = std::move(copy);
    if (proved) return checkpoint::Done{};
    source_.Notify("stale-tied-copy",
                   compared ? "stale tied copy, its place not proved by content: the last stage's "
                              "copy differs from the "
                              "first stage's tensor; its states are carried as they are."
                            : "stale tied copy, its place not proved by content: the last stage "
                              "has states of its own and "
                              "no master to compare; they are carried as they are.",
                   {tensor.name});
    return checkpoint::Done{};
  }

  // The leading elements of two holders' masters are equal: enough to tell a trained copy from one
  // that never was.
  static bool SameStart(const StatePieces& a, const StatePieces& b) {
    if (a.pieces.empty() || b.pieces.empty() || a.dtype != b.dtype)
      return a.pieces.empty() == b.pieces.empty();
    constexpr int64_t kElementsMax = 4096;
    const Piece &first = a.pieces.front(), &second = b.pieces.front();
    if (first.begin != second.begin || !first.strides.empty() || !second.strides.empty())
      return true;
    const int64_t numel =
        std::min({kElementsMax, first.end - first.begin, second.end - second.begin});
    const int64_t width = checkpoint::ElementBytes(a.dtype);
    return std::memcmp(checkpoint::StorageBytes(*first.storage).data() + first.offset * width,
                       checkpoint::StorageBytes(*second.storage).data() + second.offset * width,
                       static_cast<size_t>(numel * width)) == 0;
  }

  void SetAliases() {
    std::map<std::string, std::string> canonical;
    for (const LogicalTensor& tensor : inventory_.tensors)
      canonical[tensor.name] = tensor.canonical;
    for (LogicalTensor& tensor : inventory_.tensors) {
      if (!tensor.alias_of.empty()) tensor.alias_of = canonical[tensor.alias_of];
    }
  }

  Status FillGroups() {
    inventory_.groups = std::move(groups_.groups);
    std::map<std::string, int32_t> index;
    for (size_t i = 0; i < inventory_.tensors.size(); ++i)
      index[inventory_.tensors[i].name] = static_cast<int32_t>(i);
    for (const ModelRank& rank : source_.ranks) {
      if (rank.tensor_rank != TensorRank{0}) continue;
      const size_t r = source_.RankIndex(static_cast<int32_t>(rank.stage), 0);
      for (size_t g = 0; g < rank.groups.size(); ++g) {
        Group& group = inventory_.groups[static_cast<size_t>(groups_.global[r][g])];
        for (const Member* member : GroupOrderBeforeRoundRobin(rank.groups[g], source_)) {
          const auto position = index.find(member->name);
          if (position == index.end()) {
            return MakeError(ErrorCode::kInconsistent, "optimizer state of " + member->name,
                             "a parameter of that name in the module", source_.ModelFileName(rank),
                             "Model and optimizer files of two runs are mixed.");
          }
          const LogicalTensor& tensor = inventory_.tensors[static_cast<size_t>(position->second)];
          if (tensor.stages.front() == rank.stage && tensor.alias_of.empty())
            group.tensors.push_back(position->second);
        }
      }
    }
    return checkpoint::Done{};
  }

  Status SetWeightType() {
    const checkpoint::Value config = Get(inventory_.model_files.front().torch.root, "ds_config");
    if (checkpoint::AsBool(checkpoint::GetPath(config, {"bf16", "enabled"})).value_or(false)) {
      inventory_.weight_dtype = checkpoint::DType::kBFloat16;
    } else if (checkpoint::AsBool(checkpoint::GetPath(config, {"fp16", "enabled"}))
                   .value_or(false)) {
      inventory_.weight_dtype = checkpoint::DType::kFloat16;
    }
    bool vocabulary = false, typed = false;
    for (const LogicalTensor& tensor : inventory_.tensors) {
      vocabulary |= tensor.parallel == Parallel::kVocabulary;
      const auto weight = tensor.states.find(kWeightState);
      if (typed || tensor.role != Role::kTrainable || weight == tensor.states.end() ||
          weight->second.pieces.empty())
        continue;
      inventory_.weight_dtype = weight->second.dtype;
      typed = true;
    }
    if (!vocabulary) inventory_.original_vocabulary_rows = 0;
    for (const LogicalTensor& tensor : inventory_.tensors) {
      if (tensor.parallel != Parallel::kVocabulary || tensor.shape.empty()) continue;
      if (inventory_.original_vocabulary_rows <= tensor.shape.front()) continue;
      return MakeError(
          ErrorCode::kInconsistent,
          fmt::format("{} vocabulary rows recorded", inventory_.original_vocabulary_rows),
          fmt::format("at most the {} rows of {}", tensor.shape.front(), tensor.name),
          inventory_.model_files.front().name.name, "The model file is of another model.");
    }
    return checkpoint::Done{};
  }

  Source& source_;
  Inventory& inventory_;
  std::map<std::string, Holder> holders_;
  std::vector<std::string> order_;
  GroupTable groups_;
  int64_t declared_end_ =
      -1;  // number of the last use of tied modules that are declared without one
};

}  // namespace

Status Assemble(const ReadOptions& options, Source& source) {
  CK_DO(Assembler(source).Run());
  return ApplyGivenHyperParameters(options, source);
}

}  // namespace reshape
