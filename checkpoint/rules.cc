// The JSON syntax of rule files: strict, every unknown or doubtful thing is refused with its path
// (docs/format/rules.md).
#include "checkpoint/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/limits.h"

namespace checkpoint {
namespace {

using nlohmann::json;

template <typename Enum>
using Named = std::pair<Enum, std::string_view>;

constexpr Named<Parallel> kParallelNames[] = {{Parallel::kReplicated, "replicated"},
                                              {Parallel::kColumn, "column"},
                                              {Parallel::kRow, "row"},
                                              {Parallel::kVocabulary, "vocabulary"}};
constexpr Named<Fused> kFusedNames[] = {{Fused::kNone, "none"},
                                        {Fused::kQueryKeyValue, "query-key-value"},
                                        {Fused::kGatedLinear, "gated-linear"}};
constexpr Named<GroupRule> kGroupRuleNames[] = {{GroupRule::kFromFiles, "from-files"},
                                                {GroupRule::kMegatron, "megatron"},
                                                {GroupRule::kMegatronHalves, "megatron-halves"}};
constexpr Named<QkvLayout> kQkvLayoutNames[] = {{QkvLayout::kPerHeadGroup, "per-head-group"},
                                                {QkvLayout::kPerShard, "per-shard"},
                                                {QkvLayout::kPerHeadInner, "per-head-inner"}};

template <typename Enum, size_t count>
std::string_view NameOf(const Named<Enum> (&names)[count], Enum wanted) {
  for (const auto& [value, name] : names) {
    if (value == wanted) return name;
  }
  CHECK(false, << "no name for " << static_cast<int>(wanted));
  return "";
}

// Places of the JSON text, for errors: "rules.json: $.parameters[2].parallel".
struct Place {
  const std::string& where;
  std::string path;

  Place Key(std::string_view key) const { return {where, fmt::format("{}.{}", path, key)}; }
  Place Item(size_t index) const { return {where, fmt::format("{}[{}]", path, index)}; }
  Error Wrong(std::string found, std::string expected) const {
    return Error{ErrorCode::kMalformedRules, std::move(found), std::move(expected),
                 fmt::format("{}: {}", where, path),
                 "docs/format/rules.md has the syntax of rule files."};
  }
};

Status CheckObject(const json& value, const Place& place,
                   std::initializer_list<std::string_view> keys) {
  if (!value.is_object()) return place.Wrong(value.type_name(), "an object");
  for (const auto& [key, entry] : value.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      return place.Key(key).Wrong("an unknown key",
                                  fmt::format("one of {}", fmt::join(keys, ", ")));
    }
  }
  return Done{};
}

Result<std::string> Text(const json& object, const Place& place, const char* key) {
  const auto entry = object.find(key);
  if (entry == object.end()) return place.Key(key).Wrong("nothing", "a string");
  if (!entry->is_string()) return place.Key(key).Wrong(entry->type_name(), "a string");
  return entry->get<std::string>();
}

Result<std::string> OptionalText(const json& object, const Place& place, const char* key) {
  if (!object.contains(key)) return std::string();
  return Text(object, place, key);
}

Result<bool> OptionalFlag(const json& object, const Place& place, const char* key) {
  const auto entry = object.find(key);
  if (entry == object.end()) return false;
  if (!entry->is_boolean()) return place.Key(key).Wrong(entry->type_name(), "true or false");
  return entry->get<bool>();
}

Result<int64_t> Number(const json& value, const Place& place) {
  constexpr int64_t kNumberMax = int64_t{1} << 48;
  // Numbers above int64 are unsigned to the parser; both are compared before they are used.
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(kNumberMax)) &&
      value.get<int64_t>() >= 0;
  if (!fits) {
    return place.Wrong(value.is_number() ? value.dump() : std::string(value.type_name()),
                       fmt::format("an integer from 0 to {}", kNumberMax));
  }
  return value.get<int64_t>();
}

