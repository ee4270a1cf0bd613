#include "certify/report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "certify/format.h"

namespace certify {
namespace {

auto SortKey(const Finding& finding) {
  return std::tie(finding.tensor, finding.state, finding.kind, finding.file, finding.rank,
                  finding.first_index, finding.text);
}

}  // namespace

std::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kHeld:
      return "held";
    case Verdict::kBroken:
      return "broken";
    case Verdict::kUndecided:
      return "undecided";
    case Verdict::kNotApplicable:
      return "not applicable";
  }
  return "undecided";
}

void Report::Compared(int64_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  compared_ += count;
}

void Report::Add(Finding finding, int64_t order) {
  const std::lock_guard<std::mutex> lock(mutex_);
  findings_.emplace_back(order, std::move(finding));
}

void Report::Incomplete(std::string reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  incomplete_.push_back(std::move(reason));
}

void Report::NotApplicable(std::string reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  not_applicable_ = std::move(reason);
}

LawResult Report::Finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  LawResult result;
  result.law = text_.law;
  result.title = text_.title;
  result.unit = text_.unit;
  result.covers = text_.covers;
  result.does_not_cover = text_.does_not_cover;
  result.compared = compared_;
  result.findings_total = static_cast<int64_t>(findings_.size());
  // Faults first: the first finding of a broken law is its first place.
  std::sort(findings_.begin(), findings_.end(), [](const auto& a, const auto& b) {
    if (a.second.fault != b.second.fault) return a.second.fault;
    if (a.first != b.first) return a.first < b.first;
    return SortKey(a.second) < SortKey(b.second);
  });
  bool fault = false;
  std::map<std::pair<std::string, bool>, int64_t> kept;
  for (const auto& [order, finding] : findings_) {
    fault = fault || finding.fault;
    const int64_t count = ++kept[{finding.kind, finding.fault}];
    if (kept_per_kind_max_ > 0 && count > kept_per_kind_max_) continue;
    result.findings.push_back(finding);
  }
  if (!incomplete_.empty()) {
    std::sort(incomplete_.begin(), incomplete_.end());
    incomplete_.erase(std::unique(incomplete_.begin(), incomplete_.end()), incomplete_.end());
    result.reason = incomplete_.front();
    if (incomplete_.size() > 1) result.reason += Format(" (and {} more)", incomplete_.size() - 1);
  }
  if (fault) {
    result.verdict = Verdict::kBroken;
  } else if (!incomplete_.empty()) {
    result.verdict = Verdict::kUndecided;
  } else if (!not_applicable_.empty()) {
    result.verdict = Verdict::kNotApplicable;
    result.reason = not_applicable_;
  } else if (compared_ == 0) {
    result.verdict = Verdict::kUndecided;
    result.reason = "nothing was compared";
  } else {
    result.verdict = Verdict::kHeld;
  }
  return result;
}

Finding WithPlace(Finding finding, const oracle::Place& place) {
  finding.file = place.file;
  finding.rank = place.rank.ToString();
  return finding;
}

Finding FindingOf(const oracle::Finding& met) {
  Finding finding;
  finding.fault = met.fault;
  finding.kind = met.kind;
  finding.text = met.text;
  finding.tensor = JoinText(met.names, ", ");
  finding.count = static_cast<int64_t>(met.names.size());
  if (!met.place.file.empty()) finding = WithPlace(std::move(finding), met.place);
  return finding;
}

std::string_view LawOfKind(std::string_view kind) {
  struct Belongs {
    std::string_view kind, law;
  };
  constexpr Belongs kBelongs[] = {
      {"two-files-of-one-rank", "S1"},   {"topology-contradiction", "S1"},
      {"surplus-ranks", "S1"},           {"unproved-stale-tied-copy", "S3"},
      {"universal-copies", "S3"},        {"universal-copy-differs", "S3"},
      {"hyper-parameters-differ", "S7"},
  };
  for (const Belongs& entry : kBelongs)
    if (entry.kind == kind) return entry.law;
  return "S2";
}

std::string NumberText(double value) {
  if (std::isnan(value)) return "nan";
  const auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) == value) return Format("{}", narrow);
  return Format("{}", value);
}

std::string JoinText(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += separator;
    text += parts[i];
  }
  return text;
}

}  // namespace certify
