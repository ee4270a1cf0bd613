// What --list-targets says beside the topologies: the other forms that can be reached, and, for
// what cannot, why not and what would change that. Tested by other_targets_test.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshape/inventory.h"
#include "reshape/target.h"

namespace reshape {

// Targets that are refused for one reason.
struct LockedTargets {
  std::string flag;                 // "--tp"
  std::vector<std::string> values;  // "1", "4"
  std::string why;                  // what was found and what is expected, for the first value
  std::string unlock;               // the advice
};

struct OtherTargets {
  std::vector<std::string> reachable;  // "--layout plain", "--format universal", "--dtype fp16"
  std::vector<LockedTargets> locked;
};

// Each flag is tried alone, on top of `spec`: sizes up to `ranks_max`, stages, layouts, types,
// formats. What `spec` fixes is not tried.
OtherTargets FindOtherTargets(const Inventory& source, const TargetSpec& spec, int32_t ranks_max);

}  // namespace reshape
