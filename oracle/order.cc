#include "oracle/order.h"

#include <ATen/ops/equal.h>

#include <algorithm>
#include <functional>
#include <set>

namespace oracle {

using checkpoint::GroupRule;

namespace {

constexpr int64_t kWindowNumel = 4096;  // compared per window; law S4 compares every element

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool Decays(const Candidate& candidate) {
  return candidate.shape.size() >= 2 && !EndsWith(candidate.name, ".bias");
}

}  // namespace

int64_t Candidate::numel() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

Holder PlacedAt(const NamelessGroup& group, size_t index_in_group, int64_t start,
                const std::vector<int64_t>& shape, const std::string& state) {
  Holder holder;
  holder.shape = shape;
  if (group.flat) {
    holder.flat = group.states.at(state);
    holder.start = start;
  } else {
    holder.whole = group.slots[index_in_group].states.at(state);
  }
  return holder;
}

namespace {

class OrderFinder {
 public:
  OrderFinder(const std::vector<Candidate>& candidates, const std::vector<NamelessGroup>& groups)
      : candidates_(candidates), groups_(groups) {}

  // Proposals in order of trust; the first that is proved whole wins, else the one with most
  // proofs.
  std::optional<Order> Find(GroupRule rule) {
    std::optional<Order> best;
    const auto offer = [&](const std::optional<Assignment>& assignment, bool derived) {
      if (!assignment || !Fits(*assignment)) return false;
      Order order = Score(*assignment);
      order.derived = derived;
      const bool whole = order.proved == order.provable;
      if (!best || order.proved > best->proved) best = std::move(order);
      return whole;
    };
    if (offer(ByRule(rule), true) || offer(ByRule(GroupRule::kMegatron), true) ||
        offer(ByRule(GroupRule::kMegatronHalves), true) || offer(ByStorage(), true) ||
        offer(AllInOne(), true) || offer(InModuleOrder(true), true) ||
        offer(InModuleOrder(false), true) || offer(AnyOrder(), false)) {
      return best;
    }
    return best;
  }

 private:
  // Weight-decay split of all parameters in module order; empty lists are dropped, as DeepSpeed
  // drops empty groups.
  std::optional<Assignment> ByRule(GroupRule rule) const {
    if (rule == GroupRule::kFromFiles) return std::nullopt;
    std::vector<size_t> decaying, others;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (candidates_[i].numel() > 0) (Decays(candidates_[i]) ? decaying : others).push_back(i);
    }
    Assignment lists;
    if (rule == GroupRule::kMegatronHalves) {
      const auto middle = decaying.begin() + static_cast<int64_t>(decaying.size() / 2);
      lists.emplace_back(decaying.begin(), middle);
      lists.emplace_back(middle, decaying.end());
    } else {
      lists.push_back(decaying);
    }
    lists.push_back(others);
    std::erase_if(lists, [](const auto& list) { return list.empty(); });
    return lists;
  }

  std::optional<Assignment> AllInOne() const {
    std::vector<size_t> all;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (candidates_[i].numel() > 0) all.push_back(i);
    }
    return Assignment{all};
  }

  // In plain layouts the 16-bit weights of a fused group are views of one storage, in the group's
  // order.
  std::optional<Assignment> ByStorage() const {
    Assignment assignment;
    std::set<const checkpoint::Storage*> used;
    for (const NamelessGroup& group : groups_) {
      if (!group.flat) return std::nullopt;
      std::vector<size_t> members;
      for (const Candidate& first : candidates_) {
        if (first.weight == nullptr || !first.weight->whole) continue;
        const checkpoint::Storage* storage = first.weight->whole->view.storage.get();
        if (storage->numel != group.numel || used.count(storage) > 0) continue;
        members = MembersOf(storage);
        if (NumelOf(members) != group.numel) continue;
        used.insert(storage);
        break;
      }
      if (NumelOf(members) != group.numel) return std::nullopt;
      assignment.push_back(std::move(members));
    }
    return assignment;
  }

