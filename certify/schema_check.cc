#include "certify/schema_check.h"

#include <regex>
#include <set>
#include <string>

namespace certify {
namespace {

using Json = nlohmann::ordered_json;

class Checker {
 public:
  explicit Checker(const Json& root) : root_(root) {}

  std::string Problem(const Json& schema, const Json& value, const std::string& where) const {
    for (const auto& [keyword, demand] : schema.items()) {
      const std::string problem = One(keyword, demand, schema, value, where);
      if (!problem.empty()) return problem;
    }
    return "";
  }

 private:
  static bool HasType(const std::string& type, const Json& value) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    if (type == "boolean") return value.is_boolean();
    return type == "null" && value.is_null();
  }

  std::string One(const std::string& keyword, const Json& demand, const Json& schema,
                  const Json& value, const std::string& where) const {
    static const std::set<std::string> kWords = {"$schema",     "$id",   "title",
                                                 "description", "$defs", "$comment"};
    if (kWords.count(keyword) > 0) return "";
    if (keyword == "type")
      return HasType(demand, value) ? "" : where + " is no " + demand.get<std::string>();
    if (keyword == "const") return value == demand ? "" : where + " is not " + demand.dump();
    if (keyword == "enum")
      return demand.end() != std::find(demand.begin(), demand.end(), value)
                 ? ""
                 : where + " is not in the enum";
    if (keyword == "minimum")
      return value.get<double>() >= demand.get<double>() ? "" : where + " is below the minimum";
    if (keyword == "pattern")
      return std::regex_search(value.get<std::string>(), std::regex(demand.get<std::string>()))
                 ? ""
                 : where + " does not match";
    if (keyword == "$ref")
      return Problem(root_.at(Json::json_pointer(demand.get<std::string>().substr(1))), value,
                     where);
    if (keyword == "required" || keyword == "properties" || keyword == "additionalProperties")
      return Members(keyword, demand, schema, value, where);
    if (keyword == "items") {
      for (size_t i = 0; i < value.size(); ++i) {
        const std::string problem = Problem(demand, value[i], where + "/" + std::to_string(i));
        if (!problem.empty()) return problem;
      }
      return "";
    }
    if (keyword == "oneOf") {
      int fits = 0;
      for (const Json& option : demand) fits += Problem(option, value, where).empty() ? 1 : 0;
      return fits == 1 ? "" : where + " fits " + std::to_string(fits) + " of oneOf";
    }
    return "unknown keyword " + keyword;
  }

  std::string Members(const std::string& keyword, const Json& demand, const Json& schema,
                      const Json& value, const std::string& where) const {
    if (!value.is_object()) return "";
    if (keyword == "required") {
      for (const Json& key : demand)
        if (!value.contains(key.get<std::string>()))
          return where + " lacks " + key.get<std::string>();
      return "";
    }
    if (keyword == "properties") {
      for (const auto& [key, entry] : demand.items()) {
        const std::string problem =
            value.contains(key) ? Problem(entry, value[key], where + "/" + key) : "";
        if (!problem.empty()) return problem;
      }
      return "";
    }
    for (const auto& [key, entry] : value.items()) {
      if (schema.contains("properties") && schema["properties"].contains(key)) continue;
      if (demand.is_boolean() && !demand.get<bool>()) return where + " has the unknown " + key;
      const std::string problem =
          demand.is_object() ? Problem(demand, entry, where + "/" + key) : "";
      if (!problem.empty()) return problem;
    }
    return "";
  }

  const Json& root_;
};

}  // namespace

std::string SchemaProblem(const Json& schema, const Json& value) {
  return Checker(schema).Problem(schema, value, "");
}

}  // namespace certify
