// Law R6, the target obeys S1-S8. Covers: the target on its own. Does not cover: the source on its
// own.

#include "certify/format.h"
#include "certify/pair_laws.h"

namespace certify {

LawResult JudgeTargetAlone(const std::vector<LawResult>& target_laws) {
  Report report("R6");
  for (const LawResult& law : target_laws) {
    if (law.verdict == Verdict::kNotApplicable) continue;
    if (law.verdict == Verdict::kUndecided) {
      report.Incomplete(Format("{} is undecided: {}", law.law, law.reason));
      continue;
    }
    report.Compared(1);
    if (law.verdict != Verdict::kBroken) continue;
    Finding finding;
    finding.fault = true;
    finding.kind = law.law;
    finding.count = law.findings_total;
    finding.text = Format("{} ({}) is broken{}", law.law, law.title,
                          law.findings.empty() ? "" : ": " + law.findings.front().text);
    if (!law.findings.empty()) {
      finding.file = law.findings.front().file;
      finding.tensor = law.findings.front().tensor;
    }
    report.Add(std::move(finding));
  }
  return report.Finish();
}

}  // namespace certify
