// The last look at a tree that a pickle made, before anybody walks it: no cycles, bounded depth,
// hashable keys that occur once. Internal to the pickle reader. Tested by pickle_test.cc.
#pragma once

#include <string>
#include <unordered_map>

#include "checkpoint/status.h"
#include "checkpoint/value.h"

namespace checkpoint {

// Height of each node that was reached: 1 for leaves.
using NodeHeights = std::unordered_map<const Node*, int32_t>;

// Fills `heights` with every node reachable from `root`. Linear in nodes and edges, iterative.
// Errors: kMalformedPickle for a cycle, a key that Python could not hash, or a key that occurs
// twice; kLimitExceeded above `depth_max`.
Status CheckTree(const Value& root, int64_t depth_max, const std::string& where,
                 NodeHeights* heights);

}  // namespace checkpoint
