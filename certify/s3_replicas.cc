// Law S3, replicas agree. Covers: bits of what several ranks or files hold. Does not cover: tensors
// that one rank alone holds; RNG streams. The one known exception, the stale tied copy, is a
// notice.
#include <ATen/Tensor.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "certify/compare_bits.h"
#include "certify/format.h"
#include "certify/single_laws.h"

namespace certify {
namespace {

// Tensors whose holders are compared with each other to say which ranks agree.
constexpr size_t kGroupedMax = 20;

std::string DisagreementText(const oracle::Disagreement& disagreement) {
  std::string text =
      Format("{} ({}) and {} ({}) differ in {} of {} elements", disagreement.first.rank.ToString(),
             disagreement.first.file, disagreement.second.rank.ToString(), disagreement.second.file,
             disagreement.differing, disagreement.compared);
  if (disagreement.max_ulp > 0) text += Format(", by at most {} ulp", disagreement.max_ulp);
  text += Format("; first at {}: {} and {}", disagreement.first_index,
                 NumberText(disagreement.first_value), NumberText(disagreement.second_value));
  return text;
}

// What one (tensor rank, stage) holds of a state: its parts joined in order of the data ranks.
struct Copy {
  std::string name;
  std::string bytes;
};

std::vector<Copy> JoinParts(const std::vector<oracle::HolderPart>& parts) {
  std::vector<const oracle::HolderPart*> sorted;
  for (const oracle::HolderPart& part : parts) sorted.push_back(&part);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    const oracle::Rank &x = a->place.rank, &y = b->place.rank;
    return std::tie(x.tensor, x.stage, x.data) < std::tie(y.tensor, y.stage, y.data);
  });
  std::vector<Copy> copies;
  std::pair<int32_t, int32_t> last{-1, -1};
  for (const oracle::HolderPart* part : sorted) {
    const std::pair<int32_t, int32_t> rank{part->place.rank.tensor, part->place.rank.stage};
    if (copies.empty() || rank != last)
      copies.push_back({Format("tp{}-pp{}", rank.first, rank.second), ""});
    last = rank;
    const at::Tensor flat = part->flat.contiguous();
    const ElementBytesView view = BytesOf(flat);
    copies.back().bytes.append(reinterpret_cast<const char*>(view.begin),
                               static_cast<size_t>(view.bytes));
  }
  return copies;
}

}  // namespace

void ReplicasAgree::Visit(size_t index, const std::string& state,
                          const oracle::Assembled& assembled) {
  const oracle::TensorInfo& info = subject_.tensors()[index];
  report_.Compared(assembled.replicas_compared);
  bool broken = false;
  for (const oracle::Disagreement& disagreement : assembled.disagreements) {
    if (disagreement.known_stale) {
      const std::lock_guard<std::mutex> lock(mutex_);
      stale_states_[index].push_back(state);
      continue;
    }
    broken = true;
    Finding finding;
    finding.fault = true;
    finding.kind = "replicas-differ";
    finding.tensor = info.name;
    finding.state = state;
    finding.first_index = disagreement.first_index;
    finding.count = disagreement.differing;
    finding.text = Format("{} of {}: {}", state, info.name, DisagreementText(disagreement));
    report_.Add(WithPlace(std::move(finding), disagreement.second), static_cast<int64_t>(index));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  compared_ += assembled.replicas_compared;
  if (broken) broken_.push_back({index, state});
}

void ReplicasAgree::CannotAssemble(size_t index, const std::string& state) {
  report_.Incomplete(
      Format("{} of {} cannot be put together", state, subject_.tensors()[index].name));
  const std::lock_guard<std::mutex> lock(mutex_);
  incomplete_ = true;
}

std::string ReplicasAgree::RanksThatAgree(const Broken& broken) const {
  const auto parts = subject_.oracle->PartOfEachHolder(broken.index, broken.state);
  if (!parts.ok()) return "";
  std::vector<std::pair<std::string, std::vector<std::string>>> classes;  // bytes, ranks
  for (Copy& copy : JoinParts(parts.value())) {
    auto same = std::find_if(classes.begin(), classes.end(),
                             [&](const auto& entry) { return entry.first == copy.bytes; });
    if (same == classes.end()) same = classes.insert(classes.end(), {std::move(copy.bytes), {}});
    same->second.push_back(copy.name);
  }
  std::vector<std::string> texts;
  for (const auto& [bytes, ranks] : classes) texts.push_back("{" + JoinText(ranks, " ") + "}");
  return JoinText(texts, " ");
}

void ReplicasAgree::Summarize() {
  if (broken_.empty()) return;
  std::sort(broken_.begin(), broken_.end(), [](const Broken& a, const Broken& b) {
    return std::tie(a.index, a.state) < std::tie(b.index, b.state);
  });
  int64_t first_layer = -1;
  for (const Broken& broken : broken_) {
    const int64_t layer = LayerOf(subject_.tensors()[broken.index].canonical);
    if (layer >= 0 && (first_layer < 0 || layer < first_layer)) first_layer = layer;
  }
  Finding summary;
  summary.kind = "replicas-summary";
  summary.count = static_cast<int64_t>(broken_.size());
  summary.text = Format("{} states of tensors have replicas that differ", broken_.size());
  if (first_layer >= 0) summary.text += Format(", from layer {} on", first_layer);
  report_.Add(std::move(summary), -1);
  for (size_t i = 0; i < std::min(broken_.size(), kGroupedMax); ++i) {
    const std::string ranks = RanksThatAgree(broken_[i]);
    if (ranks.empty()) continue;
    Finding finding;
    finding.kind = "ranks-that-agree";
    finding.tensor = subject_.tensors()[broken_[i].index].name;
    finding.state = broken_[i].state;
    finding.text = Format("{} of {}: ranks that agree: {}", finding.state, finding.tensor, ranks);
    report_.Add(std::move(finding), static_cast<int64_t>(broken_[i].index));
  }
}

LawResult ReplicasAgree::Finish() {
  subject_.ReportLeftOut(report_);
  for (auto& [index, states] : stale_states_) {
    std::sort(states.begin(), states.end());
    states.erase(std::unique(states.begin(), states.end()), states.end());
    Finding finding;
    finding.kind = "stale-tied-copy";
    finding.tensor = subject_.tensors()[index].name;
    finding.text = Format(
        "{}: the last stage holds a copy that was never trained ({}). The framework does this to "
        "every run; the first "
        "stage's is the real one",
        finding.tensor, JoinText(states, ", "));
    report_.Add(std::move(finding), static_cast<int64_t>(index));
  }
  for (const oracle::Finding& met : subject_.summary().findings)
    if (LawOfKind(met.kind) == "S3") report_.Add(FindingOf(met), -1);
  Summarize();
  if (compared_ == 0 && !incomplete_)
    report_.NotApplicable("nothing is held more than once in this layout");
  return report_.Finish();
}

}  // namespace certify
