// The order of a bare optimizer's group. Its entries hold no masters, and a parameter that never
// had a gradient has no entry at all: entries are matched to tensors in module order, by shape;
// those without an entry take the tensors in between.
#include <algorithm>
#include <optional>

#include "reshape/search_order.h"

namespace reshape {
namespace {

using States = std::map<std::string, checkpoint::TensorView>;

class BareSearch {
 public:
  BareSearch(const LocalGroup& group, const std::vector<Candidate>& candidates,
             std::vector<bool>& used)
      : group_(group), candidates_(candidates), used_(used) {
    size_t matrices = 0, entries = 0;
    for (const States& states : group.nameless) {
      if (states.empty()) continue;
      ++entries;
      matrices += states.begin()->second.shape.size() > 1;
    }
    matrices_ = 2 * matrices > entries;
  }

  bool Run(std::vector<size_t>& order, std::vector<std::string>& ambiguous) {
    size_t waiting = 0;
    for (const States& states : group_.nameless) {
      if (states.empty()) {
        ++waiting;
        continue;
      }
      const auto found = FirstFit(states, waiting);
      if (!found) return false;
      Fill(waiting, *found, order, ambiguous);
      waiting = 0;
      used_[*found] = true;
      order.push_back(*found);
      begin_ = *found + 1;
    }
    if (!Fill(waiting, candidates_.size(), order, ambiguous)) return false;
    NameLookalikes(order, ambiguous);
    return true;
  }

 private:
  // The first tensor from begin_ on that has the shape and leaves enough others before it.
  std::optional<size_t> FirstFit(const States& states, size_t waiting) const {
    size_t between = 0;
    for (size_t i = begin_; i < candidates_.size(); ++i) {
      if (used_[i]) continue;
      if (between >= waiting && ShapeFits(states, candidates_[i].tensor->view)) return i;
      ++between;
    }
    return std::nullopt;
  }

  // Gives tensors in [begin_, end) to `count` entries without state, in module order. Weight decay
  // goes by the number of dimensions nearly everywhere, so tensors like the rest of the group come
  // first.
  bool Fill(size_t count, size_t end, std::vector<size_t>& order,
            std::vector<std::string>& ambiguous) {
    std::vector<size_t> likely, others;
    for (size_t i = begin_; i < end && count > 0; ++i) {
      const bool matrix = candidates_[i].tensor->view.shape.size() > 1;
      if (!used_[i]) (matrix == matrices_ ? likely : others).push_back(i);
    }
    const bool clear = likely.size() == count;
    likely.insert(likely.end(), others.begin(), others.end());
    if (likely.size() < count) return false;
    for (const size_t i : likely) {
      if (!clear) ambiguous.push_back(candidates_[i].tensor->name);
    }
    likely.resize(count);
    std::sort(likely.begin(), likely.end());
    for (const size_t i : likely) {
      used_[i] = true;
      order.push_back(i);
    }
    return true;
  }

  // A tensor of the same shape that was left out would have done as well.
  void NameLookalikes(const std::vector<size_t>& order, std::vector<std::string>& ambiguous) const {
    for (size_t i = 0; i < order.size(); ++i) {
      const States& states = group_.nameless[i];
      for (size_t other = 0; other < candidates_.size() && !states.empty(); ++other) {
        if (used_[other] || !ShapeFits(states, candidates_[other].tensor->view)) continue;
        ambiguous.push_back(candidates_[order[i]].tensor->name);
        ambiguous.push_back(candidates_[other].tensor->name);
      }
    }
  }

  const LocalGroup& group_;
  const std::vector<Candidate>& candidates_;
  std::vector<bool>& used_;
  bool matrices_ = false;
  size_t begin_ = 0;
};

}  // namespace

bool SearchBare(const LocalGroup& group, const std::vector<Candidate>& candidates,
                std::vector<bool>& used, SearchResult& result) {
  return BareSearch(group, candidates, used).Run(result.order.emplace_back(), result.ambiguous);
}

}  // namespace reshape
