// mp_rank_*_model_states.pt: the source's tree of the rank that maps, with what the target decides
// set in place.
#include <fmt/format.h>

#include "reshape/target_builder.h"

namespace reshape {
namespace {

using checkpoint::Get;
using checkpoint::Has;
using checkpoint::MakeInt;
using checkpoint::MakeNone;
using checkpoint::Result;
using checkpoint::Status;
using checkpoint::Value;

bool SavesZeroMetadata(const TargetBuilder& builder) {
  return builder.partitioned() && builder.choice.topology.zero_stage > 0;
}

Value BufferNames(const TargetBuilder& builder, const RankLayout& rank) {
  std::vector<Value> buffers;
  for (const RankTensor& local : rank.tensors) {
    if (builder.Tensor(local).role == Role::kBuffer)
      buffers.push_back(checkpoint::MakeString(builder.NameOf(local)));
  }
  return checkpoint::MakeList(std::move(buffers));
}

// Parameters that the optimizer does not own: frozen ones, and those without elements.
std::vector<size_t> FrozenTensors(const TargetBuilder& builder, const RankLayout& rank) {
  std::vector<size_t> frozen;
  for (size_t i = 0; i < rank.tensors.size(); ++i) {
    const LogicalTensor& tensor = builder.Tensor(rank.tensors[i]);
    if (tensor.role != Role::kBuffer && tensor.group < 0) frozen.push_back(i);
  }
  return frozen;
}

Value SharedParameters(const TargetBuilder& builder, const RankLayout& rank) {
  Entries entries;
  if (builder.RankIndex(rank) == 0 &&
      !builder.pipeline()) {  // the framework fills it on global rank 0 alone
    for (size_t i = 0; i < builder.source.tensors.size(); ++i) {
      const LogicalTensor& alias = builder.source.tensors[i];
      if (alias.alias_of.empty()) continue;
      for (size_t owner = 0; owner < builder.source.tensors.size(); ++owner) {
        if (builder.source.tensors[owner].canonical != alias.alias_of) continue;
        Append(entries, builder.names[i].name, checkpoint::MakeString(builder.names[owner].name));
        break;
      }
    }
  }
  return checkpoint::MakeDict(std::move(entries));
}

struct Root {
  Value tree;
  // Replaces what the source's version writes; a key that it does not know is not added.
  void Set(const char* key, Value value) {
    if (Has(tree, key)) tree = checkpoint::WithEntry(tree, key, std::move(value));
  }
};

void SetFrozen(const TargetBuilder& builder, const RankLayout& rank, const RankWeights& weights,
               Root& root) {
  if (builder.choice.topology.zero_stage < 2) {
    root.Set("frozen_param_shapes", MakeNone());
    root.Set("frozen_param_fragments", MakeNone());
    return;
  }
  Entries shapes, fragments;
  for (const size_t i : FrozenTensors(builder, rank)) {
    const std::string& name = builder.NameOf(rank.tensors[i]);
    Append(shapes, name, checkpoint::MakeTorchSize(rank.tensors[i].shape));
    Append(fragments, name, checkpoint::MakeTensor(weights.views[i]));
  }
  root.Set("frozen_param_shapes", checkpoint::MakeOrderedDict(std::move(shapes)));
  root.Set("frozen_param_fragments", checkpoint::MakeOrderedDict(std::move(fragments)));
}

void SetTopology(TargetBuilder& builder, const RankLayout& rank, Root& root) {
  const Topology& topology = builder.choice.topology;
  root.Set("dp_world_size", MakeInt(topology.data_parallel_size));
  root.Set("mp_world_size",
           MakeInt(int64_t{topology.tensor_parallel_size} * topology.pipeline_parallel_size));
  if (Has(root.tree, "checkpoint_parallel_dimensions")) {
    Root degrees{Get(root.tree, "checkpoint_parallel_dimensions")};
    degrees.Set("pp_degree", MakeInt(topology.pipeline_parallel_size));
    degrees.Set("tp_degree", MakeInt(topology.tensor_parallel_size));
    root.Set("checkpoint_parallel_dimensions", degrees.tree);
  }
  root.Set("ds_config", RewriteConfig(builder, Get(root.tree, "ds_config")));
  root.Set("universal_checkpoint_info",
           RewriteUniversalInfo(builder, Get(root.tree, "universal_checkpoint_info")));
  root.Set("args", RewriteArgs(builder, rank, Get(root.tree, "args")));
  if (Has(root.tree, "checkpoint_info") && builder.choice.vocabulary_rows > 0) {
    Root info{Get(root.tree, "checkpoint_info")};
    info.Set("padded_vocab_size", MakeInt(builder.choice.vocabulary_rows));
    root.Set("checkpoint_info", info.tree);
  }
}

// Stage 0 keeps the optimizer here; BF16_Optimizer at stage 0 keeps a second copy of data rank 0's
// dictionary.
Result<Value> OptimizerEntry(TargetBuilder& builder, const RankLayout& rank,
                             const Value& partition_of_rank_0) {
  switch (builder.choice.wrapper) {
    case Wrapper::kFused:
      return FusedOptimizer(builder, rank);
    case Wrapper::kUnfused:
      return UnfusedOptimizer(builder, rank);
    case Wrapper::kFp32:
      return BareOptimizer(builder, rank);
    case Wrapper::kBf16:
      return builder.choice.topology.zero_stage == 0 ? partition_of_rank_0 : MakeNone();
    default:
      return MakeNone();
  }
}

Status AddModelFile(TargetBuilder& builder, const RankLayout& rank,
                    const Value& partition_of_rank_0) {
  Root root{builder.source.model_files[builder.SourceRank(rank)].torch.root};
  RankWeights weights;
  if (builder.pipeline()) {
    root.Set("module", MakeNone());
  } else {
    weights = PlainWeights(builder, rank);
    root.Set("module", ModuleTree(builder, rank, weights));
  }
  root.Set("buffer_names", BufferNames(builder, rank));
  CK_TRY(const Value optimizer, OptimizerEntry(builder, rank, partition_of_rank_0));
  root.Set("optimizer", optimizer);
  root.Set("param_shapes", SavesZeroMetadata(builder) ? ParamShapes(builder, rank) : MakeNone());
  SetFrozen(builder, rank, weights, root);
  root.Set("shared_params",
           SavesZeroMetadata(builder) ? SharedParameters(builder, rank) : MakeNone());
  SetTopology(builder, rank, root);
  TargetFile file;
  file.path =
      builder.PathOf(fmt::format("mp_rank_{:02d}_model_states.pt", builder.RankIndex(rank)));
  file.root = root.tree;
  builder.target.files.push_back(std::move(file));
  return checkpoint::Done{};
}

}  // namespace

Status AddModelFiles(TargetBuilder& builder) {
  for (const RankLayout& rank : builder.ranks) {
    Value partition_of_rank_0;
    if (builder.partitioned() && !builder.choice.universal) {
      const size_t first = builder.target.files.size();
      CK_DO(AddOptimizerFiles(builder, rank));
      partition_of_rank_0 = Get(builder.target.files[first].root, "optimizer_state_dict");
    }
    CK_DO(AddModelFile(builder, rank, partition_of_rank_0));
  }
  return checkpoint::Done{};
}

}  // namespace reshape
