// L2: reshaping what the writer made at one topology gives what the writer makes at the other: the
// same files, the same trees, the same state.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "checkpoint/container.h"
#include "fixtures/generators.h"
#include "property_tests/case.h"

namespace property_tests {
namespace {

// Carried from the source or derived from the run and not from the topology: their values are law
// R7's, not the layout's.
const std::vector<std::string> kNotLayout = {
    "'args'",
    "'rng_state'",
    "'random_rng_state'",
    "'np_rng_state'",
    "'torch_rng_state'",
    "'step'",
    "'cuda_rng_state'",
    "'rng_tracker_states'",
    "'ds_config'",
    "'loss_scaler'",
    "'cur_scale'",
    "'cur_iter'",
    "'last_overflow_iter'",
    "'scale_factor'",
    "'scale_window'",
    "'dynamic_loss_scale'",
};

RC_GTEST_PROP(CommutingSquare, ReshapedEqualsWrittenInStateFilesAndTrees, ()) {
  auto drawn = *fixtures::GenReshapeCase().as("case");
  const CaseFolder folder;
  // One flat order and one padding on both ways: options of the source's optimizer are kept by a
  // reshape.
  drawn.target.round_robin = drawn.source.round_robin = false;
  drawn.target.parameter_alignment = drawn.source.parameter_alignment = false;
  drawn.target.base_optimizer = BaseOptimizerOf(drawn.source);
  RC_PRE(fixtures::ValidateSpec(drawn.target).ok());
  RC_ASSERT(fixtures::WriteFixture(folder / "source", drawn.source).ok());
  RC_ASSERT(fixtures::WriteFixture(folder / "written", drawn.target).ok());
  const auto report =
      reshape::Reshape(folder / "source", folder / "reshaped", OptionsFor(drawn.target));
  if (!report.ok()) RC_LOG() << report.error().ToString();
  RC_ASSERT(report.ok());

  const certify::Declared declared = DeclaredFor(drawn.target);
  const std::string difference =
      DigestDifference(folder / "written", folder / "reshaped", declared);
  RC_LOG() << difference;
  RC_ASSERT(difference.empty());

  const auto files = FilesBelow(folder / "written");
  const bool same_files = files == FilesBelow(folder / "reshaped");
  RC_ASSERT(same_files);
  size_t compared = 0;
  for (const std::string& name : files) {
    if (!name.ends_with(".pt")) continue;
    const auto expected = checkpoint::OpenTorchFile(folder / ("written/" + name));
    const auto found = checkpoint::OpenTorchFile(folder / ("reshaped/" + name));
    RC_ASSERT(expected.ok());
    RC_ASSERT(found.ok());
    const auto expected_lines = TreeLines(expected.value().root, kNotLayout);
    const auto found_lines = TreeLines(found.value().root, kNotLayout);
    const auto [first, second] = std::mismatch(expected_lines.begin(), expected_lines.end(),
                                               found_lines.begin(), found_lines.end());
    const bool same = first == expected_lines.end() && second == found_lines.end();
    if (!same) {
      RC_LOG() << name << "\n  written:  " << (first == expected_lines.end() ? "-" : *first)
               << "\n  reshaped: " << (second == found_lines.end() ? "-" : *second) << "\n";
    }
    RC_ASSERT(same);
    compared += expected_lines.size();
  }
  RC_ASSERT(compared > 50u);
}

}  // namespace
}  // namespace property_tests