Result<std::vector<int64_t>> OptionalNumbers(const json& object, const Place& place,
                                             const char* key) {
  std::vector<int64_t> numbers;
  const auto entry = object.find(key);
  if (entry == object.end()) return numbers;
  const Place list = place.Key(key);
  if (!entry->is_array()) return list.Wrong(entry->type_name(), "a list of integers");
  for (size_t i = 0; i < entry->size(); ++i) {
    CK_TRY(const int64_t number, Number((*entry)[i], list.Item(i)));
    numbers.push_back(number);
  }
  return numbers;
}

template <typename Enum, size_t count>
Result<Enum> Choice(const json& object, const Place& place, const char* key,
                    const Named<Enum> (&names)[count]) {
  CK_TRY(const std::string text, Text(object, place, key));
  std::string known;
  for (const auto& [value, name] : names) {
    if (name == text) return value;
    known += known.empty() ? std::string(name) : fmt::format(", {}", name);
  }
  return place.Key(key).Wrong(fmt::format("'{}'", text), fmt::format("one of {}", known));
}

Result<std::string> Pattern(const json& object, const Place& place) {
  CK_TRY(std::string pattern, Text(object, place, "canonical"));
  const Place here = place.Key("canonical");
  const Result<bool> compiled = MatchesWhole(pattern, "");
  if (!compiled.ok()) {
    Error error = compiled.error();
    error.where = fmt::format("{}: {}", here.where, here.path);
    return error;
  }
  if (pattern.empty()) return here.Wrong("an empty pattern", "a pattern of canonical names");
  return pattern;
}

// Fields of a template in their order, or an error.
Result<std::vector<std::string>> TemplateFields(const std::string& text, const Place& place,
                                                std::initializer_list<std::string_view> allowed) {
  if (static_cast<int64_t>(text.size()) > kPatternBytesMax) {
    Error error = place.Wrong(fmt::format("{} bytes", text.size()),
                              fmt::format("at most {}", kPatternBytesMax));
    error.code = ErrorCode::kLimitExceeded;
    return error;
  }
  std::vector<std::string> fields;
  size_t literal_begin = 0;
  for (size_t at = text.find_first_of("{}"); at != std::string::npos;
       at = text.find_first_of("{}", literal_begin)) {
    const size_t close = text.find('}', at);
    if (text[at] == '}' || close == std::string::npos) {
      return place.Wrong(fmt::format("a lone brace in '{}'", text), "{field}");
    }
    const std::string field = text.substr(at + 1, close - at - 1);
    if (std::find(allowed.begin(), allowed.end(), field) == allowed.end()) {
      return place.Wrong(fmt::format("field '{}'", field),
                         fmt::format("one of {}", fmt::join(allowed, ", ")));
    }
    if (std::find(fields.begin(), fields.end(), field) != fields.end()) {
      return place.Wrong(fmt::format("field '{}' twice", field), "each field once");
    }
    if (at == literal_begin && !fields.empty()) {
      return place.Wrong("two fields without text between them", "text between fields");
    }
    fields.push_back(field);
    literal_begin = close + 1;
  }
  return fields;
}

bool Contains(const std::vector<std::string>& fields, std::string_view field) {
  return std::find(fields.begin(), fields.end(), field) != fields.end();
}

// A name of one layout can be made from that of another only if it has the same open fields.
Status CheckSameFields(const std::vector<std::string>& canonical,
                       const std::vector<std::string>& other, const Place& place) {
  for (const std::string_view field : {"layer", "rest"}) {
    if (Contains(canonical, field) == Contains(other, field)) continue;
    return place.Wrong(fmt::format("field '{}' on one side only", field),
                       "the same {layer} and {rest} in all names of one rule");
  }
  return Done{};
}

