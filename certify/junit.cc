// JUnit XML: one test case a law.

#include <string>

#include "certify/certify.h"
#include "certify/format.h"
#include "certify/report.h"
#include "certify/xml_text.h"

namespace certify {
namespace {

std::string FindingsText(const LawResult& law, bool faults) {
  std::string text;
  for (const Finding& finding : law.findings)
    if (finding.fault == faults) text += finding.text + "\n";
  return text;
}

std::string CaseXml(const LawResult& law, const std::string& suite) {
  std::string xml = Format("    <testcase classname=\"{}\" name=\"{} {}\">\n", EscapeXml(suite),
                           EscapeXml(law.law), EscapeXml(law.title));
  switch (law.verdict) {
    case Verdict::kBroken:
      xml += Format("      <failure message=\"{}\">{}</failure>\n",
                    EscapeXml(law.findings.empty() ? law.title : law.findings.front().text),
                    EscapeXml(FindingsText(law, true)));
      break;
    case Verdict::kUndecided:
      xml += Format("      <error message=\"{}\"/>\n", EscapeXml("undecided: " + law.reason));
      break;
    case Verdict::kNotApplicable:
      xml +=
          Format("      <skipped message=\"{}\"/>\n", EscapeXml("not applicable: " + law.reason));
      break;
    case Verdict::kHeld:
      break;
  }
  xml += Format(
      "      <system-out>{}</system-out>\n    </testcase>\n",
      EscapeXml(Format("{} {} compared\n{}", law.compared, law.unit, FindingsText(law, false))));
  return xml;
}

}  // namespace

std::string JudgementJUnit(const Judgement& judgement, const std::string& suite) {
  int64_t failures = 0, errors = 0, skipped = 0;
  std::string cases;
  for (const LawResult& law : judgement.laws) {
    failures += law.verdict == Verdict::kBroken ? 1 : 0;
    errors += law.verdict == Verdict::kUndecided ? 1 : 0;
    skipped += law.verdict == Verdict::kNotApplicable ? 1 : 0;
    cases += CaseXml(law, suite);
  }
  const std::string counts = Format("tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\"",
                                    judgement.laws.size(), failures, errors, skipped);
  return Format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {}>\n  <testsuite name=\"{}\" "
      "{}>\n{}  </testsuite>\n</testsuites>\n",
      counts, EscapeXml(suite), counts, cases);
}

}  // namespace certify
