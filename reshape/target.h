// Lays out a target: which files there are, the object tree of each, and which piece of which logical tensor fills which part of
// each storage. Pure metadata: nothing is written here. Format: docs/format/*.md. Tested by target_test.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/value.h"
#include "reshape/inventory.h"

namespace reshape {

enum class Moments { kAsIs, kRescale };

struct TargetSpec {
  std::optional<int32_t> tensor_parallel_size, pipeline_parallel_size, data_parallel_size, zero_stage;  // absent: as the source
  std::optional<checkpoint::DType> dtype;              // weights: fp16, bf16, fp32
  std::optional<NameLayout> layout;
  bool universal = false;                              // --format universal
  std::optional<Wrapper> wrapper;
  std::vector<int64_t> cuts;                           // stage boundaries as layer numbers; empty: the framework's rule
  Moments moments = Moments::kAsIs;
  bool elastic = false;                                // elastic -> elastic only, or with hyper-parameters given
};

// Fills a part of one target storage.
struct Placement {
  int32_t tensor = -1;             // index into Inventory::tensors
  std::string state;               // "weight", ...; the source state it is filled from
  bool stale = false;              // from stale_states
  Piece target;                    // box in the logical tensor -> storage, offset, strides
  checkpoint::DType source_dtype = checkpoint::DType::kFloat32;
};

struct TargetFile {
  std::string path;                // relative to the run folder: "global_step4/mp_rank_00_model_states.pt"
  checkpoint::Value root;          // tree with target storages; storages carried from the source keep their file
};

struct Target {
  Topology topology;
  Wrapper wrapper = Wrapper::kZero;
  std::vector<TargetFile> files;
  std::vector<Placement> placements;
  // Whatever no placement fills in a target storage is zero: alignment padding, made-up vocabulary rows.
  std::vector<std::pair<std::string, std::string>> text_files;    // relative path, content: latest, latest_universal, ...
  std::vector<Notice> notices;                                    // what was re-derived, made up, dropped, declared
};

// Errors: kUnreachableTarget (with the reason), kUndeclared, kUsage, kUnnamedParameter, kLossyConversion is found while copying.
checkpoint::Result<Target> LayOutTarget(const Inventory& source, const TargetSpec& spec);

// Targets that the framework can run, world sizes up to `ranks_max`, in a stable order, for --list-targets.
std::vector<Topology> LegalTargets(const Inventory& source, const TargetSpec& spec, int32_t ranks_max);
// Why a target cannot be reached; empty where it can.
std::string WhyUnreachable(const Inventory& source, const TargetSpec& spec);

}  // namespace reshape