  std::vector<size_t> MembersOf(const checkpoint::Storage* storage) const {
    std::vector<size_t> members;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const Holder* weight = candidates_[i].weight;
      if (weight != nullptr && weight->whole && weight->whole->view.storage.get() == storage &&
          candidates_[i].numel() > 0) {
        members.push_back(i);
      }
    }
    std::sort(members.begin(), members.end(), [&](size_t a, size_t b) {
      return candidates_[a].weight->whole->view.offset < candidates_[b].weight->whole->view.offset;
    });
    return members;
  }

  int64_t NumelOf(const std::vector<size_t>& members) const {
    int64_t numel = 0;
    for (const size_t i : members) numel += candidates_[i].numel();
    return numel;
  }

  // Walks the module order once per group and passes over frozen parameters: those whose shape, or
  // content, is not next.
  std::optional<Assignment> InModuleOrder(bool by_content) const {
    Assignment assignment;
    std::set<size_t> used;
    for (const NamelessGroup& group : groups_) {
      if (group.flat && !by_content) return std::nullopt;
      std::vector<size_t> members;
      int64_t start = 0;
      for (size_t i = 0; i < candidates_.size() && !Complete(group, members, start); ++i) {
        if (used.count(i) > 0 || candidates_[i].numel() == 0) continue;
        if (!CouldBeNext(group, members.size(), start, i)) continue;
        if (by_content && candidates_[i].weight != nullptr &&
            !Proved(group, members.size(), start, i).value_or(true))
          continue;
        used.insert(i);
        members.push_back(i);
        start += candidates_[i].numel();
      }
      if (!Complete(group, members, start)) return std::nullopt;
      assignment.push_back(std::move(members));
    }
    return assignment;
  }

  // At each place any unused parameter whose content fits; where none does, one that cannot be
  // compared.
  std::optional<Assignment> AnyOrder() const {
    Assignment assignment;
    std::set<size_t> used;
    for (const NamelessGroup& group : groups_) {
      std::vector<size_t> members;
      int64_t start = 0;
      while (!Complete(group, members, start)) {
        std::optional<size_t> next;
        for (size_t i = 0; i < candidates_.size() && !next; ++i) {
          if (used.count(i) > 0 || candidates_[i].numel() == 0 ||
              !CouldBeNext(group, members.size(), start, i))
            continue;
          if (Proved(group, members.size(), start, i).value_or(false)) next = i;
        }
        for (size_t i = 0; i < candidates_.size() && !next; ++i) {
          if (used.count(i) == 0 && candidates_[i].numel() > 0 &&
              candidates_[i].weight == nullptr && CouldBeNext(group, members.size(), start, i)) {
            next = i;
          }
        }
        if (!next) return std::nullopt;
        used.insert(*next);
        members.push_back(*next);
        start += candidates_[*next].numel();
      }
      assignment.push_back(std::move(members));
    }
    return assignment;
  }

  static bool Complete(const NamelessGroup& group, const std::vector<size_t>& members,
                       int64_t start) {
    return group.flat ? start == group.numel : members.size() == group.slots.size();
  }

  bool CouldBeNext(const NamelessGroup& group, size_t index, int64_t start,
                   size_t candidate) const {
    if (group.flat) return candidates_[candidate].numel() <= group.numel - start;
    return !group.slots[index].shape || *group.slots[index].shape == candidates_[candidate].shape;
  }

  // Does the master at this place round to the candidate's weight? Null where there is nothing to
  // compare.
  std::optional<bool> Proved(const NamelessGroup& group, size_t index, int64_t start,
                             size_t candidate) const {
    const Candidate& parameter = candidates_[candidate];
    const bool has_master =
        group.flat ? group.states.count(kMaster) > 0 : group.slots[index].states.count(kMaster) > 0;
    if (parameter.weight == nullptr || !has_master) return std::nullopt;
    return MasterMatchesWeight(PlacedAt(group, index, start, parameter.shape, kMaster),
                               *parameter.weight, kWindowNumel);
  }

  bool Fits(const Assignment& assignment) const {
    if (assignment.size() != groups_.size()) return false;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const NamelessGroup& group = groups_[g];
      if (group.flat) {
        if (NumelOf(assignment[g]) != group.numel) return false;
        continue;
      }
      if (assignment[g].size() != group.slots.size()) return false;
      for (size_t i = 0; i < group.slots.size(); ++i) {
        if (!CouldBeNext(group, i, 0, assignment[g][i])) return false;
      }
    }
    return true;
  }

  Order Score(const Assignment& assignment) const {
    Order order;
    order.groups = assignment;
    for (size_t g = 0; g < groups_.size(); ++g) {
      int64_t start = 0;
      for (size_t i = 0; i < assignment[g].size(); ++i) {
        const Candidate& candidate = candidates_[assignment[g][i]];
        const std::optional<bool> proved = Proved(groups_[g], i, start, assignment[g][i]);
        if (!proved) {
          order.unprovable.push_back(candidate.name);
        } else {
          ++order.provable;
          if (*proved) ++order.proved;
          if (!*proved) order.unproved.push_back(candidate.name);
        }
        start += candidate.numel();
      }
    }
    return order;
  }

  const std::vector<Candidate>& candidates_;
  const std::vector<NamelessGroup>& groups_;
};

}  // namespace

std::optional<Order> FindOrder(const std::vector<Candidate>& candidates,
                               const std::vector<NamelessGroup>& groups, GroupRule rule) {
  return OrderFinder(candidates, groups).Find(rule);
}

std::vector<std::string> AmbiguousNames(const std::vector<Candidate>& candidates,
                                        const Order& order) {
  std::set<std::string> names;
  for (const std::vector<size_t>& group : order.groups) {
    std::map<std::vector<int64_t>, std::vector<size_t>> alike;
    for (const size_t i : group) {
      if (candidates[i].weight != nullptr) alike[candidates[i].shape].push_back(i);
    }
    for (const auto& [shape, members] : alike) {
      for (size_t i = 1; i < members.size(); ++i) {
        const Candidate &first = candidates[members[i - 1]], &second = candidates[members[i]];
        const int64_t window = std::min(first.numel(), kWindowNumel);
        if (!at::equal(SliceOf(*first.weight, 0, window), SliceOf(*second.weight, 0, window)))
          continue;
        names.insert(first.name);
        names.insert(second.name);
      }
    }
  }
  return {names.begin(), names.end()};
}

}  // namespace oracle
