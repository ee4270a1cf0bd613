#include "reshape/derive_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace reshape {
namespace {

using checkpoint::GroupRule;

bool EndsWithBias(const std::string& name) { return name == "bias" || name.ends_with(".bias"); }

// [weights of two or more dimensions that are no bias] [the rest], the first cut in two for the
// older fork; empty groups dropped.
GroupOrder SplitByRule(const std::vector<Candidate>& candidates, GroupRule rule) {
  std::vector<size_t> decayed, rest;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const LocalTensor& tensor = *candidates[i].tensor;
    const bool weight = tensor.view.shape.size() > 1 && !EndsWithBias(tensor.name);
    (weight ? decayed : rest).push_back(i);
  }
  GroupOrder order;
  if (rule == GroupRule::kMegatronHalves) {
    const auto middle = decayed.begin() + static_cast<int64_t>(decayed.size() / 2);
    order = {{decayed.begin(), middle}, {middle, decayed.end()}, rest};
  } else {
    order = {decayed, rest};
  }
  std::erase_if(order, [](const std::vector<size_t>& group) { return group.empty(); });
  return order;
}

// The framework flattens the 16-bit weights of a group into one storage: sorted by offset they are
// in the group's order.
GroupOrder SplitByStorage(const ModelRank& rank, const std::vector<Candidate>& candidates) {
  std::map<const checkpoint::Storage*, std::vector<size_t>> by_storage;
  for (size_t i = 0; i < candidates.size(); ++i)
    by_storage[candidates[i].tensor->view.storage.get()].push_back(i);
  std::map<int64_t, std::vector<std::vector<size_t>>> by_numel;
  for (auto& [storage, indices] : by_storage) {
    std::sort(indices.begin(), indices.end(), [&](size_t a, size_t b) {
      return candidates[a].tensor->view.offset < candidates[b].tensor->view.offset;
    });
    int64_t numel = 0;
    for (const size_t i : indices) numel += candidates[i].weight.numel();
    by_numel[numel].push_back(indices);
  }
  for (auto& [numel, lists] : by_numel) std::sort(lists.begin(), lists.end());
  GroupOrder order;
  for (const LocalGroup& group : rank.groups) {
    const FlatMasters masters(group);
    std::vector<size_t> chosen;
    for (const auto& indices : by_numel[group.numel]) {
      const RowMajorBytes& first = candidates[indices.front()].weight;
      if (masters.MatchingPrefix(0, first) != first.numel()) continue;
      chosen = indices;
      break;
    }
    order.push_back(std::move(chosen));
  }
  return order;
}

}  // namespace

std::vector<Derived> DeriveOrders(const Source& source, const ModelRank& rank,
                                  const std::vector<Candidate>& candidates) {
  std::vector<Derived> derived;
  const GroupRule rule = source.inventory.rules.group_rule;
  if (rule != GroupRule::kFromFiles)
    derived.push_back({"the group rule", SplitByRule(candidates, rule)});
  const bool flat = std::all_of(rank.groups.begin(), rank.groups.end(),
                                [](const LocalGroup& group) { return group.nameless.empty(); });
  if (flat && source.inventory.layout == NameLayout::kPlain) {
    derived.push_back({"the weight storages", SplitByStorage(rank, candidates)});
  }
  derived.push_back({"a split by dimensions", SplitByRule(candidates, GroupRule::kMegatron)});
  derived.push_back(
      {"a split by dimensions, halved", SplitByRule(candidates, GroupRule::kMegatronHalves)});
  std::vector<size_t> all(candidates.size());
  std::iota(all.begin(), all.end(), size_t{0});
  derived.push_back({"module order", {all}});
  return derived;
}

namespace {

bool SizesFit(const ModelRank& rank, const std::vector<Candidate>& candidates,
              const GroupOrder& order) {
  if (order.size() != rank.groups.size()) return false;
  for (size_t g = 0; g < order.size(); ++g) {
    const LocalGroup& group = rank.groups[g];
    if (group.nameless.empty()) {
      int64_t numel = 0;
      for (const size_t i : order[g]) numel += candidates[i].weight.numel();
      if (numel > group.numel || group.numel - numel > group.end_padding_max) return false;
      continue;
    }
    if (order[g].size() != group.nameless.size()) return false;
    for (size_t i = 0; i < order[g].size(); ++i) {
      if (!ShapeFits(group.nameless[i], candidates[order[g][i]].tensor->view)) return false;
    }
  }
  return true;
}

}  // namespace

Score ScoreOrder(const ModelRank& rank, const std::vector<Candidate>& candidates,
                 const GroupOrder& order) {
  Score score;
  score.sizes_fit = SizesFit(rank, candidates, order);
  if (!score.sizes_fit) return score;
  for (size_t g = 0; g < order.size(); ++g) {
    const LocalGroup& group = rank.groups[g];
    const FlatMasters masters(group);
    int64_t begin = 0;
    for (size_t i = 0; i < order[g].size(); ++i) {
      const Candidate& candidate = candidates[order[g][i]];
      const int64_t numel = candidate.weight.numel();
      const int64_t equal = group.nameless.empty()
                                ? masters.MatchingPrefix(begin, candidate.weight)
                                : MasterFits(group.nameless[i], candidate.weight);
      begin += numel;
      ++score.parameters;
      if (equal < 0 || equal == numel) {
        ++score.proved;
      } else if (candidate.tensor->tied_copy) {
        score.stale.push_back(candidate.tensor->name);
      } else if (score.first_misfit.empty()) {
        score.first_misfit = fmt::format("{} (group {}, {} of its {} elements fit)",
                                         candidate.tensor->name, g, equal, numel);
      }
    }
  }
  return score;
}

}  // namespace reshape
