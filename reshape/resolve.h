// What a target specification comes to for a given source: every choice made, every refusal. The
// only place that decides whether the framework can run a target. Used by target*.cc and by
// --list-targets. Tested by legality_test.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/status.h"
#include "reshape/inventory.h"
#include "reshape/target.h"

namespace reshape {

struct ResolvedTarget {
  Topology topology;
  Wrapper wrapper =
      Wrapper::kZero;  // of the optimizer; for a universal target, of the run that it stands for
  checkpoint::DType dtype = checkpoint::DType::kFloat32;
  NameLayout layout = NameLayout::kPlain;
  bool universal = false;
  bool elastic = false;
  bool round_robin = false;               // flat order goes round the data ranks
  int64_t parameter_alignment_numel = 1;  // parameter starts are multiples of this
  std::vector<int64_t> cuts;          // pipeline layout: stage s owns layers [cuts[s], cuts[s + 1])
  int64_t vocabulary_rows = 0;        // rows of vocabulary tensors with padding; 0: as the source
  bool fused_base_optimizer = false;  // keys of FusedAdam, not of torch Adam
  bool identical = false;             // equal to the source in everything
  // How the moments change; 1: as they are. exp_avg_sq takes the square.
  float moment_factor = 1;
  // What a stage-0 fp16 wrapper that does not scale the loss makes moments smaller by; 1 where
  // source and target agree.
  double unscaled_factor = 1;
  std::vector<Notice> notices;
};

// Errors: as LayOutTarget.
checkpoint::Result<ResolvedTarget> Resolve(const Inventory& source, const TargetSpec& spec);

// Source facts that several files ask for.
bool CrossesLayouts(const Inventory& source, const ResolvedTarget& target);
bool ChangesTensorParallel(const Inventory& source, const ResolvedTarget& target);
// Optimizer dictionary of one model-parallel rank in the source: of data rank 0 in an optimizer
// file, in the model file, or the universal folder's; null where there is none.
checkpoint::Value SourceOptimizerDict(const Inventory& source, size_t model_rank);
// `args` of the first model file; null where there is none.
checkpoint::Value SourceArgs(const Inventory& source);
// Tree of the first model file.
const checkpoint::Value& SourceRoot(const Inventory& source);
// Every group has them: in the files, or declared.
bool HasHyperParameters(const Inventory& source);
bool HasFusedBaseOptimizer(const Inventory& source);
// "0.19.8" as {0, 19, 8}; missing or odd parts are 0.
struct FrameworkVersion {
  int64_t major = 0, minor = 0, patch = 0;
  auto operator<=>(const FrameworkVersion&) const = default;
};
FrameworkVersion SourceVersion(const Inventory& source);

// legality.cc: what the framework refuses. Each returns an error, or Done.
checkpoint::Status CheckTensorParallel(const Inventory& source, const ResolvedTarget& target);
checkpoint::Status CheckPipeline(const Inventory& source, const ResolvedTarget& target);
checkpoint::Status CheckWrapper(const Inventory& source, const ResolvedTarget& target);
checkpoint::Error Unreachable(std::string found, std::string expected, std::string advice);

}  // namespace reshape
