// Law S7, groups are right. Covers: every trainable parameter is in exactly one optimizer group;
// weight decay as its rule says, where there is a rule. Does not cover: whether the
// hyper-parameters are the intended ones; weight decay where no rule is known.

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>

#include "certify/format.h"
#include "certify/single_laws.h"

namespace certify {
namespace {

std::optional<double> WeightDecay(const oracle::GroupInfo& group) {
  const auto entry = group.hyper_parameters.find("weight_decay");
  if (entry == group.hyper_parameters.end()) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(entry->second.c_str(), &end);
  if (end == entry->second.c_str()) return std::nullopt;
  return value;
}

Finding AboutParameter(const std::string& name, std::string kind, std::string text) {
  Finding finding;
  finding.fault = true;
  finding.kind = std::move(kind);
  finding.tensor = name;
  finding.text = std::move(text);
  finding.count = 1;
  return finding;
}

// Biases and one-dimensional parameters are not decayed.
bool IsDecayed(const oracle::TensorInfo& info) {
  constexpr std::string_view kBias = ".bias";
  const std::string& name = info.canonical;
  const bool bias = name.size() >= kBias.size() &&
                    name.compare(name.size() - kBias.size(), kBias.size(), kBias) == 0;
  return info.shape.size() > 1 && !bias;
}

void CheckWeightDecay(const Subject& subject,
                      const std::map<std::string, std::vector<size_t>>& groups_of, Report& report) {
  const std::vector<oracle::GroupInfo>& groups = subject.summary().groups;
  std::optional<double> largest;
  for (const oracle::GroupInfo& group : groups)
    if (const auto decay = WeightDecay(group)) largest = std::max(largest.value_or(0), *decay);
  if (!largest) {
    Finding finding;
    finding.kind = "no-hyper-parameters";
    finding.text =
        "the groups carry no weight_decay (elastic checkpoints do not): the rule was not checked";
    report.Add(std::move(finding), -1);
    return;
  }
  for (size_t i = 0; i < subject.tensors().size(); ++i) {
    const oracle::TensorInfo& info = subject.tensors()[i];
    const auto found = groups_of.find(info.name);
    if (found == groups_of.end() || found->second.size() != 1) continue;
    const auto decay = WeightDecay(groups[found->second.front()]);
    if (!decay) continue;
    const double expected = IsDecayed(info) ? *largest : 0;
    if (*decay != expected)
      report.Add(AboutParameter(
                     info.name, "weight-decay",
                     Format("{} is in group {} with weight decay {}, its rule says {}", info.name,
                            found->second.front(), NumberText(*decay), NumberText(expected))),
                 static_cast<int64_t>(i));
  }
}

}  // namespace

LawResult CheckGroups(const Subject& subject) {
  Report report("S7");
  const std::vector<oracle::GroupInfo>& groups = subject.summary().groups;
  if (subject.LacksOptimizerFiles()) {
    report.Incomplete("every optimizer file is missing, and the groups with them");
    return report.Finish();
  }
  if (groups.empty()) {
    report.NotApplicable("there is no optimizer, hence no group");
    return report.Finish();
  }
  std::map<std::string, std::vector<size_t>> groups_of;
  for (size_t group = 0; group < groups.size(); ++group)
    for (const std::string& member : groups[group].members) groups_of[member].push_back(group);
  for (size_t i = 0; i < subject.tensors().size(); ++i) {
    const oracle::TensorInfo& info = subject.tensors()[i];
    const auto found = groups_of.find(info.name);
    const int64_t count = found == groups_of.end() ? 0 : static_cast<int64_t>(found->second.size());
    const auto order = static_cast<int64_t>(i);
    if (info.role == oracle::Role::kTrainable && info.alias_of.empty()) {
      report.Compared(1);
      // Parameters without elements are in no flat group.
      if (count == 0 && NumelOfShape(info.shape) > 0)
        report.Add(AboutParameter(info.name, "in-no-group",
                                  info.name + " is trainable but in no optimizer group"),
                   order);
    } else if (count > 0 && info.role != oracle::Role::kTrainable) {
      report.Add(AboutParameter(info.name, "not-trainable",
                                info.name + " is not trainable but in an optimizer group"),
                 order);
    }
    if (count > 1)
      report.Add(AboutParameter(info.name, "in-several-groups",
                                Format("{} is in {} optimizer groups", info.name, count)),
                 order);
    if (found != groups_of.end() && info.group >= 0 && count == 1 &&
        static_cast<size_t>(info.group) != found->second.front())
      report.Add(AboutParameter(info.name, "group-differs",
                                Format("{} is a member of group {}, its state lies in group {}",
                                       info.name, found->second.front(), info.group)),
                 order);
  }
  for (const auto& [member, in] : groups_of) {
    const auto known = [&member = member](const oracle::TensorInfo& info) {
      return info.name == member;
    };
    if (std::none_of(subject.tensors().begin(), subject.tensors().end(), known))
      report.Add(AboutParameter(member, "unknown-member",
                                Format("group {} names {}, which is no tensor of the model",
                                       in.front(), member)),
                 -1);
  }
  for (const oracle::Finding& met : subject.summary().findings)
    if (LawOfKind(met.kind) == "S7") report.Add(FindingOf(met), -1);
  if (subject.summary().group_rule_known) CheckWeightDecay(subject, groups_of, report);
  return report.Finish();
}

}  // namespace certify
