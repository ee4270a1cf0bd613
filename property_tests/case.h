// What the properties share: a folder for one case, fixture specs as targets of a reshape, and
// trees as comparable text.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "certify/certify.h"
#include "checkpoint/value.h"
#include "fixtures/fixture.h"
#include "reshape/reshape.h"

namespace property_tests {

// A fresh folder, removed at the end of the case.
class CaseFolder {
 public:
  CaseFolder();
  ~CaseFolder();
  CaseFolder(const CaseFolder&) = delete;
  CaseFolder& operator=(const CaseFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// The reshape whose target is what the fixture writer makes of `target`.
reshape::ReshapeOptions OptionsFor(const fixtures::FixtureSpec& target);
certify::Declared DeclaredFor(const fixtures::FixtureSpec& spec);

// FP16_Optimizer and FP16_UnfusedOptimizer take one Adam step when they are made.
bool WrapperTakesDummyStep(const fixtures::FixtureSpec& spec);
// The Adam that a spec with kDefault gets: a reshape keeps it, whatever the wrapper.
fixtures::BaseOptimizer BaseOptimizerOf(const fixtures::FixtureSpec& spec);
// Names and states whose digests differ or that one side lacks; "" where the digests are equal.
std::string DigestDifference(const std::filesystem::path& a, const std::filesystem::path& b,
                             const certify::Declared& declared);

// One line a node: path, kind, tensor type and shape, numbers and texts. Entries below
// `ignored_keys` are left out.
std::vector<std::string> TreeLines(const checkpoint::Value& root,
                                   const std::vector<std::string>& ignored_keys);
// Relative paths of all files below a folder, sorted.
std::vector<std::string> FilesBelow(const std::filesystem::path& folder);
bool SameBytes(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace property_tests
