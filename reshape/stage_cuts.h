// The framework's own partition of layers into stages. Pure arithmetic. Format: docs/format/pipeline.md. Tested by stage_cuts_test.cc.
#pragma once

#include <cstdint>
#include <vector>

namespace reshape {

// Boundaries [0, ..., weights.size()] of `stages` contiguous parts with the smallest difference between the heaviest and the lightest; among
// equals the later cut. Weights 0,0,1,1,1,1,0,0,0 over 2 stages: 0, 4, 9. REQUIRES: stages >= 1.
std::vector<int64_t> BalancedCuts(const std::vector<int64_t>& weights, int32_t stages);

}  // namespace reshape
