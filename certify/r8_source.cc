// Law R8, the source is one checkpoint. Covers: the source on its own, by laws S1, S2, S3, S6 and
// S8. Does not cover: S4, S5 and S7 of the source, which a reshape carries and R6 sees.

#include <algorithm>

#include "certify/format.h"
#include "certify/pair_laws.h"
#include "certify/parallel.h"

namespace certify {
namespace {

// Memory that a state needs while it is assembled, in bytes an element, and for all at once.
constexpr int64_t kStateBytes = 8;
constexpr int64_t kBytesAtOnce = 128LL << 20;

void AddLaw(const LawResult& law, Report& report) {
  if (law.verdict == Verdict::kNotApplicable) return;
  if (law.verdict == Verdict::kUndecided) {
    report.Incomplete(Format("{} of the source is undecided: {}", law.law, law.reason));
    return;
  }
  report.Compared(1);
  if (law.verdict != Verdict::kBroken) return;
  for (const Finding& found : law.findings) {
    if (!found.fault) continue;
    Finding finding = found;
    finding.kind = law.law;
    finding.text = Format(
        "the source breaks {} ({}): {}. A reshape has to choose between what its source "
        "contradicts",
        law.law, law.title, found.text);
    report.Add(std::move(finding));
  }
}

}  // namespace

void SourceIsOne::Visit(size_t index, const std::string& state,
                        const oracle::Assembled& assembled) {
  if (!source_.IsJudged(index)) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!seen_.insert({index, state}).second) return;
  }
  covered_.Visit(index, state, assembled);
  replicas_.Visit(index, state, assembled);
}

checkpoint::Status SourceIsOne::VisitTheRest(int32_t threads) {
  std::vector<std::pair<size_t, std::string>> rest;
  for (size_t i = 0; i < source_.tensors().size(); ++i) {
    if (!source_.IsJudged(i)) continue;
    for (const std::string& state : StateOrder(source_.tensors()[i]))
      if (seen_.count({i, state}) == 0) rest.emplace_back(i, state);
  }
  ParallelOptions parallel;
  parallel.threads = threads;
  parallel.bytes_at_once = kBytesAtOnce;
  parallel.bytes_of = [&](int64_t item) {
    const size_t index = rest[static_cast<size_t>(item)].first;
    return kStateBytes * NumelOfShape(source_.tensors()[index].shape);
  };
  return ParallelFor(static_cast<int64_t>(rest.size()), parallel,
                     [&](int64_t item) -> checkpoint::Status {
                       const auto& [index, state] = rest[static_cast<size_t>(item)];
                       const auto assembled = source_.oracle->Assemble(index, state);
                       if (assembled.ok()) {
                         Visit(index, state, assembled.value());
                       } else {
                         covered_.CannotAssemble(index, state, assembled.error());
                         replicas_.CannotAssemble(index, state);
                       }
                       return checkpoint::Done{};
                     });
}

checkpoint::Result<LawResult> SourceIsOne::Finish(const std::vector<ScannedFile>& files,
                                                  int32_t threads) {
  CK_DO(VisitTheRest(threads));
  Report report("R8");
  for (const LawResult& law : {CheckComplete(source_), covered_.Finish(), replicas_.Finish(),
                               CheckCounters(source_), CheckContainers(files)})
    AddLaw(law, report);
  return report.Finish();
}

}  // namespace certify
