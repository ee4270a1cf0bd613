#include "reshape/group_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "checkpoint/tree.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::Result;
using checkpoint::Value;

// Hyper-parameters that say which group it is: without the ids and the count.
Value Identity(const Value& hyper_parameters) {
  if (checkpoint::MappingItems(hyper_parameters) == nullptr) return hyper_parameters;
  return checkpoint::WithoutEntry(checkpoint::WithoutEntry(hyper_parameters, "params"), "step");
}

Value Stored(const Value& hyper_parameters) {
  if (checkpoint::MappingItems(hyper_parameters) == nullptr) return nullptr;
  return checkpoint::WithoutEntry(hyper_parameters, "params");
}

bool SameGroup(const LocalGroup& a, const LocalGroup& b) {
  const auto name_a = checkpoint::AsString(checkpoint::Get(a.hyper_parameters, "name"));
  const auto name_b = checkpoint::AsString(checkpoint::Get(b.hyper_parameters, "name"));
  if (name_a && name_b) return name_a == name_b;
  if (checkpoint::IsNone(a.hyper_parameters) || checkpoint::IsNone(b.hyper_parameters))
    return false;
  return checkpoint::SameStructure(Identity(a.hyper_parameters), Identity(b.hyper_parameters));
}

}  // namespace

Result<GroupTable> MakeGroupTable(const Source& source) {
  GroupTable table;
  const auto largest = std::max_element(
      source.ranks.begin(), source.ranks.end(),
      [](const ModelRank& a, const ModelRank& b) { return a.groups.size() < b.groups.size(); });
  const std::vector<LocalGroup>& reference = largest->groups;
  for (const LocalGroup& group : reference) {
    table.groups.push_back({Stored(group.hyper_parameters), group.step, {}});
  }
  for (const ModelRank& rank : source.ranks) {
    for (const LocalGroup& group : rank.groups) {
      const Value& stored = group.hyper_parameters;
      if (checkpoint::IsNone(stored) || checkpoint::MappingItems(stored) != nullptr) continue;
      return MakeError(ErrorCode::kInconsistent,
                       "hyper-parameters " + checkpoint::Render(stored, 40),
                       "a dictionary for each group", source.ModelFileName(rank), "");
    }
  }
  for (const ModelRank& rank : source.ranks) {
    auto& global = table.global.emplace_back();
    size_t next = 0;
    for (const LocalGroup& group : rank.groups) {
      if (rank.groups.size() < reference.size()) {
        while (next < reference.size() && !SameGroup(group, reference[next])) ++next;
      }
      if (next >= reference.size()) {
        return MakeError(
            ErrorCode::kInconsistent,
            fmt::format("{} groups on {} that cannot be told", rank.groups.size(), rank.Text()),
            fmt::format("some of the {} groups of {}, by name or hyper-parameters",
                        reference.size(), largest->Text()),
            source.ModelFileName(rank), "Model files of two runs are mixed.");
      }
      global.push_back(static_cast<int32_t>(next++));
      Group& whole = table.groups[static_cast<size_t>(global.back())];
      if (!whole.step) whole.step = group.step;
      if (whole.step && group.step && whole.step->value != group.step->value) {
        return MakeError(
            ErrorCode::kInconsistent,
            fmt::format("step {} of group {} on {}", group.step->value, global.back(), rank.Text()),
            fmt::format("step {} as on the ranks before it", whole.step->value),
            source.ModelFileName(rank), "The files are not of one step; restore them.");
      }
    }
  }
  return table;
}

std::vector<const Member*> GroupOrderBeforeRoundRobin(const LocalGroup& group,
                                                      const Source& source) {
  std::vector<const Member*> order;
  for (const Member& member : group.members) order.push_back(&member);
  if (!source.inventory.round_robin || source.inventory.wrapper != Wrapper::kZero) return order;
  const size_t ranks = static_cast<size_t>(source.inventory.topology.data_parallel_size);
  std::vector<const Member*> dealt(order.size());
  size_t next = 0;
  for (size_t bucket = 0; bucket < ranks; ++bucket) {
    for (size_t i = bucket; i < order.size(); i += ranks) dealt[i] = order[next++];
  }
  return dealt;
}

namespace {

checkpoint::Error BadParamGroup(size_t group, const std::string& key, const Value& value,
                                std::string expected) {
  const std::string found = checkpoint::IsNone(value) ? "nothing" : checkpoint::Render(value, 60);
  return MakeError(ErrorCode::kUsage, fmt::format("{} for \"{}\" of group {}", found, key, group),
                   std::move(expected), "--param-groups",
                   "Give the values that the run was configured with.");
}

std::optional<double> FiniteNumber(const Value& value) {
  if (checkpoint::AsBool(value)) return std::nullopt;
  const auto number = checkpoint::AsNumber(value);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

// What Adam and its relatives cannot do without; further keys are carried as they are.
checkpoint::Status CheckGivenGroup(size_t group, const Value& given) {
  for (const char* key : {"lr", "eps", "weight_decay"}) {
    const Value value = checkpoint::Get(given, key);
    const auto number = FiniteNumber(value);
    if (!number || *number < 0) return BadParamGroup(group, key, value, "a number from 0 on");
  }
  const Value betas = checkpoint::Get(given, "betas");
  const auto* items = checkpoint::SequenceItems(betas);
  const bool two = items != nullptr && items->size() == 2 &&
                   std::all_of(items->begin(), items->end(), [](const Value& item) {
                     const auto number = FiniteNumber(item);
                     return number && *number >= 0 && *number < 1;
                   });
  if (!two) return BadParamGroup(group, "betas", betas, "two numbers from 0 to less than 1");
  for (const char* key : {"params", "step"}) {
    if (checkpoint::Has(given, key)) {
      return BadParamGroup(group, key, checkpoint::Get(given, key),
                           "no such key: it is taken from the checkpoint");
    }
  }
  return checkpoint::Done{};
}

}  // namespace

checkpoint::Status ApplyGivenHyperParameters(const ReadOptions& options, Source& source) {
  const auto* given = checkpoint::SequenceItems(options.param_groups);
  if (given == nullptr) return checkpoint::Done{};
  auto& groups = source.inventory.groups;
  const bool needed = std::any_of(groups.begin(), groups.end(), [](const Group& group) {
    return checkpoint::IsNone(group.hyper_parameters);
  });
  if (!needed) {
    return MakeError(ErrorCode::kUsage, "hyper-parameters for a checkpoint that has its own",
                     "an elastic checkpoint, whose files hold none", "--param-groups",
                     "Leave --param-groups out; it changes nothing here.");
  }
  if (given->size() != groups.size()) {
    return MakeError(ErrorCode::kUsage, fmt::format("hyper-parameters of {} groups", given->size()),
                     fmt::format("of {} groups, as the checkpoint has", groups.size()),
                     "--param-groups", "Give one entry for each group.");
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    CK_DO(CheckGivenGroup(i, (*given)[i]));
    groups[i].hyper_parameters = (*given)[i];
  }
  return checkpoint::Done{};
}

}  // namespace reshape
