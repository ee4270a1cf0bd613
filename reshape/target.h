// Lays out a target: which files there are, the object tree of each, and which piece of which
// logical tensor fills which part of each storage. Pure metadata: nothing is written here. Format:
// docs/format/*.md. Tested by target_test.cc, legality_test.cc and, on the real checkpoints, by
// corpus_reshape_test.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/value.h"
#include "reshape/inventory.h"

namespace reshape {

enum class Moments { kAsIs, kRescale };

struct TargetSpec {
  std::optional<int32_t> tensor_parallel_size, pipeline_parallel_size, data_parallel_size,
      zero_stage;                          // absent: as the source
  std::optional<checkpoint::DType> dtype;  // weights: fp16, bf16, fp32
  std::optional<NameLayout> layout;
  bool universal = false;  // --format universal
  std::optional<Wrapper> wrapper;
  std::vector<int64_t> cuts;  // stage boundaries as layer numbers; empty: the framework's rule
  Moments moments = Moments::kAsIs;
  bool elastic =
      false;  // elastic lists in a ZeRO target; a ZeRO target of an elastic source has them anyway
};

// Fills a part of one target storage.
struct Placement {
  int32_t tensor = -1;  // index into Inventory::tensors
  std::string state;    // "weight", ...; the source state it is filled from
  bool stale = false;   // from stale_states
  Piece target;  // box in the logical tensor -> storage, offset, strides. Beyond the source's
                 // shape: zeros (vocabulary rows)
  checkpoint::DType source_dtype = checkpoint::DType::kFloat32;
  float factor = 1;  // multiplies each element (moments that are rescaled)
};

// A storage whose content is decided here: step counters.
struct Literal {
  checkpoint::StoragePtr storage;
  std::string bytes;
};

struct TargetFile {
  std::string path;  // relative to the run folder: "global_step4/mp_rank_00_model_states.pt"
  checkpoint::Value
      root;  // tree with target storages; storages carried from the source keep their file
  std::filesystem::path
      copied_from;  // not empty: the source file whose bytes this file is; no tree then
};

struct Target {
  Topology topology;
  Wrapper wrapper = Wrapper::kZero;
  NameLayout layout = NameLayout::kPlain;
  checkpoint::DType weight_dtype = checkpoint::DType::kFloat32;
  bool universal = false;
  std::string step_folder_name;  // "global_step4"
  std::vector<TargetFile> files;
  std::vector<Placement> placements;
  std::vector<Literal> literals;
  // Whatever no placement or literal fills in a target storage is zero: alignment padding, made-up
  // vocabulary rows.
  std::vector<std::pair<std::string, std::string>>
      text_files;               // relative path, content; `latest` is the last
  std::vector<Notice> notices;  // what was re-derived, made up, dropped, declared
};

// Errors: kUnreachableTarget (with the reason), kUndeclared, kUsage, kUnnamedParameter,
// kUnsupported, kInconsistent; kLossyConversion is found while copying.
checkpoint::Result<Target> LayOutTarget(const Inventory& source, const TargetSpec& spec);

// Targets that the framework can run, world sizes up to `ranks_max`, in a stable order (by stage,
// then TP, PP, DP), for --list-targets. What `spec` fixes stays fixed.
std::vector<Topology> LegalTargets(const Inventory& source, const TargetSpec& spec,
                                   int32_t ranks_max);
// Why a target cannot be reached; empty where it can.
std::string WhyUnreachable(const Inventory& source, const TargetSpec& spec);

}  // namespace reshape
