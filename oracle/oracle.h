// The reference oracle: reads a checkpoint of any layout and returns whole logical tensors, by cat,
// narrow and view of libtorch. Slow is allowed, unclear is not. It shares no layout code with
// reshape/: all it has in common with it is checkpoint/ (bytes, trees, names, rule syntax) and the
// prose in docs/format. Not for writing. Tested by oracle_test.cc and, against the truth taken from
// the memory of the writing processes, by corpus_oracle_test.cc.
//
// This header does not include ATen except for at::Tensor, so that certify/ can use whole tensors;
// no other room may.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/container.h"
#include "checkpoint/rules.h"
#include "checkpoint/status.h"

namespace oracle {

struct OpenOptions {
  std::string tag;
  std::optional<checkpoint::Rules> rules;           // declared by the user
  std::optional<checkpoint::QkvLayout> qkv_layout;  // declared by the user
  bool universal = false;  // read the universal folder of a run folder instead of the native step
  // Files to be taken for missing, relative to the run folder: what is left of a damaged
  // checkpoint can be read without them.
  std::set<std::string> leave_out;
};

// The four states that every Adam-like optimizer has; other parameter-shaped states go by their
// key.
inline constexpr char kWeight[] = "weight";
inline constexpr char kMaster[] = "fp32_master";
inline constexpr char kExpAvg[] = "exp_avg";
inline constexpr char kExpAvgSq[] = "exp_avg_sq";

struct Rank {  // of whoever wrote a file
  int32_t tensor = 0, stage = 0, data = 0;
  std::string ToString() const;  // "tp1-pp0-dp3"
};

enum class Role { kTrainable, kFrozen, kBuffer };

struct TensorInfo {
  std::string name;  // as in the framework's state dict, pipeline-global layer numbers
  std::string canonical;
  std::string parallel;        // "replicated", "column", "row", "vocabulary"
  int32_t partition_dim = -1;  // 0, 1, or -1
  std::vector<int64_t> shape;  // full; vocabulary tensors with their padding rows
  int64_t vocabulary_rows =
      -1;  // rows that are vocabulary; shape[0] - this = padding rows; -1: no vocabulary tensor
  Role role = Role::kTrainable;
  std::string alias_of;  // name (not canonical) of the tensor that this one is; empty for most
  std::map<std::string, checkpoint::DType> states;  // states that exist for it
  int32_t group = -1;                               // index into Summary::groups
  std::optional<double> step;                       // as stored
  std::string
      rule;  // which rule named it: "built-in ...: pattern", "universal_checkpoint_info", "FILE"
  // Where the rule splits otherwise than the checkpoint's own universal_checkpoint_info says: a
  // sentence that names both.
  std::string rule_in_doubt;
  std::vector<int64_t> weight_strides;  // where stored transposed
  // Queries, keys and values in one tensor that is split over tensor ranks: its row order is
  // Summary::qkv_layout; without one, `Assemble` concatenates the shards.
  bool fused_qkv = false;
};

// A place in the files, for findings.
struct Place {
  std::string file;    // relative to the run folder
  std::string record;  // "data/3"; may be empty
  Rank rank;
};

struct Disagreement {  // two holders of one thing differ
  Place first, second;
  int64_t differing = 0, compared = 0;
  int64_t first_index = 0;  // row-major index in the compared part
  double first_value = 0, second_value = 0;
  int64_t max_ulp = 0;
  bool known_stale = false;  // the stale tied copy: a notice, not a fault
};

// One state of one tensor, assembled.
struct Assembled {
  at::Tensor
      value;  // full logical shape (with vocabulary padding rows), dtype as stored, contiguous
  int64_t covered = 0;            // elements held by at least one piece
  int64_t held_twice = 0;         // elements held by two pieces that are no replicas of each other
  int64_t replicas_compared = 0;  // elements of replicas that were compared with the first holder
  std::vector<Disagreement> disagreements;
  std::vector<Place> holders;  // files that hold it
  // Parts by (tensor rank, stage, data rank), for laws that look at one rank's part: boxes of
  // `value` by flat intervals of the shard are given as index lists only where asked; see
  // PartOfEachHolder.
};

// What one partition or rank holds of one state, as a flat tensor in storage order, for laws about
// parts (all-zero moments of one rank).
struct HolderPart {
  Place place;
  at::Tensor flat;
};

// Consecutive elements of one copy of a shard that lie in one record, or in no file at all.
struct CopyPiece {
  Place place;
  int64_t numel = 0;
  bool present = true;
};

// One copy of the shard of one tensor rank (of the whole tensor where it is not split).
struct ShardCopy {
  Rank rank;
  std::vector<CopyPiece> pieces;  // in storage order; their sizes add up to the shard's
};

struct GroupInfo {
  std::string name;  // as stored; empty where none
  std::map<std::string, std::string>
      hyper_parameters;              // rendered: "lr" -> "0.003"; without params and step
  std::vector<std::string> members;  // names of tensors
  checkpoint::Value stored;          // the dictionary itself; null for elastic
};

struct Counter {
  std::string name;
  double value = 0;
  Place place;
};  // "optimizer step", "global_steps", "skipped_steps", "cur_scale"...

struct PaddingAccount {  // alignment padding of one flat group on one model-parallel rank
  Place place;
  int32_t group = 0;
  int64_t real_numel = 0, stored_numel = 0, expected_padding = 0, recorded_padding = 0;
  int64_t nonzero = 0;  // padding elements that are not zero
  std::string problem;  // empty: accounted for to the element
};

struct FileFact {
  std::string name;
  std::string kind;
  bool expected = true;
  bool present = true;
};

struct Finding {
  std::string kind, text;
  std::vector<std::string> names;
  bool fault = false;
  Place place;
};

struct Summary {
  std::string format;   // "megatron-deepspeed", "deepspeed", "deepspeed-universal"
  std::string layout;   // "pipeline", "plain"
  std::string wrapper;  // "FP16_Optimizer", "FP16_UnfusedOptimizer", "BF16_Optimizer",
                        // "DeepSpeedZeroOptimizer", "torch", "none"
  std::string tag, framework_version;
  int64_t iteration = -1, global_steps = -1, skipped_steps = -1;
  int32_t tensor_parallel = 1, pipeline_parallel = 1, data_parallel = 1, zero_stage = 0;
  std::string dtype;  // "fp16", "bf16", "fp32": of the weights
  bool elastic = false, round_robin = false, legacy_container = false;
  bool dummy_step =
      false;  // wrapper that takes one Adam step at construction: optimizer step = taken + 1
  bool no_steps_taken = false;  // every step skipped, or none: no optimizer state is right
  std::vector<GroupInfo> groups;
  bool group_rule_known = false;  // there is a weight-decay rule to check against
  std::vector<Counter> counters;
  std::vector<PaddingAccount> padding;
  std::vector<FileFact> files;    // what the topology needs, and what else is there
  std::vector<Finding> findings;  // notices and faults met while reading: false slice maps, order
                                  // proved by content...
  std::map<std::string, std::vector<std::pair<Place, checkpoint::Value>>>
      carried;  // keys of model files outside tensors: "args", "lr_scheduler", "rng_state"...
  std::string rules_origin;
  std::optional<checkpoint::QkvLayout> qkv_layout;  // declared
  bool has_fused_qkv = false;
  std::vector<int64_t>
      cuts;  // first layer number of each stage, then one past the last; empty: not pipelined
  bool master_is_weight =
      false;  // bare fp32 optimizer: fp32_master is the weight itself, S4 has nothing to compare
};

class Oracle {
 public:
  // Reads all metadata; maps the files; assembles nothing yet. A checkpoint with missing files
  // still opens where a model file is there: the absences are in Summary::files and tensors that
  // cannot be covered say so when assembled. Errors: those of the readers, kUnsupported,
  // kUnnamedParameter.
  static checkpoint::Result<std::shared_ptr<const Oracle>> Open(const std::filesystem::path& path,
                                                                const OpenOptions& options);
  virtual ~Oracle() = default;

  virtual const Summary& summary() const = 0;
  virtual const std::vector<TensorInfo>& tensors() const = 0;  // module order; aliases included
  // Whole logical tensor. Covers: every holder. REQUIRES: index in range, state in
  // tensors()[index].states, no alias.
  virtual checkpoint::Result<Assembled> Assemble(size_t index, const std::string& state) const = 0;
  virtual checkpoint::Result<std::vector<HolderPart>> PartOfEachHolder(
      size_t index, const std::string& state) const = 0;
  // Where every copy of every shard lies, without the stale tied ones: one list of copies a tensor
  // rank, or a single list where the tensor is not split. A list is empty where the files that held
  // that shard are missing.
  virtual checkpoint::Result<std::vector<std::vector<ShardCopy>>> CopiesOf(
      size_t index, const std::string& state) const = 0;
  // The stale tied copy, where there is one: state -> its value. Empty map otherwise.
  virtual checkpoint::Result<std::map<std::string, at::Tensor>> StaleCopy(size_t index) const = 0;
  // Every file opened, for S8 and file digests.
  virtual const std::vector<checkpoint::TorchFile>& torch_files() const = 0;
};

}  // namespace oracle
