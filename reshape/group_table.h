// Which group of one rank is which group of the whole model. Internal to the source side.
#pragma once

#include <cstdint>
#include <vector>

#include "reshape/source.h"

namespace reshape {

struct GroupTable {
  std::vector<Group> groups;                 // without their tensors
  std::vector<std::vector<int32_t>> global;  // [rank][local group] -> index into groups
};
// The framework drops empty groups, so a stage may have fewer: they are matched by name, else by
// hyper-parameters, in order. Errors: kInconsistent.
checkpoint::Result<GroupTable> MakeGroupTable(const Source& source);

// The members in the order in which the optimizer was given them: round_robin_gradients deals them
// out over data ranks before they are flattened.
std::vector<const Member*> GroupOrderBeforeRoundRobin(const LocalGroup& group,
                                                      const Source& source);

// Elastic files hold no hyper-parameters: those that the user gave. Errors: kUsage where the
// checkpoint has its own, the number of groups is wrong, or a value is missing or no sound one.
checkpoint::Status ApplyGivenHyperParameters(const ReadOptions& options, Source& source);

}  // namespace reshape
