// L1, L3 and the certificate over random cases: what the fixture writer means is what the oracle
// reads; a reshape is certified by all of R1-R8; and the way back holds the same state.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "fixtures/generators.h"
#include "property_tests/case.h"

namespace property_tests {
namespace {

// The oracle holds exactly the elements that the writer meant, with the values it meant (its digest
// is asserted per state elsewhere).
RC_GTEST_PROP(OracleReadsWhatTheWriterMeant, EveryLawHoldsOnASoundFixture, ()) {
  const auto spec = *fixtures::GenMegatronSpec().as("checkpoint");
  const CaseFolder folder;
  RC_ASSERT(fixtures::WriteFixture(folder / "source", spec).ok());
  const auto judgement = certify::Check(folder / "source", DeclaredFor(spec));
  RC_ASSERT(judgement.ok());
  if (judgement.value().verdict != certify::Verdict::kHeld) {
    RC_LOG() << certify::JudgementJson(judgement.value(), false).dump(1);
  }
  RC_ASSERT(judgement.value().verdict == certify::Verdict::kHeld);
}

RC_GTEST_PROP(OracleReadsWhatTheWriterMeant, EveryLawHoldsOnASoundPlainFixture, ()) {
  const auto spec = *fixtures::GenPlainSpec().as("checkpoint");
  const CaseFolder folder;
  RC_ASSERT(fixtures::WriteFixture(folder / "source", spec).ok());
  const auto judgement = certify::Check(folder / "source", {});
  RC_ASSERT(judgement.ok());
  if (judgement.value().verdict != certify::Verdict::kHeld) {
    RC_LOG() << certify::JudgementJson(judgement.value(), false).dump(1);
  }
  RC_ASSERT(judgement.value().verdict == certify::Verdict::kHeld);
}

RC_GTEST_PROP(RoundTrip, IsCertifiedThereAndHoldsTheSameStateBack, ()) {
  const auto drawn = *fixtures::GenReshapeCase().as("case");
  RC_TAG(drawn.target.tensor_parallel > drawn.source.tensor_parallel
             ? "tensor parallel grows"
             : "tensor parallel shrinks or stays");
  RC_TAG(drawn.target.zero_stage != drawn.source.zero_stage ? "stage changes" : "stage stays");
  const CaseFolder folder;
  const certify::Declared declared = DeclaredFor(drawn.source);
  RC_ASSERT(fixtures::WriteFixture(folder / "source", drawn.source).ok());
  const auto there =
      reshape::Reshape(folder / "source", folder / "there", OptionsFor(drawn.target));
  if (!there.ok()) RC_LOG() << there.error().ToString();
  RC_ASSERT(there.ok());
  const auto judgement = certify::Certify(folder / "source", folder / "there", declared, declared);
  RC_ASSERT(judgement.ok());
  if (judgement.value().verdict != certify::Verdict::kHeld) {
    RC_LOG() << certify::JudgementJson(judgement.value(), true).dump(1);
  }
  RC_ASSERT(judgement.value().verdict == certify::Verdict::kHeld);

  const auto back = reshape::Reshape(folder / "there", folder / "back", OptionsFor(drawn.source));
  if (!back.ok()) RC_LOG() << back.error().ToString();
  RC_ASSERT(back.ok());
  const std::string difference = DigestDifference(folder / "source", folder / "back", declared);
  RC_LOG() << difference;
  RC_ASSERT(difference.empty());
}

}  // namespace
}  // namespace property_tests