Result<NameRule> ParseName(const json& value, const Place& place, bool has_numbering) {
  CK_DO(CheckObject(value, place, {"canonical", "pipeline", "plain"}));
  NameRule rule;
  CK_TRY(rule.canonical, Text(value, place, "canonical"));
  CK_TRY(rule.pipeline, OptionalText(value, place, "pipeline"));
  CK_TRY(rule.plain, OptionalText(value, place, "plain"));
  if (rule.canonical.empty()) return place.Key("canonical").Wrong("an empty name", "a template");
  if (rule.pipeline.empty() && rule.plain.empty()) {
    return place.Wrong("neither pipeline nor plain name", "at least one of them");
  }
  CK_TRY(const auto canonical,
         TemplateFields(rule.canonical, place.Key("canonical"), {"layer", "rest"}));
  if (!rule.pipeline.empty()) {
    const Place here = place.Key("pipeline");
    CK_TRY(const auto fields,
           TemplateFields(rule.pipeline, here, {"layer", "rest", "embedding", "final", "head"}));
    CK_DO(CheckSameFields(canonical, fields, here));
    const bool has_number = fields.size() > (Contains(fields, "rest") ? 1u : 0u);
    if (has_number && !has_numbering) {
      return here.Wrong("a layer number, but no numbering", "$.numbering");
    }
  }
  if (!rule.plain.empty()) {
    CK_TRY(const auto fields, TemplateFields(rule.plain, place.Key("plain"), {"layer", "rest"}));
    CK_DO(CheckSameFields(canonical, fields, place.Key("plain")));
  }
  return rule;
}

Result<PipelineNumbering> ParseNumbering(const json& value, const Place& place) {
  CK_DO(CheckObject(value, place, {"embedding", "first_layer", "final_after", "head_after"}));
  PipelineNumbering numbering;
  const std::pair<const char*, int64_t*> entries[] = {{"embedding", &numbering.embedding},
                                                      {"first_layer", &numbering.first_layer},
                                                      {"final_after", &numbering.final_after},
                                                      {"head_after", &numbering.head_after}};
  for (const auto& [key, number] : entries) {
    if (!value.contains(key)) return place.Key(key).Wrong("nothing", "an integer");
    CK_TRY(*number, Number(value[key], place.Key(key)));
  }
  return numbering;
}

Result<ParameterRule> ParseParameter(const json& value, const Place& place) {
  CK_DO(CheckObject(value, place,
                    {"canonical", "parallel", "fused", "only_with_swiglu", "sub_parameter_rows"}));
  ParameterRule rule;
  CK_TRY(rule.canonical, Pattern(value, place));
  CK_TRY(rule.parallel, Choice(value, place, "parallel", kParallelNames));
  if (value.contains("fused")) {
    CK_TRY(rule.fused, Choice(value, place, "fused", kFusedNames));
  }
  CK_TRY(rule.only_with_swiglu, OptionalFlag(value, place, "only_with_swiglu"));
  CK_TRY(rule.sub_parameter_rows, OptionalNumbers(value, place, "sub_parameter_rows"));
  const bool is_split = rule.parallel == Parallel::kColumn || rule.parallel == Parallel::kRow;
  if (rule.fused != Fused::kNone && rule.parallel != Parallel::kColumn) {
    return place.Key("fused").Wrong(
        fmt::format("'{}' on {}", FusedName(rule.fused), ParallelName(rule.parallel)),
        "fused tensors are column");
  }
  if (!rule.sub_parameter_rows.empty() && (!is_split || rule.fused != Fused::kNone)) {
    return place.Key("sub_parameter_rows")
        .Wrong(
            "sub-parameters of a tensor that is not split, "
            "or fused by name",
            "column or row, not fused");
  }
  if (std::count(rule.sub_parameter_rows.begin(), rule.sub_parameter_rows.end(), 0) > 0) {
    return place.Key("sub_parameter_rows").Wrong("0 rows", "at least 1");
  }
  return rule;
}

// Layer numbers and cuts: strictly growing.
Status CheckGrowing(const std::vector<int64_t>& numbers, const Place& place) {
  for (size_t i = 1; i < numbers.size(); ++i) {
    if (numbers[i] > numbers[i - 1]) continue;
    return place.Item(i).Wrong(fmt::format("{} after {}", numbers[i], numbers[i - 1]),
                               "numbers that grow");
  }
  return Done{};
}

Result<TiedRule> ParseTied(const json& value, const Place& place) {
  CK_DO(CheckObject(value, place, {"canonical", "stale_copy", "layers"}));
  TiedRule rule;
  CK_TRY(rule.canonical, Pattern(value, place));
  CK_TRY(rule.stale_copy, OptionalFlag(value, place, "stale_copy"));
  CK_TRY(rule.layers, OptionalNumbers(value, place, "layers"));
  CK_DO(CheckGrowing(rule.layers, place.Key("layers")));
  return rule;
}

