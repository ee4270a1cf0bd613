// Names for nameless optimizer groups (ZeRO stage 0): which parameter stands where. Orders are
// proposed from rules and proved by content: an fp32 master rounded to the weight's type must equal
// the weight. Internal to oracle/; tested by order_test.cc. Format: docs/format/optimizer.md, stage
// 0.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/rules.h"
#include "oracle/holder.h"

namespace oracle {

// A parameter that may stand in a group. The weight is null where no file holds it (the stale tied
// copy on a later stage).
struct Candidate {
  std::string name;
  std::vector<int64_t> shape;
  const Holder* weight = nullptr;
  int64_t numel() const;
};

// One parameter of an unfused group.
struct Slot {
  std::optional<std::vector<int64_t>>
      shape;  // unknown where the parameter has no state (never used, bare fp32)
  std::map<std::string, Stored> states;  // fp32_master (not for bare fp32), exp_avg, ...
  std::optional<double> step;
};

struct NamelessGroup {
  bool flat = false;
  int64_t numel = 0;                                               // flat
  std::map<std::string, std::shared_ptr<const FlatState>> states;  // flat, one partition each
  std::optional<double> step;                                      // flat
  std::vector<Slot> slots;                                         // not flat
};

// Candidate indices of each group, in order.
using Assignment = std::vector<std::vector<size_t>>;

struct Order {
  Assignment groups;
  bool derived = true;                  // from rules and file order; false: found by content
  int64_t proved = 0, provable = 0;     // parameters
  std::vector<std::string> unproved;    // provable but not equal
  std::vector<std::string> unprovable;  // no weight to compare with
};

// Null where no order fits the sizes.
std::optional<Order> FindOrder(const std::vector<Candidate>& candidates,
                               const std::vector<NamelessGroup>& groups,
                               checkpoint::GroupRule rule);
// Names that could be exchanged: same group, same shape, bit-equal weights.
std::vector<std::string> AmbiguousNames(const std::vector<Candidate>& candidates,
                                        const Order& order);
// The copy of one state of a candidate in its group. REQUIRES: the state exists there.
Holder PlacedAt(const NamelessGroup& group, size_t index_in_group, int64_t start,
                const std::vector<int64_t>& shape, const std::string& state);

}  // namespace oracle
