// What each model-parallel rank of a target holds: which tensors under which names, which part of
// each, and the order of its flat groups. Pure arithmetic on names and shapes; files and trees are
// made from it by target_*.cc. Format: docs/format/optimizer.md and docs/format/megatron.md. Tested
// by target_test.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/status.h"
#include "reshape/inventory.h"
#include "reshape/partition.h"
#include "reshape/resolve.h"
#include "reshape/shards.h"

namespace reshape {

// A logical tensor as the target names it.
struct TargetName {
  std::string name;  // "3.mlp.dense_h_to_4h.weight", "tied_modules.embed.word_embeddings.weight",
                     // "language_model..."
  std::vector<int64_t> layers;  // pipeline: layer numbers that use it; empty: plain
  std::string layer_key;        // pipeline: key in its layer file
  bool tied = false;            // pipeline: lives on the stages of all its layers
  bool stale = false;           // pipeline: copies on later stages are never trained
};

// By index into Inventory::tensors. Errors: kUnreachableTarget (a name that the other layout
// lacks).
checkpoint::Result<std::vector<TargetName>> NameTensors(const Inventory& source,
                                                        const ResolvedTarget& target);

// One tensor on one rank.
struct RankTensor {
  int32_t tensor = -1;      // index into Inventory::tensors
  bool later_copy = false;  // tied, and this is not the first of its stages: no weight in any file
  bool stale = false;       // later_copy of a tensor whose later copies are stale
  std::vector<int64_t> shape;  // of the shard
  std::vector<Slab> slabs;
  int64_t numel() const;
};

struct FlatMember {
  size_t rank_tensor = 0;     // index into RankLayout::tensors
  int64_t begin = 0;          // first element in the flat group
  int64_t padding_after = 0;  // alignment pad behind it, inside the group
};

struct FlatGroup {
  int32_t source_group = -1;        // whose hyper-parameters it has
  std::vector<FlatMember> members;  // in flat order
  int64_t numel = 0;                // members and the pads between them
  PartitionForm form;  // over the data ranks; one partition without end padding for wrappers that
                       // do not partition
};

struct RankLayout {
  PipelineStage stage{0};
  TensorRank tensor_rank{0};
  std::vector<RankTensor> tensors;  // module order; aliases left out
  std::vector<FlatGroup> groups;    // empty ones dropped
};

// All ranks, index = stage * TP + tensor rank. Errors: kUnreachableTarget (does not divide).
checkpoint::Result<std::vector<RankLayout>> LayOutRanks(const Inventory& source,
                                                        const ResolvedTarget& target,
                                                        const std::vector<TargetName>& names);

// Round-robin order of `count` members over `data_ranks`: 0, W, 2W, ..., 1, W + 1, ...
std::vector<size_t> RoundRobinOrder(size_t count, int32_t data_ranks);

}  // namespace reshape
