// The source checkpoint on the way to an inventory: what each model-parallel rank holds, in that
// rank's own terms. Internal to the source side (read_*.cc, prove_order.cc, assemble.cc); everybody
// else uses inventory.h. Format: docs/format/optimizer.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "checkpoint/tensor.h"
#include "reshape/inventory.h"

namespace reshape {

// Names of missing files are collected up to here: a wrong number in a file must not fill the
// memory with names.
inline constexpr size_t kMissingNamesMax = 10'000;

inline constexpr char kWeightState[] = "weight";
inline constexpr char kMasterState[] = "fp32_master";

// One entry of a rank's module, TP-local.
struct LocalTensor {
  std::string name;
  checkpoint::TensorView
      view;  // shape always; storage null where no file holds the weight (universal)
  bool tied_copy =
      false;  // a later stage's copy: `view` is the first stage's weight, its own lies in no file
  bool buffer = false;
  std::string alias_of;  // name of the owner on the same rank
  int64_t layer = -1;    // pipeline layer number of its file; -1: plain layout
};

// A parameter's place in the optimizer of one rank.
struct Member {
  std::string name = {};
  int64_t numel = 0;
  std::optional<std::vector<int64_t>> shape =
      {};             // TP-local, where the files record it with the name
  int64_t begin = 0;  // first element in the flat group; unused where `own` is filled
  std::map<std::string, checkpoint::TensorView> own =
      {};  // unfused, bare and universal: state -> its tensor
  std::optional<StepValue> step = {};
};

// A stretch of a flat group in one file: elements [begin, begin + view.numel()) of the group.
struct Segment {
  int64_t begin = 0, end = 0;  // real elements only: alignment padding is left out
  checkpoint::StoragePtr storage;
  int64_t offset = 0;  // of element `begin`
  DataRank data_rank{0};
};

struct LocalGroup {
  checkpoint::Value hyper_parameters;  // as stored, with 'params'; null: elastic
  std::optional<StepValue> step;       // of the state, else of the group's dictionary
  bool step_in_state = false;
  std::vector<Member> members;  // in flat order; empty until the order is known
  // The order that param_slice_mappings tell, where it contradicts `members`: the content decides.
  // Empty: no contradiction.
  std::vector<Member> rival;
  bool maps_contradict = false;
  std::map<std::string, std::vector<Segment>>
      flats;  // state -> segments, ascending; empty where members have their own tensors
  std::map<std::string, checkpoint::DType> flat_dtypes;
  int64_t numel =
      0;  // of the flat group: parameters with the pads between them, without end padding
  int64_t end_padding_max =
      0;  // of nameless partitions, where the end of the parameters is not known
  std::vector<std::map<std::string, checkpoint::TensorView>>
      nameless;  // unfused and bare: states by position, until named
  std::vector<std::optional<StepValue>> nameless_steps;
};

// One mp_rank file and what belongs to it.
struct ModelRank {
  TensorRank tensor_rank{0};
  PipelineStage stage{0};
  std::vector<LocalTensor>
      tensors;  // module order: tied first, then layers, or the state dict's order
  std::unordered_map<std::string, size_t> by_name;
  std::vector<LocalGroup> groups;
  struct Position {
    size_t group = 0, member = 0;
  };
  std::unordered_map<std::string, Position> member_of;  // once the members are named
  std::string Text() const;                             // "tp1-pp0"
};

// A layer that several stages hold under one key.
struct TiedKey {
  std::vector<int64_t>
      layers;  // numbers of layer files that hold its weights, ascending: the first is read
  std::vector<int32_t> stages;  // ascending; the first owns the layer file
};

// One guess at the stages of a pipeline whose files do not name parameters; proved or refuted by
// content.
struct StageCuts {
  std::vector<int64_t> cuts;  // as Inventory::cuts
  std::map<std::string, TiedKey> tied;
};

// The lists of universal_checkpoint_info: RE2 patterns that match a prefix of a name in the
// source's layout.
struct UniversalInfo {
  bool present = false;
  std::vector<std::string> vocabulary, replicated, averaged, row, two_sub_parameters,
      pipeline_replicated;
  struct SubParameters {
    std::vector<std::string> patterns;
    std::vector<int64_t> rows;
  };
  std::vector<SubParameters> sub_parameters;
};

struct Source {
  Inventory inventory;
  UniversalInfo universal;
  std::optional<checkpoint::Rules> user_rules,
      builtin_rules;  // inventory.rules is both, the user's first
  bool swiglu = false;
  bool tied_embedding = true;
  // Universal folder: full tensors by name.
  struct FullTensor {
    std::map<std::string, checkpoint::TensorView> states;
    std::optional<StepValue> step;
  };
  std::map<std::string, FullTensor> full_tensors;
  std::set<std::string>
      stale_names;  // tied copies that content shows to differ from the first stage's tensor
  std::vector<ModelRank> ranks;         // index = stage * TP + tensor rank
  bool named = false;                   // the files name the members of every group
  std::map<std::string, TiedKey> tied;  // pipeline layout: by key of the TiedLayerSpec ("embed")

