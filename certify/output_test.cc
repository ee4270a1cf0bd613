// Judgements as JSON and JUnit, and text that is always valid.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "certify/certify.h"
#include "certify/json_text.h"
#include "certify/xml_text.h"

namespace certify {
namespace {

Judgement OneOfEach() {
  Judgement judgement;
  judgement.verdict = Verdict::kBroken;
  judgement.root = "S1";
  judgement.consequences = {"S2"};
  for (const Verdict verdict :
       {Verdict::kBroken, Verdict::kUndecided, Verdict::kNotApplicable, Verdict::kHeld}) {
    LawResult law;
    law.law = "S" + std::to_string(judgement.laws.size() + 1);
    law.title = "title <&>";
    law.verdict = verdict;
    law.compared = 7;
    law.reason = verdict == Verdict::kHeld ? "" : "because";
    judgement.laws.push_back(law);
  }
  Finding finding;
  finding.fault = true;
  finding.kind = "missing-file";
  finding.text = "a \"file\" \xff\x01";
  finding.file = "mp_rank_00_model_states.pt";
  judgement.laws[0].findings = {finding};
  judgement.laws[0].findings_total = 1;
  return judgement;
}

TEST(JudgementJsonTest, VerdictWordsDependOnTheCommand) {
  EXPECT_EQ(JudgementJson(OneOfEach(), false)["verdict"], "broken");
  EXPECT_EQ(JudgementJson(OneOfEach(), true)["verdict"], "refuted");
  Judgement held;
  held.verdict = Verdict::kHeld;
  EXPECT_EQ(JudgementJson(held, true)["verdict"], "certified");
}

TEST(JudgementJsonTest, LawsCarryVerdictCountAndFindings) {
  const auto json = JudgementJson(OneOfEach(), false);
  EXPECT_EQ(json["root"], "S1");
  EXPECT_EQ(json["consequences"][0], "S2");
  EXPECT_EQ(json["laws"][0]["law"], "S1");
  EXPECT_EQ(json["laws"][0]["compared"], 7);
  EXPECT_EQ(json["laws"][0]["findings"][0]["severity"], "fault");
  EXPECT_EQ(json["laws"][2]["verdict"], "not applicable");
}

TEST(JudgementJsonTest, InvalidBytesOfNamesDoNotStopTheWriter) {
  EXPECT_NO_THROW(JudgementJson(OneOfEach(), false).dump());
}

TEST(JUnitTest, BrokenFailsUndecidedErrsNotApplicableIsSkipped) {
  const std::string xml = JudgementJUnit(OneOfEach(), "suite");
  EXPECT_NE(xml.find("tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"1\""), std::string::npos)
      << xml;
  EXPECT_NE(xml.find("<failure message=\"a &quot;file&quot; \xef\xbf\xbd?\">"), std::string::npos)
      << xml;
  EXPECT_NE(xml.find("title &lt;&amp;&gt;"), std::string::npos);
}

TEST(XmlTextTest, EscapesWhatXmlCannotHold) {
  EXPECT_EQ(EscapeXml("<a b='c'>&\"\n"), "&lt;a b=&#39;c&#39;&gt;&amp;&quot;\n");
  EXPECT_EQ(EscapeXml(std::string_view("\x00\x1f", 2)), "??");
  EXPECT_EQ(EscapeXml("caf\xc3\xa9"), "caf\xc3\xa9");
}

}  // namespace
}  // namespace certify
