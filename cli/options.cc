#include "cli/options.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/file.h"
#include "checkpoint/limits.h"
#include "checkpoint/value.h"

namespace cli {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Result;
using checkpoint::Value;

namespace {

Error UnknownWord(const std::string& flag, const std::string& word, const std::string& known) {
  return Error{ErrorCode::kUsage, "'" + word + "'", known, flag, "Choose one of these."};
}

Value FromJson(const nlohmann::json& json, const std::string& key) {
  if (json.is_null()) return checkpoint::MakeNone();
  if (json.is_boolean()) return checkpoint::MakeBool(json.get<bool>());
  if (json.is_number_integer()) return checkpoint::MakeInt(json.get<int64_t>());
  if (json.is_number()) return checkpoint::MakeFloat(json.get<double>());
  if (json.is_string()) return checkpoint::MakeString(json.get<std::string>());
  std::vector<Value> items;
  for (const auto& item : json) items.push_back(FromJson(item, ""));
  return key == "betas" ? checkpoint::MakeTuple(std::move(items))
                        : checkpoint::MakeList(std::move(items));
}

bool IsFlat(const nlohmann::json& group) {
  if (!group.is_object()) return false;
  for (const auto& item : group) {
    if (item.is_object()) return false;
    if (!item.is_array()) continue;
    for (const auto& inner : item) {
      if (inner.is_structured()) return false;
    }
  }
  return true;
}

Result<std::optional<checkpoint::Rules>> ReadRules(const std::string& file) {
  if (file.empty()) return std::optional<checkpoint::Rules>();
  CK_TRY(const std::string text, checkpoint::ReadSmallFile(file, checkpoint::kRuleFileBytesMax));
  CK_TRY(checkpoint::Rules rules, checkpoint::ParseRules(text, file));
  return std::optional<checkpoint::Rules>(std::move(rules));
}

Result<std::optional<checkpoint::QkvLayout>> ParseQkvLayout(const std::string& text) {
  if (text.empty()) return std::optional<checkpoint::QkvLayout>();
  const auto layout = checkpoint::QkvLayoutFromName(text);
  if (!layout) {
    return UnknownWord("--qkv-layout", text, "per-head-group, per-shard or per-head-inner");
  }
  return std::optional<checkpoint::QkvLayout>(layout);
}

Result<reshape::Wrapper> ParseWrapper(const std::string& text) {
  if (text == "zero") return reshape::Wrapper::kZero;
  if (text == "bf16") return reshape::Wrapper::kBf16;
  if (text == "fused") return reshape::Wrapper::kFused;
  if (text == "unfused") return reshape::Wrapper::kUnfused;
  return UnknownWord("--wrapper", text, "zero, bf16, fused or unfused");
}

}  // namespace

void AddDeclarationFlags(CLI::App& app, DeclarationFlags& flags, bool with_only) {
  app.add_option("--tag", flags.tag, "step folder to read instead of the one `latest` names");
  app.add_option("--rules", flags.rules_file, "JSON file of parallel rules (docs/format/rules.md)");
  app.add_option("--qkv-layout", flags.qkv_layout,
                 "row order of fused QKV: per-head-group, per-shard or per-head-inner");
  app.add_option("--threads", flags.threads, "threads; 0: one per core")
      ->check(CLI::Range(0, 1024));
  app.add_flag("--universal", flags.universal, "read the run's universal folder");
  if (with_only) {
    app.add_option("--only", flags.only,
                   "RE2 pattern: only tensors whose whole name, or whole canonical name, matches");
  }
}

Result<certify::Declared> ToDeclared(const DeclarationFlags& flags) {
  certify::Declared declared;
  declared.tag = flags.tag;
  declared.only = flags.only;
  declared.threads = flags.threads;
  declared.universal = flags.universal;
  CK_TRY(declared.rules, ReadRules(flags.rules_file));
  declared.rules_origin = flags.rules_file;
  CK_TRY(declared.qkv_layout, ParseQkvLayout(flags.qkv_layout));
  return declared;
}

void AddTopologyFlags(CLI::App& app, TargetFlags& flags) {
  const auto ranks = CLI::Range(1, 1'000'000);
  app.add_option("--tp", flags.tensor_parallel, "tensor parallel size")->check(ranks);
  app.add_option("--pp", flags.pipeline_parallel, "pipeline parallel size")->check(ranks);
  app.add_option("--dp", flags.data_parallel, "data parallel size")->check(ranks);
  app.add_option("--zero", flags.zero_stage, "ZeRO stage: 0, 1 or 2")->check(CLI::Range(0, 3));
  app.add_option("--dtype", flags.dtype, "type of the weights: fp16, bf16 or fp32");
}

void AddTargetFlags(CLI::App& app, TargetFlags& flags) {
  AddTopologyFlags(app, flags);
  app.add_option("--layout", flags.layout, "pipeline (layer files) or plain (one module)");
  app.add_option("--format", flags.format, "native or universal")->capture_default_str();
  app.add_option("--wrapper", flags.wrapper, "optimizer wrapper: zero, bf16, fused or unfused");
  app.add_option("--cuts", flags.cuts, "pipeline stage boundaries as layer numbers: 0,4,9")
      ->check([](const std::string& text) {
        return text.empty() ? std::string("no layer numbers") : std::string();
      });
  app.add_option("--moments", flags.moments, "as-is, or rescale (fp16 stage 0 <-> ZeRO)")
      ->capture_default_str();
  app.add_flag("--elastic", flags.elastic, "write an elastic checkpoint");
  app.add_option("--param-groups", flags.param_groups_file,
                 "JSON list of hyper-parameter dictionaries, one a group (elastic sources)");
}

Result<checkpoint::DType> ParseDType(const std::string& text) {
  if (text == "fp16") return checkpoint::DType::kFloat16;
  if (text == "bf16") return checkpoint::DType::kBFloat16;
  if (text == "fp32") return checkpoint::DType::kFloat32;
  return UnknownWord("--dtype", text, "fp16, bf16 or fp32");
}

Result<std::vector<int64_t>> ParseCuts(const std::string& text) {
  std::vector<int64_t> cuts;
  const char* position = text.data();
  const char* const end = text.data() + text.size();
  while (position < end) {
    int64_t cut = 0;
    const auto [next, code] = std::from_chars(position, end, cut);
    if (code != std::errc() || (next < end && *next != ',') || next + 1 == end) {
      return Error{ErrorCode::kUsage, "'" + text + "'", "layer numbers with commas: 0,4,9",
                   "--cuts",
                   "Give PP + 1 ascending numbers, the first 0, the last the layer count."};
    }
    cuts.push_back(cut);
    position = next + 1;
  }
  return cuts;
}

Result<reshape::TargetSpec> ToTargetSpec(const TargetFlags& flags) {
  reshape::TargetSpec spec;
  spec.tensor_parallel_size = flags.tensor_parallel;
  spec.pipeline_parallel_size = flags.pipeline_parallel;
  spec.data_parallel_size = flags.data_parallel;
  spec.zero_stage = flags.zero_stage;
  spec.elastic = flags.elastic;
  if (!flags.dtype.empty()) {
    CK_TRY(spec.dtype, ParseDType(flags.dtype));
  }
  if (!flags.wrapper.empty()) {
    CK_TRY(spec.wrapper, ParseWrapper(flags.wrapper));
  }
  CK_TRY(spec.cuts, ParseCuts(flags.cuts));
  if (flags.layout == "pipeline") {
    spec.layout = reshape::NameLayout::kPipeline;
  } else if (flags.layout == "plain") {
    spec.layout = reshape::NameLayout::kPlain;
  } else if (!flags.layout.empty()) {
    return UnknownWord("--layout", flags.layout, "pipeline or plain");
  }
  if (flags.format != "native" && flags.format != "universal") {
    return UnknownWord("--format", flags.format, "native or universal");
  }
  spec.universal = flags.format == "universal";
  if (flags.moments != "as-is" && flags.moments != "rescale") {
    return UnknownWord("--moments", flags.moments, "as-is or rescale");
  }
  spec.moments = flags.moments == "rescale" ? reshape::Moments::kRescale : reshape::Moments::kAsIs;
  return spec;
}

Result<reshape::ReadOptions> ToReadOptions(const DeclarationFlags& declarations,
                                           const TargetFlags& target) {
  reshape::ReadOptions options;
  options.tag = declarations.tag;
  CK_TRY(options.rules, ReadRules(declarations.rules_file));
  options.rules_origin = declarations.rules_file;
  CK_TRY(options.qkv_layout, ParseQkvLayout(declarations.qkv_layout));
  if (!target.param_groups_file.empty()) {
    CK_TRY(options.param_groups, ReadParamGroups(target.param_groups_file));
  }
  return options;
}

Result<Value> ReadParamGroups(const std::string& file) {
  CK_TRY(const std::string text, checkpoint::ReadSmallFile(file, checkpoint::kRuleFileBytesMax));
  const auto json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  bool sound = json.is_array() && !json.empty();
  for (size_t i = 0; sound && i < json.size(); ++i) sound = IsFlat(json[i]);
  if (!sound) {
    return Error{ErrorCode::kUsage, "other JSON or none",
                 R"([{"lr": 0.001, "betas": [0.9, 0.95], "weight_decay": 0.1, ...}, ...])", file,
                 "Give one dictionary of plain values for each optimizer group."};
  }
  std::vector<Value> groups;
  for (const auto& group : json) {
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [key, item] : group.items()) {
      items.emplace_back(checkpoint::MakeString(key), FromJson(item, key));
    }
    groups.push_back(checkpoint::MakeDict(std::move(items)));
  }
  return checkpoint::MakeList(std::move(groups));
}

}  // namespace cli
