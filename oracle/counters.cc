// Counters of all ranks, and what model files carry besides tensors.
#include <algorithm>
#include <array>
#include <set>

#include "checkpoint/file.h"
#include "checkpoint/tree.h"
#include "oracle/draft.h"

namespace oracle {

using checkpoint::Value;

namespace {

struct CounterPath {
  const char* name;
  std::array<std::string_view, 2> path;  // second may be empty
};

constexpr CounterPath kModelCounters[] = {
    {"iteration", {"iteration", ""}},
    {"args.iteration", {"args", "iteration"}},
    {"global_steps", {"global_steps", ""}},
    {"skipped_steps", {"skipped_steps", ""}},
    {"global_samples", {"global_samples", ""}},
    {"tokens", {"tokens", ""}},
    {"consumed_train_samples", {"args", "consumed_train_samples"}},
    {"consumed_valid_samples", {"args", "consumed_valid_samples"}},
    {"lr_scheduler.num_steps", {"lr_scheduler", "num_steps"}},
    {"lr_scheduler.last_batch_iteration", {"lr_scheduler", "last_batch_iteration"}},
    {"cur_scale", {"optimizer", "cur_scale"}},
    {"cur_iter", {"optimizer", "cur_iter"}},
    {"last_overflow_iter", {"optimizer", "last_overflow_iter"}},
};

constexpr CounterPath kOptimizerCounters[] = {
    {"cur_scale", {"loss_scaler", "cur_scale"}},
    {"cur_iter", {"loss_scaler", "cur_iter"}},
    {"last_overflow_iter", {"loss_scaler", "last_overflow_iter"}},
};

Value At(const Value& root, const CounterPath& counter) {
  const Value first = checkpoint::Get(root, counter.path[0]);
  return counter.path[1].empty() ? first : checkpoint::Get(first, counter.path[1]);
}

void AddCounter(Draft& draft, const char* name, const Value& value, const Place& place) {
  if (const auto number = StepOf(value)) draft.summary.counters.push_back({name, *number, place});
}

// One counter for each group, or for each value where every parameter has its own.
void AddOptimizerSteps(Draft& draft, const Value& state, const Place& place) {
  std::vector<Value> entries;
  if (const std::vector<Value>* groups = checkpoint::SequenceItems(state)) {
    entries = *groups;
  } else if (const checkpoint::Items* items = checkpoint::MappingItems(state)) {
    for (const auto& [key, value] : *items) entries.push_back(value);
  }
  std::set<double> values;
  for (const Value& entry : entries) {
    const auto step = StepOf(checkpoint::Get(entry, "step"));
    if (step) values.insert(*step);
  }
  for (const double value : values)
    draft.summary.counters.push_back({"optimizer step", value, place});
}

// Apex keeps the step in the groups, and elastic files save that one beside the list. Only where no
// state has a step of its own: FusedAdam leaves the groups' at 0.
void AddGroupSteps(Draft& draft, const Value& dictionary, const Place& place) {
  const Value base = checkpoint::Get(dictionary, "base_optimizer_state");
  const bool elastic = checkpoint::SequenceItems(base) != nullptr;
  const size_t before = draft.summary.counters.size();
  AddOptimizerSteps(draft, elastic ? base : checkpoint::Get(base, "state"), place);
  if (draft.summary.counters.size() > before) return;
  AddCounter(draft, "optimizer step", checkpoint::Get(dictionary, "base_optimizer_state_step"),
             place);
  const Value state = checkpoint::Get(base, "state");
  const checkpoint::Items* items = checkpoint::MappingItems(state);
  if (draft.summary.counters.size() > before || items == nullptr || items->empty()) return;
  const Value parameters = checkpoint::Get(base, "param_groups");
  const std::vector<Value>* groups = checkpoint::SequenceItems(parameters);
  if (groups == nullptr) return;
  for (const Value& group : *groups)
    AddCounter(draft, "optimizer step", checkpoint::Get(group, "step"), place);
}

void AddCarried(Draft& draft, const Value& root, const Place& place) {
  static const std::set<std::string> kTensorKeys{
      "module",       "buffer_names",        "optimizer",
      "param_shapes", "frozen_param_shapes", "frozen_param_fragments",
      "shared_params"};
  const checkpoint::Items* items = checkpoint::MappingItems(root);
  if (items == nullptr) return;
  for (const auto& [key, value] : *items) {
    const auto name = checkpoint::AsString(key);
    if (name && kTensorKeys.count(*name) == 0)
      draft.summary.carried[*name].emplace_back(place, value);
  }
}

// "global_step12" counts 12.
void AddTagNumber(Draft& draft) {
  const std::string& tag = draft.source.folder.tag;
  size_t begin = tag.size();
  while (begin > 0 && tag[begin - 1] >= '0' && tag[begin - 1] <= '9') --begin;
  if (begin == tag.size() || tag.size() - begin > 15) return;
  draft.summary.counters.push_back(
      {"tag", static_cast<double>(std::stoll(tag.substr(begin))), {tag, "", {}}});
}

void AddLatestIteration(Draft& draft) {
  const std::string name = "latest_checkpointed_iteration.txt";
  auto latest = checkpoint::ReadSmallFile(draft.source.folder.run_folder / "latest", 4096);
  if (!latest.ok() || latest.value().rfind(draft.source.folder.tag, 0) != 0)
    return;  // it counts another step
  auto text = checkpoint::ReadSmallFile(draft.source.folder.run_folder / name, 64);
  if (!text.ok()) return;
  std::string digits = text.value();
  while (!digits.empty() && (digits.back() == '\n' || digits.back() == ' ')) digits.pop_back();
  const bool number =
      !digits.empty() && digits.size() <= 15 &&
      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (number)
    draft.summary.counters.push_back(
        {"latest_checkpointed_iteration", static_cast<double>(std::stoll(digits)), {name, "", {}}});
}

}  // namespace

void ReadCounters(Draft& draft) {
  const Source& source = draft.source;
  for (const auto& [number, file] : source.model) {
    const Value& root = source.Root(file);
    const Rank rank{static_cast<int32_t>(number % source.grid.tensor),
                    static_cast<int32_t>(number / source.grid.tensor), 0};
    const Place place = source.PlaceOf(file, rank);
    for (const CounterPath& counter : kModelCounters)
      AddCounter(draft, counter.name, At(root, counter), place);
    const Value optimizer = checkpoint::Get(root, "optimizer");
    AddOptimizerSteps(draft, checkpoint::GetPath(optimizer, {"optimizer_state_dict", "state"}),
                      place);
    AddOptimizerSteps(draft, checkpoint::Get(optimizer, "state"), place);
    if (checkpoint::Has(optimizer, "base_optimizer_state")) AddGroupSteps(draft, optimizer, place);
    AddCarried(draft, root, place);
  }
  for (const auto& [key, file] : source.optimizer) {
    const Value dictionary = checkpoint::Get(source.Root(file), "optimizer_state_dict");
    const Rank rank{static_cast<int32_t>(key.first % source.grid.tensor),
                    static_cast<int32_t>(key.first / source.grid.tensor),
                    static_cast<int32_t>(key.second)};
    const Place place = source.PlaceOf(file, rank);
    AddGroupSteps(draft, dictionary, place);
    for (const CounterPath& counter : kOptimizerCounters)
      AddCounter(draft, counter.name, At(dictionary, counter), place);
  }
  // A universal folder keeps the rest of one rank's dictionary; steps are in files of their own.
  const auto rest = source.universal.find("optimizer_state");
  if (rest != source.universal.end()) {
    for (const CounterPath& counter : kOptimizerCounters)
      AddCounter(draft, counter.name, At(source.Root(rest->second), counter),
                 source.PlaceOf(rest->second, {}));
  }
  AddTagNumber(draft);
  AddLatestIteration(draft);
}

}  // namespace oracle
