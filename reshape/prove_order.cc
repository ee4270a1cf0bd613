// Gives names to nameless groups. The order is derived first (group rule, order in the flat weight
// storage) and then proved: every master, rounded to the weight's type, must be the weight. Where
// no derived order is proved, the content itself is searched for one.
#include <fmt/format.h>

#include <algorithm>

#include "reshape/derive_order.h"
#include "reshape/threads.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::GroupRule;
using checkpoint::Status;

void ApplyOrder(const std::vector<Candidate>& candidates, const GroupOrder& order,
                ModelRank& rank) {
  for (size_t g = 0; g < order.size(); ++g) {
    LocalGroup& group = rank.groups[g];
    group.members.clear();
    int64_t begin = 0;
    for (size_t i = 0; i < order[g].size(); ++i) {
      const Candidate& candidate = candidates[order[g][i]];
      Member member{.name = candidate.tensor->name,
                    .numel = candidate.weight.numel(),
                    .shape = std::nullopt,
                    .begin = begin};
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
std::vector<std::string> EqualTensors(const std::vector<Candidate>& candidates,
                                      const std::vector<size_t>& members) {
  std::map<std::pair<int64_t, std::vector<uint32_t>>, std::vector<size_t>> alike;
  constexpr int64_t kLeading = 16;
  for (const size_t i : members)
    alike[{candidates[i].weight.numel(), LeadingBits(candidates[i].weight, kLeading)}].push_back(i);
  std::vector<std::string> names;
  for (const auto& [key, indices] : alike) {
    const RowMajorBytes& first = candidates[indices.front()].weight;
    std::vector<std::string> equal;
    for (const size_t i : indices) {
      if (MatchingElements(first, candidates[i].weight) == first.numel())
        equal.push_back(candidates[i].tensor->name);
    }
    if (equal.size() > 1) names.insert(names.end(), equal.begin(), equal.end());
  }
  return names;
}

// What the proof of one rank found. Ranks are proved at the same time, so each writes its own.
struct RankOutcome {
  std::optional<checkpoint::Error> error;
  std::vector<Notice> notices;
  std::vector<std::string> stale;
};

void Report(const ModelRank& rank, const std::vector<Candidate>& candidates,
            const GroupOrder& order, RankOutcome& outcome) {
  for (const std::string& name : outcome.stale) {
    outcome.notices.push_back(
        {"stale-tied-copy",
         fmt::format(
             "stale tied copy, its place not proved by content: {} on its last stage differs from "
             "the first stage's "
             "tensor, whose "
             "16-bit weight is the only one in the files; its place follows from its neighbours.",
             name),
         {name}});
  }
  const bool has_masters =
      std::any_of(rank.groups.begin(), rank.groups.end(), [](const LocalGroup& group) {
        return group.flats.contains(kMasterState) ||
               (!group.nameless.empty() && group.nameless.front().contains(kMasterState));
      });
  if (!has_masters) return;
  for (const auto& members : order) {
    const std::vector<std::string> equal = EqualTensors(candidates, members);
    if (equal.empty()) continue;
    outcome.notices.push_back({"equal-tensors",
                               fmt::format("the weights of {} are equal, so the content cannot "
                                           "tell them apart; they are named in module "
                                           "order.",
                                           JoinNames(equal, 8)),
                               equal});
  }
}

std::string GroupSizes(const ModelRank& rank) {
  std::vector<std::string> sizes;
  for (const LocalGroup& group : rank.groups) {
    sizes.push_back(group.nameless.empty() ? fmt::format("{} elements", group.numel)
                                           : fmt::format("{} tensors", group.nameless.size()));
  }
  return JoinNames(sizes, 8);
}

checkpoint::Error Unproved(const ModelRank& rank, const Source& source, const Score& best,
                           const SearchResult& search) {
  std::string found = fmt::format("groups of {}", GroupSizes(rank));
  if (best.sizes_fit) {
    found +=
        fmt::format("; in the derived order {} of {} parameters fit, the first that does not is {}",
                    best.proved, best.parameters, best.first_misfit);
  } else {
    found +=
        fmt::format("; no derived order has these sizes, and a search fits {} elements of group {}",
                    search.elements_fitted, search.failed_group);
  }
  return MakeError(ErrorCode::kUnprovedOrder, std::move(found),
                   "an order of parameters in which every fp32 master, rounded to the weights' "
                   "type, is the weight",
                   source.ModelFileName(rank) + " " + rank.Text(),
                   "If the masters are stale, rebuild them from the weights (refresh); `check` "
                   "says which differ.");
}

RankOutcome NameRank(const Source& source, ModelRank& rank) {
  RankOutcome outcome;
  if (rank.groups.empty()) return outcome;
  const std::vector<Candidate> candidates =
      CandidatesOf(rank, source.inventory.wrapper == Wrapper::kFp32);
  const std::vector<Derived> derived = DeriveOrders(source, rank, candidates);
  const bool has_rule = source.inventory.rules.group_rule != GroupRule::kFromFiles;
  Score best;
  for (size_t i = 0; i < derived.size(); ++i) {
    Score score = ScoreOrder(rank, candidates, derived[i].order);
    if (score.holds()) {
      if (has_rule && i > 0) {
        outcome.notices.push_back(
            {"group-order-from-content",
             fmt::format("the groups do not follow the group rule; {} fits, proved by content.",
                         derived[i].origin),
             {source.ModelFileName(rank)}});
      }
      ApplyOrder(candidates, derived[i].order, rank);
      outcome.stale = std::move(score.stale);
      Report(rank, candidates, derived[i].order, outcome);
      return outcome;
    }
    if (score.sizes_fit && (!best.sizes_fit || score.proved > best.proved)) best = std::move(score);
  }
  SearchResult search = SearchOrder(rank, candidates);
  if (!search.found) {
    outcome.error = Unproved(rank, source, best, search);
    return outcome;
  }
  if (has_rule) {
    outcome.notices.push_back(
        {"group-order-from-content",
         "no derived order of the groups fits; the one used was found by content.",
         {source.ModelFileName(rank)}});
  }
  if (!search.ambiguous.empty()) {
    outcome.notices.push_back({"group-order-unproved",
                               fmt::format("this optimizer keeps no masters, and {} have the same "
                                           "shape; the first in module order was "
                                           "taken.",
                                           JoinNames(search.ambiguous, 8)),
                               search.ambiguous});
  }
  ApplyOrder(candidates, search.order, rank);
  outcome.stale = std::move(search.stale);
  Report(rank, candidates, search.order, outcome);
  return outcome;
}

}  // namespace

Status NameGroups(Source& source) {
  if (source.named) return DecideMaps(source);
  std::vector<RankOutcome> outcomes(source.ranks.size());
  ForEachInParallel(outcomes.size(), /*threads=*/0,
                    [&](size_t i) { outcomes[i] = NameRank(source, source.ranks[i]); });
  for (RankOutcome& outcome : outcomes) {
    if (outcome.error) return std::move(*outcome.error);
    source.stale_names.insert(outcome.stale.begin(), outcome.stale.end());
    for (Notice& notice : outcome.notices) {
      source.Notify(std::move(notice.kind), std::move(notice.text), std::move(notice.names));
    }
  }
  return checkpoint::Done{};
}

}  // namespace reshape
