// Gives names to nameless groups. The order is derived first (group rule, order in the flat weight storage) and then proved: every master,
// rounded to the weight's type, must be the weight. Where no derived order is proved, the content itself is searched for one.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "reshape/search_order.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::GroupRule;
using checkpoint::Status;

bool EndsWithBias(const std::string& name) { return name == "bias" || name.ends_with(".bias"); }

// [weights of two or more dimensions that are no bias] [the rest], the first cut in two for the older fork; empty groups dropped.
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

// The framework flattens the 16-bit weights of a group into one storage: sorted by offset they are in the group's order.
GroupOrder SplitByStorage(const ModelRank& rank, const std::vector<Candidate>& candidates) {
  std::map<const checkpoint::Storage*, std::vector<size_t>> by_storage;
  for (size_t i = 0; i < candidates.size(); ++i) by_storage[candidates[i].tensor->view.storage.get()].push_back(i);
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

struct Derived { std::string origin; GroupOrder order; };

std::vector<Derived> DeriveOrders(const Source& source, const ModelRank& rank, const std::vector<Candidate>& candidates) {
  std::vector<Derived> derived;
  const GroupRule rule = source.inventory.rules.group_rule;
  if (rule != GroupRule::kFromFiles) derived.push_back({"the group rule", SplitByRule(candidates, rule)});
  const bool flat = std::all_of(rank.groups.begin(), rank.groups.end(), [](const LocalGroup& group) { return group.nameless.empty(); });
  if (flat && source.inventory.layout == NameLayout::kPlain) {
    derived.push_back({"the weight storages", SplitByStorage(rank, candidates)});
  }
  derived.push_back({"a split by dimensions", SplitByRule(candidates, GroupRule::kMegatron)});
  derived.push_back({"a split by dimensions, halved", SplitByRule(candidates, GroupRule::kMegatronHalves)});
  std::vector<size_t> all(candidates.size());
  std::iota(all.begin(), all.end(), size_t{0});
  derived.push_back({"module order", {all}});
  return derived;
}

// How far an order fits.
struct Score {
  bool sizes_fit = false;
  int64_t proved = 0, parameters = 0;
  std::string first_misfit;
  std::vector<std::string> stale;
  bool holds() const { return sizes_fit && first_misfit.empty(); }
};

bool SizesFit(const ModelRank& rank, const std::vector<Candidate>& candidates, const GroupOrder& order) {
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

Score ScoreOrder(const ModelRank& rank, const std::vector<Candidate>& candidates, const GroupOrder& order) {
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
      const int64_t equal = group.nameless.empty() ? masters.MatchingPrefix(begin, candidate.weight)
                                                   : MasterFits(group.nameless[i], candidate.weight);
      begin += numel;
      ++score.parameters;
      if (equal < 0 || equal == numel) {
        ++score.proved;
      } else if (candidate.tensor->tied_copy) {
        score.stale.push_back(candidate.tensor->name);
      } else if (score.first_misfit.empty()) {
        score.first_misfit = fmt::format("{} (group {}, {} of its {} elements fit)", candidate.tensor->name, g, equal, numel);
      }
    }
  }
  return score;
}

void ApplyOrder(const std::vector<Candidate>& candidates, const GroupOrder& order, ModelRank& rank) {
  for (size_t g = 0; g < order.size(); ++g) {
    LocalGroup& group = rank.groups[g];
    group.members.clear();
    int64_t begin = 0;
    for (size_t i = 0; i < order[g].size(); ++i) {
      const Candidate& candidate = candidates[order[g][i]];
      Member member{.name = candidate.tensor->name, .numel = candidate.weight.numel(), .shape = std::nullopt, .begin = begin};
      if (!group.nameless.empty()) {
        member.own = group.nameless[i];
        member.step = group.nameless_steps[i];
      }
      begin += member.numel;
      group.members.push_back(std::move(member));
    }
  }
}

// Parameters of one group whose weights are equal: the content cannot tell them apart.
std::vector<std::string> EqualTensors(const std::vector<Candidate>& candidates, const std::vector<size_t>& members) {
  std::map<std::pair<int64_t, std::vector<uint32_t>>, std::vector<size_t>> alike;
  constexpr int64_t kLeading = 16;
  for (const size_t i : members) alike[{candidates[i].weight.numel(), LeadingBits(candidates[i].weight, kLeading)}].push_back(i);
  std::vector<std::string> names;
  for (const auto& [key, indices] : alike) {
    const RowMajorBytes& first = candidates[indices.front()].weight;
    std::vector<std::string> equal;
    for (const size_t i : indices) {
      if (MatchingElements(first, candidates[i].weight) == first.numel()) equal.push_back(candidates[i].tensor->name);
    }
    if (equal.size() > 1) names.insert(names.end(), equal.begin(), equal.end());
  }
  return names;
}

void Report(const ModelRank& rank, const std::vector<Candidate>& candidates, const GroupOrder& order,
            const std::vector<std::string>& stale, Source& source) {
  for (const std::string& name : stale) {
    if (!source.stale_names.insert(name).second) continue;
    source.Notify("stale-tied-copy",
                  fmt::format("unproved, stale tied copy: {} on {} differs from the first stage's tensor, whose 16-bit weight is the "
                              "only one in the files; its place follows from its neighbours.", name, rank.Text()), {name});
  }
  const bool has_masters = std::any_of(rank.groups.begin(), rank.groups.end(), [](const LocalGroup& group) {
    return group.flats.contains(kMasterState) || (!group.nameless.empty() && group.nameless.front().contains(kMasterState));
  });
  if (!has_masters) return;
  for (const auto& members : order) {
    const std::vector<std::string> equal = EqualTensors(candidates, members);
    if (equal.empty()) continue;
    source.Notify("equal-tensors",
                  fmt::format("{}: the weights of {} are equal, so the content cannot tell them apart; they are named in module order.",
                              rank.Text(), JoinNames(equal, 8)), equal);
  }
}

