// What a source checkpoint holds, said in logical space: every logical tensor with the pieces of
// storage that make it up, the optimizer's groups and hyper-parameters, the counters, and the
// object trees of the files, from which a target carries whatever it does not derive. Built by
// ReadInventory() from the files' metadata; tensor bytes are only read where the order of nameless
// flat groups must be proved by content. Used by target.h (which lays out the target) and plan.h
// (which composes source pieces with target pieces). Tested by inventory_test.cc and on the real
// checkpoints by corpus_inventory_test.cc.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/container.h"
#include "checkpoint/directory.h"
#include "checkpoint/rules.h"
#include "checkpoint/status.h"
#include "reshape/topology.h"

namespace reshape {

// A rectangular part of a logical tensor; for a 0-d tensor both are empty.
struct Box {
  std::vector<int64_t> start, extent;
  int64_t numel() const;
};

// Elements [begin, end) of `box`, flattened row-major, lie in `storage` from element `offset` on:
// contiguously where `strides` is empty, else with these strides over the dimensions of the box
// (then begin = 0 and end = box.numel()).
struct Piece {
  Box box;
  int64_t begin = 0, end = 0;
  checkpoint::StoragePtr storage;
  int64_t offset = 0;
  std::vector<int64_t> strides;
  ShardCoordinate holder;  // whose file it is, for messages
};

// State names as DESIGN has them: "weight", "fp32_master", "exp_avg", "exp_avg_sq"; other
// parameter-shaped optimizer states keep their key.
struct StatePieces {
  checkpoint::DType dtype = checkpoint::DType::kFloat32;
  std::vector<Piece> pieces;  // every element exactly once; replicas are left out (the lowest
                              // coordinate that holds one)
};

enum class Role { kTrainable, kFrozen, kBuffer };

// How a stored step looks, so that a target can write it where and as its optimizer looks for it.
struct StepValue {
  double value = 0;     // optimizer steps as stored
  bool tensor = false;  // 0-d float tensor (torch Adam) or a Python number (FusedAdam)
};

struct LogicalTensor {
  std::string
      name;  // framework's state-dict name in the source layout, pipeline-global layer numbers
  std::string canonical;
  std::vector<int64_t> shape;  // TP = 1 form; vocabulary tensors with the source's padding rows
  checkpoint::Parallel parallel = checkpoint::Parallel::kReplicated;
  checkpoint::Fused fused = checkpoint::Fused::kNone;
  // Rows (on the split dimension) of each sub-parameter of the full tensor, where shards hold one
  // slice of each; empty: one.
  std::vector<int64_t> sub_parameter_rows;
  Role role = Role::kTrainable;
  std::string
      alias_of;  // canonical name of the tensor that this one shares its bytes with; empty for most
  int32_t group = -1;  // index into Inventory::groups; -1: not in the optimizer
  std::optional<StepValue> step;
  // Alias: empty. Trainable tensors of a universal folder have no "weight": it is fp32_master
  // rounded. Bare fp32 optimizers have no "fp32_master": the weight is the master.
  std::map<std::string, StatePieces> states;
  // Strides of the full weight where it is stored transposed (in elements, of the TP = 1 tensor);
  // empty: row-major.
  std::vector<int64_t> weight_strides;
  std::vector<PipelineStage> stages;  // source stages that hold it
  // Pipeline layer numbers that use it: one for most; first and last use for a tied one. Empty in
  // the plain layout.
  std::vector<int64_t> layers;
  // The stale copy on the later stage (position embeddings): its own states, as found; empty for
  // all other tensors.
  std::map<std::string, StatePieces> stale_states;
};

struct Group {
  // The hyper-parameter dictionary as stored, without 'params': name, lr, betas, weight_decay...
  // Null for elastic sources.
  checkpoint::Value hyper_parameters;
  std::optional<StepValue> step;
  std::vector<int32_t> tensors;  // order of the group over the whole model (stage by stage);
                                 // indices into Inventory::tensors
};

// One file of the source with its tree.
struct SourceFile {
  checkpoint::FileName name;
  checkpoint::TorchFile torch;
};

struct Notice {
  std::string
      kind;  // stable word: "false-slice-maps", "stale-tied-copy", "group-order-from-content"...
  std::string text;                // a sentence for users
  std::vector<std::string> names;  // tensors or files it is about
};

struct Inventory {
  checkpoint::StepFolder folder;
  Topology topology;
  Wrapper wrapper = Wrapper::kNone;
  NameLayout layout = NameLayout::kPlain;
  bool elastic = false, round_robin = false, legacy_container = false,
       bf16_model_optimizer_copy = false;
  bool parameter_alignment = false;
  checkpoint::DType weight_dtype = checkpoint::DType::kFloat32;  // of trainable parameters
  checkpoint::Rules rules;   // in force, with their provenance in `notices`
  std::string rules_origin;  // "built-in megatron-deepspeed", "universal_checkpoint_info", "FILE"
  bool megatron = false;     // has args (argparse.Namespace) and canonical Megatron names
  std::optional<checkpoint::QkvLayout> qkv_layout;  // only where declared
  bool has_fused_qkv = false;
  // Names of MLP weights that have twice the width of the MLP, which only gated ones have, where
  // neither the files nor the rules say so.
  std::vector<std::string> undeclared_gates;
  int64_t original_vocabulary_rows = 0;  // 0: unknown or no vocabulary tensor
  int64_t transformer_layers = 0;        // 0: not a transformer we know
  // Pipeline layout: stage s owns layer numbers [cuts[s], cuts[s + 1]).
  std::vector<int64_t> cuts;
  std::vector<LogicalTensor> tensors;  // in module order of the whole model
  std::vector<Group> groups;
  // Trees. model_files[mp] is mp_rank_{mp} (stage * TP + tensor rank); optim_files[mp][data rank];
  // layer files by (layer, tensor rank).
  std::vector<SourceFile> model_files;
  std::vector<std::vector<SourceFile>> optim_files;
  std::map<std::pair<int64_t, int32_t>, SourceFile> layer_files;
  std::map<std::string, SourceFile>
      universal_files;  // "zero/<name>/<state>.pt", "zero/optimizer_state.pt"
  std::vector<Notice> notices;
};

struct ReadOptions {
  std::string tag;
  std::optional<checkpoint::Rules> rules;  // from the user's file; wins over the built-in ones
  std::string rules_origin;
  std::optional<checkpoint::QkvLayout> qkv_layout;  // from the option; wins over the rules
  checkpoint::Value param_groups;  // hyper-parameters for elastic sources, a list of dicts; null:
                                   // none given. Their target is then not elastic
};

// Errors: those of the readers, kMissingFile, kInconsistent, kUnsupported (ZeRO-3, MoE),
// kUnnamedParameter (TP > 1 and no rule), kUnprovedOrder, kUndeclared.
checkpoint::Result<Inventory> ReadInventory(const std::filesystem::path& path,
                                            const ReadOptions& options);

}  // namespace reshape
