// Which rank holds which element of a logical tensor, for words about a difference: found by trying
// the plain ways to cut a tensor and kept only where the content proves it. Internal to certify/.
// Tested by holder_map_test.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "certify/subject.h"

namespace certify {

struct HolderShare {
  oracle::Place place;
  int64_t numel = 0;   // elements of this holder
  int64_t marked = 0;  // of those, elements that are marked
};

// How many marked elements each holder of `state` has. Empty where the parts cannot be mapped to
// elements (an order that is none of the plain ones, or too large a tensor): nothing is guessed.
// `marked` has one entry an element.
std::vector<HolderShare> SharesOfHolders(const Subject& subject, size_t index,
                                         const std::string& state, const std::vector<bool>& marked);

// "; held by tp0-pp0-dp1 (FILE): 12 of 40", "; in every part", or "" where nothing is known.
std::string HoldersText(const std::vector<HolderShare>& shares);

}  // namespace certify
