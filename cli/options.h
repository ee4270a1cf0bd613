// Flags that several commands share, and how they become the options of the rooms below. One
// spelling everywhere (DESIGN section 6). Not for meaning: a flag is only parsed and its range
// checked here. Tested by options_test.cc and program_test.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "certify/certify.h"
#include "checkpoint/rules.h"
#include "checkpoint/status.h"
#include "reshape/reshape.h"

namespace cli {

// What the files do not say, as the user gave it.
struct DeclarationFlags {
  std::string tag;
  std::string rules_file;
  std::string qkv_layout;
  std::string only;
  bool universal = false;
  int32_t threads = 0;
};

// --tag --rules --qkv-layout --threads, and --only where `with_only`.
void AddDeclarationFlags(CLI::App& app, DeclarationFlags& flags, bool with_only);

// The declarations for certify/. Errors: kUsage (unknown order), kNotFound, kMalformedRules.
checkpoint::Result<certify::Declared> ToDeclared(const DeclarationFlags& flags);

// Target topology: --tp --pp --dp --zero --dtype --layout --format --wrapper --cuts --moments
// --elastic --param-groups.
struct TargetFlags {
  std::optional<int32_t> tensor_parallel, pipeline_parallel, data_parallel, zero_stage;
  std::string dtype, layout, format = "native", wrapper, cuts, moments = "as-is", param_groups_file;
  bool elastic = false;
};
void AddTopologyFlags(CLI::App& app, TargetFlags& flags);  // --tp --pp --dp --zero --dtype
void AddTargetFlags(CLI::App& app, TargetFlags& flags);    // all of them

checkpoint::Result<reshape::TargetSpec> ToTargetSpec(const TargetFlags& flags);
checkpoint::Result<reshape::ReadOptions> ToReadOptions(const DeclarationFlags& declarations,
                                                       const TargetFlags& target);
// "fp16", "bf16", "fp32".
checkpoint::Result<checkpoint::DType> ParseDType(const std::string& text);
// "0,4,9" -> {0, 4, 9}. Errors: kUsage.
checkpoint::Result<std::vector<int64_t>> ParseCuts(const std::string& text);
// A JSON list of hyper-parameter dictionaries as a pickle tree; "betas" becomes a tuple. Errors:
// kUsage, kNotFound, kIo.
checkpoint::Result<checkpoint::Value> ReadParamGroups(const std::string& file);

}  // namespace cli
