// Law R5, training state carried. Covers: steps of every parameter, hyper-parameters, group
// membership, scheduler, loss scale and engine counters. Does not cover: data loader position, RNG
// streams, which R7 lists.

#include <algorithm>
#include <set>
#include <utility>

#include "certify/counters.h"
#include "certify/format.h"
#include "certify/pair_laws.h"
#include "certify/tree_bits.h"
#include "checkpoint/tree.h"

namespace certify {
namespace {

Finding Entry(bool fault, std::string kind, std::string text) {
  Finding finding;
  finding.fault = fault;
  finding.kind = std::move(kind);
  finding.text = std::move(text);
  finding.count = 1;
  return finding;
}

using NamePairs = std::vector<std::pair<size_t, size_t>>;  // (source index, target index)

NamePairs PairsOf(const Subject& source, const Subject& target) {
  NamePairs pairs;
  const auto target_names = ByCanonicalName(target);
  for (const auto& [name, index] : ByCanonicalName(source)) {
    const auto found = target_names.find(name);
    if (found != target_names.end()) pairs.emplace_back(index, found->second);
  }
  return pairs;
}

void CompareSteps(const Subject& source, const Subject& target, const NamePairs& pairs,
                  Report& report) {
  for (const auto& [from, to] : pairs) {
    const oracle::TensorInfo& a = source.tensors()[from];
    const oracle::TensorInfo& b = target.tensors()[to];
    if (!a.step && !b.step) continue;
    report.Compared(1);
    if (a.step == b.step) continue;
    const auto text = [](const std::optional<double>& step) {
      return step ? NumberText(*step) : std::string("absent");
    };
    Finding finding = Entry(true, "step-differs",
                            Format("optimizer step of {} is {} in the source, {} in the target",
                                   b.canonical, text(a.step), text(b.step)));
    finding.tensor = b.name;
    report.Add(std::move(finding), static_cast<int64_t>(to));
  }
}

const oracle::GroupInfo* GroupOf(const Subject& subject, size_t index) {
  const int32_t group = subject.tensors()[index].group;
  const auto& groups = subject.summary().groups;
  if (group < 0 || static_cast<size_t>(group) >= groups.size()) return nullptr;
  return &groups[static_cast<size_t>(group)];
}

// A declaration is compared with the group of the source that it speaks of.
void CompareDeclared(const Subject& source, const Subject& target, const NamePairs& pairs,
                     Report& report) {
  const auto* declared = checkpoint::SequenceItems(target.declared_groups);
  if (declared == nullptr) return;
  if (declared->size() != source.summary().groups.size()) {
    report.Add(Entry(true, "declared-groups-differ",
                     Format("--param-groups declares {} groups, the source has {}",
                            declared->size(), source.summary().groups.size())),
               -1);
    return;
  }
  for (const auto& [from, to] : pairs) {
    const oracle::GroupInfo* a = GroupOf(source, from);
    const oracle::GroupInfo* b = GroupOf(target, to);
    if (a == nullptr || b == nullptr) continue;
    for (const auto& [key, found] : b->hyper_parameters) {
      const auto& group = (*declared)[static_cast<size_t>(source.tensors()[from].group)];
      if (a->hyper_parameters.count(key) > 0 || !checkpoint::Has(group, key)) continue;
      report.Compared(1);
      const std::string said = checkpoint::Render(checkpoint::Get(group, key), 200);
      if (said == found) continue;
      Finding finding = Entry(true, "hyper-parameter-differs",
                              Format("{} of {} is declared as {}, but {} in the target", key,
                                     target.tensors()[to].canonical, said, found));
      finding.tensor = target.tensors()[to].name;
      report.Add(std::move(finding), static_cast<int64_t>(to));
    }
  }
}

void CompareHyperParameters(const Subject& source, const Subject& target, const NamePairs& pairs,
                            Report& report) {
  std::set<std::string> dropped, made_up;
  bool source_has_none = false;  // an elastic source
  for (const auto& [from, to] : pairs) {
    const oracle::GroupInfo* a = GroupOf(source, from);
    const oracle::GroupInfo* b = GroupOf(target, to);
    if (a == nullptr || b == nullptr) continue;
    for (const auto& [key, value] : a->hyper_parameters) {
      const auto other = b->hyper_parameters.find(key);
      if (other == b->hyper_parameters.end()) {
        dropped.insert(key);
        continue;
      }
      report.Compared(1);
      if (other->second == value) continue;
      Finding finding = Entry(true, "hyper-parameter-differs",
                              Format("{} of {} is {} in the source, {} in the target", key,
                                     target.tensors()[to].canonical, value, other->second));
      finding.tensor = target.tensors()[to].name;
      report.Add(std::move(finding), static_cast<int64_t>(to));
    }
    for (const auto& [key, value] : b->hyper_parameters)
      if (a->hyper_parameters.count(key) == 0) made_up.insert(key);
    source_has_none =
        source_has_none || (a->hyper_parameters.empty() && !b->hyper_parameters.empty());
  }
  const auto list = [&](const std::set<std::string>& keys, const char* kind, const char* text) {
    if (keys.empty()) return;
    report.Add(
        Entry(false, kind, Format("{}: {}", text, JoinText({keys.begin(), keys.end()}, ", "))), -1);
  };
  list(dropped, "hyper-parameters-dropped",
       "hyper-parameters that the target's optimizer or layout does not keep");
  list(made_up, "hyper-parameters-made-up",
       target.groups_declared
           ? "hyper-parameters that the source does not hold, declared (--param-groups)"
           : "hyper-parameters that the source does not hold and nobody declared");
  if (source_has_none && !target.groups_declared)
    report.Incomplete(
        "the source holds no hyper-parameters (elastic) and nobody declared them; declare the "
        "target's with --param-groups");
}

// Two parameters in one group of the source are in one group of the target, and the reverse.
void CompareMembership(const Subject& source, const Subject& target, const NamePairs& pairs,
                       Report& report) {
  std::map<int32_t, std::set<int32_t>> targets_of, sources_of;
  for (const auto& [from, to] : pairs) {
    const int32_t a = source.tensors()[from].group, b = target.tensors()[to].group;
    if ((a < 0) != (b < 0)) {
      Finding finding = Entry(true, "group-lost",
                              Format("{} is in an optimizer group of the {} only",
                                     target.tensors()[to].canonical, a < 0 ? "target" : "source"));
      finding.tensor = target.tensors()[to].name;
      report.Add(std::move(finding), static_cast<int64_t>(to));
    }
    if (a < 0 || b < 0) continue;
    report.Compared(1);
    targets_of[a].insert(b);
    sources_of[b].insert(a);
  }
  const auto splits = [](const auto& map) {
    return std::any_of(map.begin(), map.end(),
                       [](const auto& entry) { return entry.second.size() > 1; });
  };
  // Equal hyper-parameters were checked one by one, so another cut of the groups changes no update.
  if (splits(targets_of) || splits(sources_of))
    report.Add(Entry(false, "groups-cut-anew",
                     Format("the {} groups of the source are cut anew into {} groups, by the "
                            "target's group rule",
                            targets_of.size(), sources_of.size())),
               -1);
}

// Why a loss scaler may be another one, or absent.
bool ScalerMayChange(const oracle::Summary& source, const oracle::Summary& target) {
  return source.dtype != target.dtype || source.wrapper != target.wrapper;
}

bool IsScaler(const std::string& name) {
  for (const char* word : {"scale", "overflow", "cur_iter", "hysteresis", "delayed_shift"})
    if (name.find(word) != std::string::npos) return true;
  return false;
}

void CompareCounters(const Subject& source, const Subject& target, Report& report) {
  const auto target_tallies = TallyCounters(target.summary().counters);
  for (const CounterTally& tally : TallyCounters(source.summary().counters)) {
    // Compared a parameter at a time; names of folders, which S6 compares with the steps.
    if (tally.name == "optimizer step" || tally.name == "tag" ||
        tally.name == "latest_checkpointed_iteration")
      continue;
    const CounterTally* other = FindTally(target_tallies, tally.name);
    const bool scaler = IsScaler(tally.name) && ScalerMayChange(source.summary(), target.summary());
    if (other == nullptr) {
      report.Add(Entry(
          !scaler, "counter-dropped",
          Format("{} ({} in the source) is not in the target{}", tally.name,
                 NumberText(tally.value), scaler ? ": its optimizer keeps no such counter" : "")));
      continue;
    }
    report.Compared(1);
    if (tally.value == other->value) continue;
    const bool retyped = scaler && source.summary().dtype != target.summary().dtype;
    report.Add(Entry(
        !retyped, "counter-changed",
        Format("{} is {} in the source, {} in the target{}", tally.name, NumberText(tally.value),
               NumberText(other->value), retyped ? ": re-derived for the other type" : "")));
  }
}

void CompareScheduler(const Subject& source, const Subject& target, Report& report) {
  const auto entry = [](const Subject& subject) -> checkpoint::Value {
    const auto found = subject.summary().carried.find("lr_scheduler");
    if (found == subject.summary().carried.end() || found->second.empty()) return nullptr;
    return found->second.front().second;
  };
  const checkpoint::Value a = entry(source), b = entry(target);
  if (checkpoint::IsNone(a) && checkpoint::IsNone(b)) return;
  report.Compared(1);
  if (SameTree(a, b)) return;
  report.Add(Entry(true, "scheduler-differs",
                   Format("lr_scheduler is {} in the source, {} in the target",
                          checkpoint::Render(a, 300), checkpoint::Render(b, 300))));
}

}  // namespace

LawResult CompareTrainingState(const Subject& source, const Subject& target) {
  Report report("R5");
  const NamePairs pairs = PairsOf(source, target);
  CompareSteps(source, target, pairs, report);
  CompareHyperParameters(source, target, pairs, report);
  CompareDeclared(source, target, pairs, report);
  CompareMembership(source, target, pairs, report);
  CompareCounters(source, target, report);
  CompareScheduler(source, target, report);
  return report.Finish();
}

}  // namespace certify