// One list of rules: `parse` makes a rule of each item.
template <typename Rule, typename Parse>
Status ParseList(const json& document, const Place& root, const char* key, std::vector<Rule>* rules,
                 const Parse& parse) {
  const auto entry = document.find(key);
  if (entry == document.end()) return Done{};
  const Place place = root.Key(key);
  if (!entry->is_array()) return place.Wrong(entry->type_name(), "a list");
  for (size_t i = 0; i < entry->size(); ++i) {
    CK_TRY(Rule rule, parse((*entry)[i], place.Item(i)));
    rules->push_back(std::move(rule));
  }
  return Done{};
}

Result<Rules> ParseDocument(const json& document, const Place& root) {
  CK_DO(CheckObject(
      document, root,
      {"name", "names", "numbering", "parameters", "tied", "groups", "qkv_layout", "cuts"}));
  Rules rules;
  CK_TRY(rules.name, Text(document, root, "name"));
  if (document.contains("numbering")) {
    CK_TRY(rules.numbering, ParseNumbering(document["numbering"], root.Key("numbering")));
  }
  CK_DO(
      ParseList(document, root, "names", &rules.names, [&](const json& value, const Place& place) {
        return ParseName(value, place, rules.numbering.has_value());
      }));
  CK_DO(ParseList(document, root, "parameters", &rules.parameters, ParseParameter));
  CK_DO(ParseList(document, root, "tied", &rules.tied, ParseTied));
  if (document.contains("groups")) {
    CK_TRY(rules.group_rule, Choice(document, root, "groups", kGroupRuleNames));
  }
  if (document.contains("qkv_layout")) {
    CK_TRY(rules.qkv_layout, Choice(document, root, "qkv_layout", kQkvLayoutNames));
  }
  CK_TRY(rules.cuts, OptionalNumbers(document, root, "cuts"));
  CK_DO(CheckGrowing(rules.cuts, root.Key("cuts")));
  return rules;
}

// The JSON library keeps the last of two equal keys; here they are an error.
class DuplicateKeys {
 public:
  bool operator()(int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open_.emplace_back();
    if (event == json::parse_event_t::object_end) open_.pop_back();
    if (event == json::parse_event_t::key) {
      const auto key = parsed.get<std::string>();
      if (!open_.back().insert(key).second && found_->empty()) *found_ = key;
    }
    return true;
  }
  explicit DuplicateKeys(std::string* found) : found_(found) {}

 private:
  std::string* found_;
  std::vector<std::set<std::string>> open_;
};

}  // namespace

std::string_view ParallelName(Parallel parallel) { return NameOf(kParallelNames, parallel); }
std::string_view FusedName(Fused fused) { return NameOf(kFusedNames, fused); }
std::string_view GroupRuleName(GroupRule rule) { return NameOf(kGroupRuleNames, rule); }
std::string_view QkvLayoutName(QkvLayout layout) { return NameOf(kQkvLayoutNames, layout); }

std::optional<QkvLayout> QkvLayoutFromName(std::string_view name) {
  for (const auto& [layout, layout_name] : kQkvLayoutNames) {
    if (layout_name == name) return layout;
  }
  return std::nullopt;
}

Result<Rules> ParseRules(std::string_view text, const std::string& where) {
  const Place root{where, "$"};
  if (static_cast<int64_t>(text.size()) > kRuleFileBytesMax) {
    Error error = root.Wrong(fmt::format("{} bytes", text.size()),
                             fmt::format("at most {}", kRuleFileBytesMax));
    error.code = ErrorCode::kLimitExceeded;
    return error;
  }
  try {
    std::string duplicate;
    const json document = json::parse(text, DuplicateKeys(&duplicate));
    if (!duplicate.empty()) {
      return root.Wrong(fmt::format("key '{}' twice in one object", duplicate), "each key once");
    }
    return ParseDocument(document, root);
  } catch (const json::exception& error) {
    return root.Wrong(error.what(), "JSON");
  }
}

}  // namespace checkpoint
