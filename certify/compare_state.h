// One state of one tensor on two sides: values and vocabulary padding apart, in numbers and in a
// sentence. Internal to certify/. Tested by compare_test.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "certify/compare_bits.h"
#include "oracle/oracle.h"

namespace certify {

struct StateComparison {
  std::string name, state;
  std::string undecided;          // why nothing is claimed of it; empty: it was compared
  std::string unequal;            // a difference that is none of values: shapes, types
  std::string how;                // what was compared, where it is not the state of both sides
  Difference difference;          // without vocabulary padding
  std::string padding;            // what vocabulary padding rows do; empty: nothing to say
  int64_t padding_compared = 0;   // elements of padding rows of both sides
  std::vector<int64_t> shape;     // of a
  std::optional<double> factor;   // b is a times this, to a few ulp
  double aa = 0, bb = 0, ab = 0;  // sums of squares and products, of float32 states

  bool different() const { return !difference.equal() || !unequal.empty(); }
};

// One side's value of a state, and what the files say of its tensor.
struct StateSide {
  at::Tensor value;
  int64_t covered = 0;
  int64_t vocabulary_rows = -1;  // as TensorInfo
  bool rows_known = true;        // a file says how many rows are vocabulary
};

// `comparison` has name and state, and `how` where b's value is another state.
void CompareState(const StateSide& a, const StateSide& b, StateComparison& comparison);
// b is a master that a's weight follows from (or, with `a_is_master`, the other way round).
void CompareWithMaster(const StateSide& a, const StateSide& b, bool a_is_master,
                       StateComparison& comparison);

// "layers.0.mlp.weight exp_avg: 3 of 512 elements (0.6 %) differ, by at most 2 ulp; first at
// [0, 17]: a 0.5, b 0.25".
std::string SentenceOf(const StateComparison& comparison);
nlohmann::ordered_json StateJson(const StateComparison& comparison);
// JSON has no NaN and no infinity: those as text.
nlohmann::ordered_json NumberJson(double value);

}  // namespace certify
