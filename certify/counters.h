// Numbers that several files hold and that must be one number. Internal to certify/. Tested by
// counters_test.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oracle/oracle.h"

namespace certify {

struct CounterTally {
  std::string name;
  double value = 0;  // what most places hold; among equals, the first
  int64_t places = 0;
  std::vector<oracle::Counter> others;  // places that hold another value
};

// One tally a name, in order of first appearance. NaN equals NaN.
std::vector<CounterTally> TallyCounters(const std::vector<oracle::Counter>& counters);
// Null where no counter has that name.
const CounterTally* FindTally(const std::vector<CounterTally>& tallies, const std::string& name);

}  // namespace certify
