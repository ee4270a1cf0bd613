#include "certify/counters.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace certify {
namespace {

bool Same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Index of the value that most counters hold; the first of the most frequent ones.
size_t Majority(const std::vector<oracle::Counter>& counters) {
  std::vector<std::pair<size_t, int64_t>> votes;  // (first index of a value, count)
  for (size_t i = 0; i < counters.size(); ++i) {
    const auto vote = std::find_if(votes.begin(), votes.end(), [&](const auto& entry) {
      return Same(counters[entry.first].value, counters[i].value);
    });
    if (vote == votes.end()) {
      votes.emplace_back(i, 1);
    } else {
      ++vote->second;
    }
  }
  const auto best = std::max_element(
      votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return best->first;
}

}  // namespace

std::vector<CounterTally> TallyCounters(const std::vector<oracle::Counter>& counters) {
  std::vector<std::pair<std::string, std::vector<oracle::Counter>>> by_name;
  for (const oracle::Counter& counter : counters) {
    auto group = std::find_if(by_name.begin(), by_name.end(),
                              [&](const auto& entry) { return entry.first == counter.name; });
    if (group == by_name.end()) group = by_name.insert(by_name.end(), {counter.name, {}});
    group->second.push_back(counter);
  }
  std::vector<CounterTally> tallies;
  for (const auto& [name, group] : by_name) {
    CounterTally tally;
    tally.name = name;
    tally.value = group[Majority(group)].value;
    tally.places = static_cast<int64_t>(group.size());
    for (const oracle::Counter& counter : group)
      if (!Same(counter.value, tally.value)) tally.others.push_back(counter);
    tallies.push_back(std::move(tally));
  }
  return tallies;
}

const CounterTally* FindTally(const std::vector<CounterTally>& tallies, const std::string& name) {
  for (const CounterTally& tally : tallies)
    if (tally.name == name) return &tally;
  return nullptr;
}

}  // namespace certify