std::string GroupSizes(const ModelRank& rank) {
  std::vector<std::string> sizes;
  for (const LocalGroup& group : rank.groups) {
    sizes.push_back(group.nameless.empty() ? fmt::format("{} elements", group.numel) : fmt::format("{} tensors", group.nameless.size()));
  }
  return JoinNames(sizes, 8);
}

checkpoint::Error Unproved(const ModelRank& rank, const Source& source, const Score& best, const SearchResult& search) {
  std::string found = fmt::format("groups of {}", GroupSizes(rank));
  if (best.sizes_fit) {
    found += fmt::format("; in the derived order {} of {} parameters fit, the first that does not is {}", best.proved, best.parameters,
                         best.first_misfit);
  } else {
    found += fmt::format("; no derived order has these sizes, and a search fits {} elements of group {}", search.elements_fitted,
                         search.failed_group);
  }
  return MakeError(ErrorCode::kUnprovedOrder, std::move(found),
                   "an order of parameters in which every fp32 master, rounded to the weights' type, is the weight",
                   source.ModelFileName(rank) + " " + rank.Text(),
                   "If the masters are stale, rebuild them from the weights (refresh); `check` says which differ.");
}

Status NameRank(ModelRank& rank, Source& source) {
  const std::vector<Candidate> candidates = CandidatesOf(rank);
  const std::vector<Derived> derived = DeriveOrders(source, rank, candidates);
  Score best;
  for (size_t i = 0; i < derived.size(); ++i) {
    Score score = ScoreOrder(rank, candidates, derived[i].order);
    if (score.holds()) {
      const bool overruled = i > 0 && derived.front().origin == "the group rule";
      if (overruled) {
        source.Notify("group-order-from-content", fmt::format("{}: the groups do not follow the group rule; {} fits, proved by content.",
                                                              rank.Text(), derived[i].origin), {source.ModelFileName(rank)});
      }
      ApplyOrder(candidates, derived[i].order, rank);
      Report(rank, candidates, derived[i].order, score.stale, source);
      return checkpoint::Done{};
    }
    if (score.sizes_fit && (!best.sizes_fit || score.proved > best.proved)) best = std::move(score);
  }
  const SearchResult search = SearchOrder(rank, candidates);
  if (!search.found) return Unproved(rank, source, best, search);
  if (source.inventory.rules.group_rule != GroupRule::kFromFiles) {
    source.Notify("group-order-from-content", fmt::format("{}: no derived order of the groups fits; the one used was found by content.",
                                                          rank.Text()), {source.ModelFileName(rank)});
  }
  if (!search.ambiguous.empty()) {
    source.Notify("group-order-unproved",
                  fmt::format("{}: this optimizer keeps no masters, and {} have the same shape; the first in module order was taken.",
                              rank.Text(), JoinNames(search.ambiguous, 8)), search.ambiguous);
  }
  ApplyOrder(candidates, search.order, rank);
  Report(rank, candidates, search.order, search.stale, source);
  return checkpoint::Done{};
}

bool MembersHold(const ModelRank& rank, const LocalGroup& group, const std::vector<Member>& members) {
  const FlatMasters masters(group);
  return std::all_of(members.begin(), members.end(), [&](const Member& member) {
    const auto position = rank.by_name.find(member.name);
    if (position == rank.by_name.end()) return false;
    const LocalTensor& tensor = rank.tensors[position->second];
    if (member.numel == 0 || tensor.tied_copy || tensor.view.storage == nullptr) return true;
    const RowMajorBytes weight(tensor.view);
    return weight.numel() == member.numel && masters.MatchingPrefix(member.begin, weight) == member.numel;
  });
}

// param_shapes and param_slice_mappings contradict each other: the content decides.
Status DecideMaps(Source& source) {
  std::vector<std::string> files;
  for (ModelRank& rank : source.ranks) {
    for (size_t g = 0; g < rank.groups.size(); ++g) {
      LocalGroup& group = rank.groups[g];
      if (!group.maps_contradict) continue;
      if (MembersHold(rank, group, group.members)) {
        files.push_back(source.ModelFileName(rank));
      } else if (!group.rival.empty() && MembersHold(rank, group, group.rival)) {
        group.members = group.rival;
        source.Notify("param-shapes-overruled", fmt::format("{} group {}: the content follows param_slice_mappings, not param_shapes.",
                                                            rank.Text(), g), {source.ModelFileName(rank)});
      } else {
        return MakeError(ErrorCode::kUnprovedOrder, fmt::format("param_shapes and param_slice_mappings that contradict each other (group {})", g),
                         "one of the two orders proved by content", source.ModelFileName(rank) + " " + rank.Text(),
                         "If the masters are stale, rebuild them from the weights (refresh).");
      }
    }
  }
  files.erase(std::unique(files.begin(), files.end()), files.end());
  if (files.empty()) return checkpoint::Done{};
  const char* reason = source.inventory.round_robin ? " (written with round_robin_gradients)" : "";
  source.Notify("false-slice-maps",
                fmt::format("param_slice_mappings are false{}: they contradict param_shapes, and the content proves param_shapes.", reason),
                std::move(files));
  return checkpoint::Done{};
}

}  // namespace

Status NameGroups(Source& source) {
  if (source.named) return DecideMaps(source);
  for (ModelRank& rank : source.ranks) CK_DO(NameRank(rank, source));
  return checkpoint::Done{};
}

}  // namespace reshape
