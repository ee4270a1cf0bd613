// Law R1, same logical tensors. Covers: canonical names, shapes less vocabulary padding, roles and
// aliases, both ways. Does not cover: values.

#include "certify/format.h"
#include "certify/pair_laws.h"

namespace certify {
namespace {

std::string RoleName(oracle::Role role) {
  switch (role) {
    case oracle::Role::kTrainable:
      return "trainable";
    case oracle::Role::kFrozen:
      return "frozen";
    case oracle::Role::kBuffer:
      return "a buffer";
  }
  return "";
}

void Fault(Report& report, std::string kind, const std::string& name, std::string text) {
  Finding finding;
  finding.fault = true;
  finding.kind = std::move(kind);
  finding.tensor = name;
  finding.text = std::move(text);
  finding.count = 1;
  report.Add(std::move(finding));
}

// Shape with the vocabulary rows in place of the padded ones.
std::vector<int64_t> ShapeWithoutPadding(const oracle::TensorInfo& info) {
  std::vector<int64_t> shape = info.shape;
  if (info.vocabulary_rows >= 0 && !shape.empty()) shape[0] = info.vocabulary_rows;
  return shape;
}

void CompareOne(const oracle::TensorInfo& source, const oracle::TensorInfo& target,
                Report& report) {
  report.Compared(1);
  // One side may not know where the vocabulary ends (a plain layout without the information): then
  // all rows count.
  const bool both_know = (source.vocabulary_rows >= 0) == (target.vocabulary_rows >= 0);
  const auto source_shape = both_know ? ShapeWithoutPadding(source) : source.shape;
  const auto target_shape = both_know ? ShapeWithoutPadding(target) : target.shape;
  if (source_shape != target_shape)
    Fault(report, "shape-differs", target.name,
          Format("{}: shape ({}) in the source, ({}) in the target", target.canonical,
                 ShapeText(source_shape), ShapeText(target_shape)));
  if (source.role != target.role)
    Fault(report, "role-differs", target.name,
          Format("{} is {} in the source, {} in the target", target.canonical,
                 RoleName(source.role), RoleName(target.role)));
}

// Canonical name of what an alias stands for.
std::map<std::string, std::string> Aliases(const Subject& subject) {
  std::map<std::string, std::string> canonical_of, aliases;
  for (const oracle::TensorInfo& info : subject.tensors()) canonical_of[info.name] = info.canonical;
  for (const oracle::TensorInfo& info : subject.tensors())
    if (!info.alias_of.empty()) aliases[info.canonical] = canonical_of[info.alias_of];
  return aliases;
}

void CompareAliases(const Subject& source, const Subject& target, Report& report) {
  const auto source_aliases = Aliases(source), target_aliases = Aliases(target);
  const auto source_names = ByCanonicalName(source), target_names = ByCanonicalName(target);
  for (const auto& [alias, name] : source_aliases) {
    report.Compared(1);
    const auto found = target_aliases.find(alias);
    // A layout may leave the second name out where it keeps the tensor once (a tied head of a
    // pipeline).
    if (found == target_aliases.end() && target_names.count(alias) > 0)
      Fault(report, "no-longer-tied", alias,
            Format("{} is {} in the source, a tensor of its own in the target", alias, name));
    if (found != target_aliases.end() && found->second != name)
      Fault(report, "tied-to-another", alias,
            Format("{} is {} in the source, {} in the target", alias, name, found->second));
  }
  for (const auto& [alias, name] : target_aliases)
    if (source_names.count(alias) > 0)
      Fault(report, "wrongly-tied", alias,
            Format("{} is a tensor of its own in the source, {} in the target", alias, name));
}

}  // namespace

std::map<std::string, size_t> ByCanonicalName(const Subject& subject) {
  std::map<std::string, size_t> names;
  for (size_t i = 0; i < subject.tensors().size(); ++i)
    if (subject.tensors()[i].alias_of.empty()) names.emplace(subject.tensors()[i].canonical, i);
  return names;
}

LawResult CompareTensorLists(const Subject& source, const Subject& target) {
  Report report("R1");
  const auto source_names = ByCanonicalName(source), target_names = ByCanonicalName(target);
  const auto source_aliases = Aliases(source), target_aliases = Aliases(target);
  for (const auto& [name, index] : source_names) {
    const auto found = target_names.find(name);
    if (found != target_names.end()) {
      CompareOne(source.tensors()[index], target.tensors()[found->second], report);
    } else if (target_aliases.count(name) == 0) {
      report.Compared(1);
      Fault(report, "missing", source.tensors()[index].name,
            Format("{} is not in the target", name));
    }
  }
  for (const auto& [name, index] : target_names)
    if (source_names.count(name) == 0 && source_aliases.count(name) == 0)
      Fault(report, "surplus", target.tensors()[index].name,
            Format("{} is not in the source", name));
  CompareAliases(source, target, report);
  return report.Finish();
}

}  // namespace certify