  // One notice for all that is said in the same words: the names are joined.
  void Notify(std::string kind, std::string text, std::vector<std::string> names = {});
  const checkpoint::Value& ModelRoot(const ModelRank& rank) const;
  std::string ModelFileName(const ModelRank& rank) const;
  size_t RankIndex(int32_t stage, int32_t tensor_rank) const;
};

// The steps of ReadInventory, in their order. Each fills what its comment says.
// files.cc: topology, layout, wrapper flags, all trees; inventory.folder is there already. Errors:
// kMissingFile, kInconsistent, kUnsupported, readers'.
checkpoint::Status ReadSourceFiles(Source& source);
// one_checkpoint.cc: nothing that must be equal over ranks differs, in the order in which it can be
// known. Errors: kInconsistent.
checkpoint::Status CheckModelFile(const SourceFile& file);
checkpoint::Status CheckOneStep(const Inventory& inventory);
checkpoint::Status CheckOneOptimizerStep(const Source& source);
checkpoint::Status CheckReplicatedWeights(const Source& source);
// wrapper.cc: wrapper, stage, elastic and round-robin flags. Errors: kUnsupported.
checkpoint::Status DetectWrapper(Inventory& inventory);
// read_model.cc: ranks[].tensors. Needs named groups or stage cuts for the pipeline layout.
checkpoint::Status ReadPlainModules(Source& source);
checkpoint::Status ReadPipelineModules(const StageCuts& cuts, Source& source);
// The stages as the named members tell them. Errors: kMissingFile (layer files), kInconsistent.
checkpoint::Result<StageCuts> StageCutsFromNames(const Source& source);
// read_partitions.cc (DeepSpeedZeroOptimizer, BF16_Optimizer), read_flat_groups.cc
// (FP16_Optimizer), read_unfused.cc (FP16_UnfusedOptimizer, bare torch optimizer),
// read_universal.cc: ranks[].groups.
checkpoint::Status ReadPartitions(Source& source);
checkpoint::Status ReadFlatGroups(Source& source);
checkpoint::Status ReadUnfusedGroups(Source& source);
checkpoint::Status ReadUniversal(Source& source);
// stage_cuts.cc: the stages that fit the sizes of the optimizer's groups, likeliest first, where no
// file names the parameters of a stage. Errors: kUnprovedOrder where none fits.
checkpoint::Result<std::vector<StageCuts>> FindStageCuts(const Source& source);
// prove_order.cc: members of nameless groups, proved by content; orders that files contradict,
// decided by content. Errors: kUnprovedOrder.
checkpoint::Status NameGroups(Source& source);
// decide_maps.cc: called by NameGroups where the files name the members. Errors: kUnprovedOrder.
checkpoint::Status DecideMaps(Source& source);
// choose_rules.cc: rules in force, numbering, layer files that the numbering asks for. Errors:
// kMissingFile, kInconsistent, kMalformedRules.
checkpoint::Status ChooseRules(const ReadOptions& options, Source& source);
// classify.cc: kind, full shape and sub-parameters of one tensor. Errors: kUnnamedParameter,
// kUndeclared, kInconsistent.
checkpoint::Status Classify(const LocalTensor& local, Source& source, LogicalTensor& tensor);
// classify.cc: inventory.undeclared_gates, once all tensors are there.
void FindUndeclaredGates(Source& source);
// assemble.cc: inventory.tensors and inventory.groups.
checkpoint::Status Assemble(const ReadOptions& options, Source& source);

// parallel_kind.cc: how one tensor is cut over tensor ranks, and who said so.
struct ParallelKind {
  checkpoint::Parallel parallel = checkpoint::Parallel::kReplicated;
  checkpoint::Fused fused = checkpoint::Fused::kNone;
  std::vector<int64_t> sub_parameter_rows;
};
struct KindQuery {
  std::string name, canonical;
};
// User rules, then universal_checkpoint_info, then built-in rules; a disagreement becomes a notice.
// Nothing where nobody names it.
checkpoint::Result<std::optional<ParallelKind>> FindParallelKind(const KindQuery& query,
                                                                 Source& source);
// Errors: kUnsupported for forms that this version does not know.
checkpoint::Result<UniversalInfo> ReadUniversalInfo(const checkpoint::Value& model_root,
                                                    const std::string& where);

// Shared by the optimizer readers (optimizer_tree.cc).
// A step as stored: a number or a 0-d tensor; nothing for anything else.
std::optional<StepValue> ReadStep(const checkpoint::Value& value);
// "fp32_master", "exp_avg": names of parameter-shaped states under their keys; `step` and empty
// states left out.
struct OptimizerEntry {
  std::map<std::string, checkpoint::TensorView> tensors;
  std::optional<StepValue> step;
};
// One entry of a torch optimizer's `state`. Errors: kUnsupported for a state that is neither a
// tensor of `numel` elements nor a step.
checkpoint::Result<OptimizerEntry> ReadOptimizerEntry(const checkpoint::Value& entry, int64_t numel,
                                                      const std::string& where);
checkpoint::Error MakeError(checkpoint::ErrorCode code, std::string found, std::string expected,
                            std::string where, std::string advice);
// "a, b, c, ... (12 in all)" with at most `names_max` names.
std::string JoinNames(const std::vector<std::string>& names, size_t names_max);
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace reshape
