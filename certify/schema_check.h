// The part of JSON Schema (draft 2020-12) that our schemas use, for tests: type, const, enum,
// required, properties, additionalProperties, items, pattern, minimum, $ref to #/$defs, oneOf. An
// unknown keyword is a problem, so that no demand goes unchecked.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace certify {

// Empty where `value` satisfies `schema`; else the first problem with its place.
std::string SchemaProblem(const nlohmann::ordered_json& schema,
                          const nlohmann::ordered_json& value);

}  // namespace certify
