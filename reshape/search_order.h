// Orders of nameless groups, as index lists; and the search for the one that the content proves.
// Internal to the source side. Tested by prove_order_test.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshape/compare_content.h"
#include "reshape/source.h"

namespace reshape {

// A tensor of the module that an optimizer may hold.
struct Candidate {
  const LocalTensor* tensor = nullptr;
  RowMajorBytes weight;
};
// `with_empty`: parameters without elements, which only a bare optimizer keeps in its groups.
std::vector<Candidate> CandidatesOf(const ModelRank& rank, bool with_empty);

// Of each group, indices into the candidates.
using GroupOrder = std::vector<std::vector<size_t>>;

struct SearchResult {
  bool found = false;
  GroupOrder order;
  std::vector<std::string> stale;  // tied copies placed by their neighbours, without proof
  std::vector<std::string>
      ambiguous;                // placed by shape alone where another tensor would do as well
  int64_t elements_fitted = 0;  // of the first group that failed
  size_t failed_group = 0;
};
// REQUIRES: members of all groups are nameless.
SearchResult SearchOrder(const ModelRank& rank, const std::vector<Candidate>& candidates);

// One group of a bare optimizer (search_bare.cc): no masters, so shapes and memory order are all
// there is. Adds to result.order; false where no order fits.
bool SearchBare(const LocalGroup& group, const std::vector<Candidate>& candidates,
                std::vector<bool>& used, SearchResult& result);

// Position-wise fit of a tensor with an unnamed entry of an unfused or bare optimizer.
bool ShapeFits(const std::map<std::string, checkpoint::TensorView>& states,
               const checkpoint::TensorView& weight);
// -1: no master to compare with; else the leading elements that are equal.
int64_t MasterFits(const std::map<std::string, checkpoint::TensorView>& states,
                   const RowMajorBytes& weight);

}  // namespace reshape
