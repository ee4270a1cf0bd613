// JSON that is always valid text: names in checkpoints need not be UTF-8. Internal to certify/.
// Tested by judgement_json_test.cc.
#pragma once

#include <nlohmann/json.hpp>

#include "certify/certify.h"
#include "certify/subject.h"

namespace certify {

// The same value with every invalid byte of a text replaced by U+FFFD.
nlohmann::ordered_json CleanText(const nlohmann::ordered_json& value);

// What a checkpoint is: {"format", "layout", "wrapper", "tag", "step", ..., "topology": {"tp",
// "pp", "dp"}, "zero_stage", "dtype"}.
nlohmann::ordered_json SummaryJson(const Subject& subject);
// What was declared, without what was not: {"tag", "qkv_layout", "rules", ...}.
nlohmann::ordered_json DeclaredJson(const Declared& declared);

}  // namespace certify
