// Test support: two inventories as whole tensors, compared element for element by the plainest
// loops.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshape/inventory.h"

namespace reshape {

// The bytes of one state, row-major. Empty where an element is not covered exactly once.
std::string WholeState(const LogicalTensor& tensor, const StatePieces& state);

struct Comparison {
  int64_t compared = 0;                  // elements
  std::vector<std::string> differences;  // "layers.0... exp_avg: 3 elements"
};

struct CompareOptions {
  bool weights = true;  // universal folders hold none
  bool frozen = true;
  bool frozen_bits = true;  // false: they went through another type
  int64_t vocabulary_rows_between =
      0;                    // rows that a checkpoint between the two had; 0: none between
  float moment_factor = 1;  // of exp_avg; its square for exp_avg_sq
};

// `target` holds what `source` holds: every tensor by canonical name; vocabulary rows that both
// have, zeros where the target has more; weights of another type are the rounded masters.
Comparison CompareInventories(const Inventory& source, const Inventory& target,
                              const CompareOptions& options);

}  // namespace reshape
