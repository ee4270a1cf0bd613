#include "reshape/search_order.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace reshape {
namespace {

using checkpoint::TensorView;

constexpr int64_t kKeyElements = 8;  // leading elements that a candidate is looked up by
constexpr int64_t kSearchStepsMax = 2'000'000;

// Candidates by type and by the bits of their first elements: one table for each key length,
// because short parameters have short keys.
class LeadingBitsIndex {
 public:
  explicit LeadingBitsIndex(const std::vector<Candidate>& candidates) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      const RowMajorBytes& weight = candidates[i].weight;
      tables_[weight.dtype()][std::min(kKeyElements, weight.numel())]
             [LeadingBits(weight, kKeyElements)]
                 .push_back(i);
    }
  }
  // Candidates whose leading bits are the masters' at `position`.
  std::vector<size_t> At(const FlatMasters& masters, int64_t position) const {
    std::vector<size_t> found;
    for (const auto& [dtype, tables] : tables_) {
      std::vector<uint32_t> bits;
      masters.AppendRounded(position, kKeyElements, dtype, bits);
      for (const auto& [length, table] : tables) {
        if (length > static_cast<int64_t>(bits.size())) continue;
        const auto entry = table.find(std::vector<uint32_t>(bits.begin(), bits.begin() + length));
        if (entry != table.end())
          found.insert(found.end(), entry->second.begin(), entry->second.end());
      }
    }
    return found;
  }

 private:
  using Table = std::map<std::vector<uint32_t>, std::vector<size_t>>;
  std::map<checkpoint::DType, std::map<int64_t, Table>> tables_;
};

// Module order first: behind the last one placed, then from the start.
void SortByPreference(std::vector<size_t>& indices, std::optional<size_t> last) {
  const auto key = [&](size_t index) { return std::pair(last && index <= *last, index); };
  std::sort(indices.begin(), indices.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
}

// Depth-first tiling of one flat group, with a stack of its own.
class FlatSearch {
 public:
  FlatSearch(const std::vector<Candidate>& candidates, const LeadingBitsIndex& index,
             std::vector<bool>& used)
      : candidates_(candidates), index_(index), used_(used) {}

  // `padding_max`: elements behind the last parameter that may be padding.
  bool Run(const FlatMasters& masters, int64_t numel, int64_t padding_max, SearchResult& result) {
    std::vector<Level> levels;
    levels.push_back({0, Options(masters, 0, numel, std::nullopt), 0});
    int64_t steps = 0;
    while (!levels.empty() && ++steps < kSearchStepsMax) {
      Level& level = levels.back();
      result.elements_fitted = std::max(result.elements_fitted, level.position);
      const bool only_padding = level.options.empty() && numel - level.position <= padding_max;
      if (level.position == numel || only_padding) return Finish(levels, result);
      if (level.next > 0) used_[level.options[level.next - 1].candidate] = false;
      if (level.next == level.options.size()) {
        levels.pop_back();
        continue;
      }
      const Option option = level.options[level.next++];
      used_[option.candidate] = true;
      const int64_t position = level.position + candidates_[option.candidate].weight.numel();
      levels.push_back({position, Options(masters, position, numel, option.candidate), 0});
    }
    return false;
  }

 private:
  struct Option {
    size_t candidate = 0;
    bool stale = false;
  };
  struct Level {
    int64_t position;
    std::vector<Option> options;
    size_t next;
  };

  std::vector<Option> Options(const FlatMasters& masters, int64_t position, int64_t numel,
                              std::optional<size_t> last) const {
    std::vector<Option> options;
    if (position >= numel) return options;
    std::vector<size_t> found = index_.At(masters, position);
    SortByPreference(found, last);
    // Two candidates of one length that both fit here have equal content: they are interchangeable,
    // so one of them is enough.
    std::set<int64_t> lengths;
    for (const size_t candidate : found) {
      const RowMajorBytes& weight = candidates_[candidate].weight;
      if (used_[candidate] || lengths.contains(weight.numel())) continue;
      if (masters.MatchingPrefix(position, weight) != weight.numel()) continue;
      lengths.insert(weight.numel());
      options.push_back({candidate, false});
    }
    // A later stage's copy may differ from the weight that a file holds: any place is possible that
    // the neighbours leave.
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (used_[i] || !candidates_[i].tensor->tied_copy ||
          position + candidates_[i].weight.numel() > numel)
        continue;
      if (std::none_of(options.begin(), options.end(),
                       [&](const Option& option) { return option.candidate == i; })) {
        options.push_back({i, true});
      }
    }
    return options;
  }

  bool Finish(const std::vector<Level>& levels, SearchResult& result) const {
    auto& order = result.order.emplace_back();
    for (const Level& level : levels) {
      if (level.next == 0) continue;
      const Option& option = level.options[level.next - 1];
      order.push_back(option.candidate);
      if (option.stale) result.stale.push_back(candidates_[option.candidate].tensor->name);
    }
    return true;
  }

  const std::vector<Candidate>& candidates_;
  const LeadingBitsIndex& index_;
  std::vector<bool>& used_;
};

