// Text only: patterns (RE2) and templates of names. What a number in a name means is decided
// elsewhere.
#include <fmt/format.h>
#include <re2/re2.h>

#include <charconv>
#include <map>
#include <memory>
#include <mutex>

#include "checkpoint/limits.h"
#include "checkpoint/rules.h"

namespace checkpoint {
namespace {

// Compiled patterns are kept: thousands of names meet a few dozen patterns. Bounded, as patterns
// come from files.
class PatternCache {
 public:
  std::shared_ptr<const RE2> Compile(std::string_view pattern, bool bytes) {
    const std::lock_guard lock(mutex_);
    const std::pair key(std::string(pattern), bytes);
    if (const auto found = compiled_.find(key); found != compiled_.end()) return found->second;
    RE2::Options options;
    options.set_log_errors(false);
    options.set_dot_nl(bytes);
    if (bytes) options.set_encoding(RE2::Options::EncodingLatin1);
    auto regex =
        std::make_shared<const RE2>(re2::StringPiece(pattern.data(), pattern.size()), options);
    if (compiled_.size() >= kCompiledMax) compiled_.clear();
    compiled_.emplace(key, regex);
    return regex;
  }

 private:
  static constexpr size_t kCompiledMax = 1024;
  std::mutex mutex_;
  std::map<std::pair<std::string, bool>, std::shared_ptr<const RE2>> compiled_;
};

PatternCache& Patterns() {
  static PatternCache cache;
  return cache;
}

Result<bool> Matches(std::string_view pattern, std::string_view text, RE2::Anchor anchor) {
  if (static_cast<int64_t>(pattern.size()) > kPatternBytesMax) {
    return Error{ErrorCode::kLimitExceeded, fmt::format("a pattern of {} bytes", pattern.size()),
                 fmt::format("at most {} bytes", kPatternBytesMax), "",
                 "Write several shorter patterns."};
  }
  const auto regex = Patterns().Compile(pattern, false);
  if (!regex->ok()) {
    return Error{ErrorCode::kMalformedRules,
                 fmt::format("pattern '{}': {}", pattern, regex->error()),
                 "a regular expression in RE2 syntax (no look-around, no back-references)", "",
                 "Rewrite the pattern."};
  }
  return regex->Match(re2::StringPiece(text.data(), text.size()), 0, text.size(), anchor, nullptr,
                      0);
}

std::optional<int64_t> ToNumber(std::string_view digits) {
  int64_t number = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (code != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

// Splits "a.{layer}.b" into literals and fields: ["a.", ".b"] and ["layer"]; there is one literal
// more than fields.
struct TemplateParts {
  std::vector<std::string_view> literals, fields;
};
TemplateParts SplitTemplate(std::string_view text_template) {
  TemplateParts parts;
  size_t begin = 0;
  while (true) {
    const size_t open = text_template.find('{', begin);
    const size_t close = text_template.find('}', open);
    if (open == std::string_view::npos || close == std::string_view::npos) break;
    parts.literals.push_back(text_template.substr(begin, open - begin));
    parts.fields.push_back(text_template.substr(open + 1, close - open - 1));
    begin = close + 1;
  }
  parts.literals.push_back(text_template.substr(begin));
  return parts;
}

std::optional<int64_t>* NumberField(TemplateMatch& match, std::string_view field) {
  if (field == "layer") return &match.layer;
  if (field == "embedding") return &match.embedding;
  if (field == "final") return &match.final_norm;
  if (field == "head") return &match.head;
  return nullptr;
}

}  // namespace

Result<bool> MatchesWhole(std::string_view pattern, std::string_view text) {
  return Matches(pattern, text, RE2::ANCHOR_BOTH);
}

Result<bool> MatchesPrefix(std::string_view pattern, std::string_view text) {
  return Matches(pattern, text, RE2::ANCHOR_START);
}

std::optional<TemplateMatch> MatchTemplate(std::string_view text_template, std::string_view text) {
  if (text_template.empty()) return std::nullopt;
  const TemplateParts parts = SplitTemplate(text_template);
  std::string pattern = RE2::QuoteMeta(std::string(parts.literals[0]));
  for (size_t i = 0; i < parts.fields.size(); ++i) {
    // Numbers have no leading zeros, so that what was matched is filled in as the same text.
    pattern += parts.fields[i] == "rest" ? "(.+)" : "(0|[1-9][0-9]{0,17})";
    pattern += RE2::QuoteMeta(std::string(parts.literals[i + 1]));
  }
  const auto regex = Patterns().Compile(pattern, true);
  if (!regex->ok()) return std::nullopt;  // larger than RE2 allows; such a name exists nowhere
  std::vector<re2::StringPiece> groups(parts.fields.size() + 1);
  if (!regex->Match(re2::StringPiece(text.data(), text.size()), 0, text.size(), RE2::ANCHOR_BOTH,
                    groups.data(), static_cast<int>(groups.size()))) {
    return std::nullopt;
  }
  TemplateMatch match;
  for (size_t i = 0; i < parts.fields.size(); ++i) {
    const std::string_view found(groups[i + 1].data(), groups[i + 1].size());
    if (auto* number = NumberField(match, parts.fields[i])) {
      *number = ToNumber(found);
    } else {
      match.rest = found;
    }
  }
  return match;
}

std::string FillTemplate(std::string_view text_template, const TemplateMatch& fields) {
  const TemplateParts parts = SplitTemplate(text_template);
  TemplateMatch copy = fields;
  std::string text(parts.literals[0]);
  for (size_t i = 0; i < parts.fields.size(); ++i) {
    if (const auto* number = NumberField(copy, parts.fields[i])) {
      CHECK(number->has_value(), << "template " << text_template << " lacks " << parts.fields[i]);
      text += std::to_string(**number);
    } else {
      CHECK(!fields.rest.empty(), << "template " << text_template << " lacks " << parts.fields[i]);
      text += fields.rest;
    }
    text += parts.literals[i + 1];
  }
  return text;
}

std::optional<PipelineName> SplitPipelineName(std::string_view name) {
  if (const auto match = MatchTemplate("{layer}.{rest}", name)) {
    return PipelineName{.layer = match->layer, .tied_key = "", .rest = match->rest};
  }
  constexpr std::string_view kTied = "tied_modules.";
  if (!name.starts_with(kTied)) return std::nullopt;
  name.remove_prefix(kTied.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot + 1 == name.size()) return std::nullopt;
  return PipelineName{.layer = std::nullopt,
                      .tied_key = std::string(name.substr(0, dot)),
                      .rest = std::string(name.substr(dot + 1))};
}

const ParameterRule* FirstParameterRule(const Rules& rules, std::string_view canonical,
                                        bool swiglu) {
  for (const ParameterRule& rule : rules.parameters) {
    if (rule.only_with_swiglu && !swiglu) continue;
    const Result<bool> matches = MatchesWhole(rule.canonical, canonical);
    CHECK(matches.ok(), << matches.error().ToString());
    if (matches.value()) return &rule;
  }
  return nullptr;
}

const TiedRule* FirstTiedRule(const Rules& rules, std::string_view canonical) {
  for (const TiedRule& rule : rules.tied) {
    const Result<bool> matches = MatchesWhole(rule.canonical, canonical);
    CHECK(matches.ok(), << matches.error().ToString());
    if (matches.value()) return &rule;
  }
  return nullptr;
}

}  // namespace checkpoint
