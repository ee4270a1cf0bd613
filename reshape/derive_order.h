// Orders of nameless groups that rules and weight storages suggest, and how far the content agrees
// with one. Internal to the source side. Tested by inventory_test.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshape/search_order.h"

namespace reshape {

struct Derived {
  std::string origin;
  GroupOrder order;
};
// Likeliest first: the group rule in force, the order in the flat weight storages, plain splits.
std::vector<Derived> DeriveOrders(const Source& source, const ModelRank& rank,
                                  const std::vector<Candidate>& candidates);

// How far an order fits.
struct Score {
  bool sizes_fit = false;
  int64_t proved = 0, parameters = 0;
  std::string first_misfit;
  std::vector<std::string> stale;
  bool holds() const { return sizes_fit && first_misfit.empty(); }
};
Score ScoreOrder(const ModelRank& rank, const std::vector<Candidate>& candidates,
                 const GroupOrder& order);

}  // namespace reshape