// One group of shaped masters: the first tensor in module order that fits, behind the last one if
// possible.
bool SearchShaped(const LocalGroup& group, const std::vector<Candidate>& candidates,
                  std::vector<bool>& used, SearchResult& result) {
  auto& order = result.order.emplace_back();
  std::map<std::vector<int64_t>, std::vector<size_t>> by_shape;
  for (size_t i = 0; i < candidates.size(); ++i)
    by_shape[candidates[i].tensor->view.shape].push_back(i);
  std::optional<size_t> last;
  for (const auto& states : group.nameless) {
    std::vector<size_t> fitting, stale;
    const auto try_all = [&](const std::vector<size_t>& indices) {
      for (const size_t i : indices) {
        if (used[i] || !ShapeFits(states, candidates[i].tensor->view)) continue;
        const int64_t equal = MasterFits(states, candidates[i].weight);
        if (equal == candidates[i].weight.numel()) {
          fitting.push_back(i);
        } else if (candidates[i].tensor->tied_copy) {
          stale.push_back(i);
        }
      }
    };
    const auto found = by_shape.find(states.at(kMasterState).shape);
    if (found != by_shape.end()) try_all(found->second);
    const bool by_place = fitting.empty();
    if (by_place) fitting = stale;
    if (fitting.empty()) return false;
    SortByPreference(fitting, last);
    last = fitting.front();
    used[*last] = true;
    order.push_back(*last);
    if (by_place) result.stale.push_back(candidates[*last].tensor->name);
    result.elements_fitted += candidates[*last].weight.numel();
  }
  return true;
}

}  // namespace

std::vector<Candidate> CandidatesOf(const ModelRank& rank, bool with_empty) {
  std::vector<Candidate> candidates;
  for (const LocalTensor& tensor : rank.tensors) {
    // An expanded tensor repeats few stored elements, so it is no parameter; copying it could fill
    // the memory.
    const bool stored =
        tensor.view.storage != nullptr && tensor.view.numel() <= tensor.view.storage->numel;
    const bool fits = !tensor.buffer && tensor.alias_of.empty() && stored &&
                      (with_empty || tensor.view.numel() > 0);
    if (fits) candidates.push_back({&tensor, RowMajorBytes(tensor.view)});
  }
  return candidates;
}

bool ShapeFits(const std::map<std::string, TensorView>& states, const TensorView& weight) {
  return std::all_of(states.begin(), states.end(), [&](const auto& state) {
    // Moments keep the memory order of the parameter, so a transposed one is told from its
    // namesakes in shape.
    return state.second.shape == weight.shape &&
           state.second.IsContiguous() == weight.IsContiguous();
  });
}

int64_t MasterFits(const std::map<std::string, TensorView>& states, const RowMajorBytes& weight) {
  const auto master = states.find(kMasterState);
  if (master == states.end()) return -1;
  return MatchingElements(RowMajorBytes(master->second), weight);
}

SearchResult SearchOrder(const ModelRank& rank, const std::vector<Candidate>& candidates) {
  SearchResult result;
  std::vector<bool> used(candidates.size(), false);
  const LeadingBitsIndex index(candidates);
  for (size_t i = 0; i < rank.groups.size(); ++i) {
    const LocalGroup& group = rank.groups[i];
    result.failed_group = i;
    result.elements_fitted = 0;
    const bool bare = !group.nameless.empty() && !group.nameless.front().contains(kMasterState);
    bool found = true;
    if (bare) {
      found = SearchBare(group, candidates, used, result);
    } else if (!group.nameless.empty()) {
      found = SearchShaped(group, candidates, used, result);
    } else if (group.numel > 0) {
      found = FlatSearch(candidates, index, used)
                  .Run(FlatMasters(group), group.numel, group.end_padding_max, result);
    } else {
      result.order.emplace_back();
    }
    if (!found) return result;
  }
  result.found = true;
  return result;
}

}  // namespace reshape
