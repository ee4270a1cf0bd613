// Optimizer state of ZeRO stage 0, inside the model files and without names. Internal to oracle/.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "oracle/draft.h"
#include "oracle/modules.h"
#include "oracle/order.h"

namespace oracle {

// Groups of one model-parallel rank with their hyper-parameters.
struct NamelessRank {
  int32_t stage = 0, tensor = 0;
  size_t file = 0;
  std::vector<NamelessGroup> groups;
  std::vector<checkpoint::Value> hyper_parameters;
  std::optional<int64_t> Numel() const;  // of all groups; unknown where a slot has no shape
  int64_t Count() const;                 // of parameters, where no group is flat
};

// Does the model file's `optimizer` hold groups of this kind (fused, unfused or a bare torch
// optimizer)?
bool HasNamelessOptimizer(const checkpoint::Value& model_root);
checkpoint::Result<std::vector<NamelessRank>> GatherNameless(const Draft& draft);

// Which stage owns which layer, and which layer is tied, from the sums of the groups alone: fills
// Draft::tied, stage_layers, tied_stages. Leaves them empty where no assignment has the right sums.
void DecideStages(Draft& draft, const ModuleList& modules, const std::vector<NamelessRank>& ranks);

}  // namespace oracle
