#include "checkpoint/rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "checkpoint/limits.h"

namespace checkpoint {
namespace {

namespace fs = std::filesystem;

Rules Builtin(std::string_view name) {
  Result<Rules> rules = ParseRules(BuiltinRulesJson(name), std::string(name));
  EXPECT_TRUE(rules.ok()) << rules.error().ToString();
  return std::move(rules).value();
}

void ExpectRefused(const std::string& text, const std::string& path, const std::string& found,
                   ErrorCode code = ErrorCode::kMalformedRules) {
  const Result<Rules> rules = ParseRules(text, "rules.json");
  ASSERT_FALSE(rules.ok()) << text;
  EXPECT_EQ(rules.error().code, code) << rules.error().ToString();
  EXPECT_EQ(rules.error().where, "rules.json: " + path) << rules.error().ToString();
  EXPECT_NE(rules.error().found.find(found), std::string::npos) << rules.error().ToString();
}

// The pipeline number of a layer index, or of the final norm or head, as rules.h defines it.
TemplateMatch PipelineFields(const Rules& rules, TemplateMatch fields, int64_t layers) {
  const PipelineNumbering& numbering = *rules.numbering;
  if (fields.layer) fields.layer = *fields.layer + numbering.first_layer;
  fields.embedding = numbering.embedding;
  fields.final_norm = numbering.first_layer + layers + numbering.final_after;
  fields.head = numbering.first_layer + layers + numbering.head_after;
  return fields;
}

// Every name that the rules can give to a canonical name.
std::vector<std::string> NamesOf(const Rules& rules, const std::string& canonical, int64_t layers) {
  std::vector<std::string> names;
  for (const NameRule& rule : rules.names) {
    const auto match = MatchTemplate(rule.canonical, canonical);
    if (!match) continue;
    if (!rule.plain.empty()) names.push_back(FillTemplate(rule.plain, *match));
    if (rule.pipeline.empty()) continue;
    names.push_back(FillTemplate(rule.pipeline, PipelineFields(rules, *match, layers)));
  }
  return names;
}

// Every canonical name that the rules can give to a name of either layout. The numbers decide:
// layer 6 of a model with 4 layers is its final norm.
std::set<std::string> CanonicalNamesOf(const Rules& rules, const std::string& name,
                                       int64_t layers) {
  std::set<std::string> canonical;
  const TemplateMatch numbers = PipelineFields(rules, {}, layers);
  for (const NameRule& rule : rules.names) {
    if (const auto match = MatchTemplate(rule.plain, name)) {
      canonical.insert(FillTemplate(rule.canonical, *match));
    }
    auto match = MatchTemplate(rule.pipeline, name);
    if (!match) continue;
    if (match->embedding && match->embedding != numbers.embedding) continue;
    if (match->final_norm && match->final_norm != numbers.final_norm) continue;
    if (match->head && match->head != numbers.head) continue;
    if (match->layer) {
      match->layer = *match->layer - rules.numbering->first_layer;
      if (*match->layer < 0 || *match->layer >= layers) continue;
    }
    canonical.insert(FillTemplate(rule.canonical, *match));
  }
  return canonical;
}

std::string TruthOf(const ParameterRule& rule) {
  if (rule.fused == Fused::kGatedLinear) return "column_swiglu";
  if (rule.parallel == Parallel::kVocabulary) return "vocab";
  return std::string(ParallelName(rule.parallel));
}

nlohmann::json ReadJson(const fs::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

TEST(BuiltinRulesTest, TheyParseAndKnowTheirNames) {
  EXPECT_EQ(BuiltinRuleNames(),
            (std::vector<std::string_view>{"megatron-deepspeed", "megatron-deepspeed-bigscience"}));
  for (const std::string_view name : BuiltinRuleNames()) EXPECT_EQ(Builtin(name).name, name);
}

TEST(BuiltinRulesTest, TheyAgreeWithTheTruthOfEveryRun) {
  const fs::path corpus = fs::path(SHARDPROOF_SOURCE_DIR) / "fixtures/corpus/megatron_deepspeed";
  ASSERT_TRUE(fs::exists(corpus));
  int64_t parameters = 0;
  for (const auto& run : fs::directory_iterator(corpus)) {
    if (!fs::exists(run.path() / "truth.json")) continue;
    const nlohmann::json truth = ReadJson(run.path() / "truth.json");
    const bool older = run.path().filename().string().starts_with("b1_");
    const Rules rules = Builtin(older ? "megatron-deepspeed-bigscience" : "megatron-deepspeed");
    const bool swiglu = truth["driver_options"]["arch"] == "llama";
    const auto layers = truth["driver_options"]["layers"].get<int64_t>();
    for (const nlohmann::json& parameter : truth["params"]) {
      const auto name = parameter["name"].get<std::string>();
      const auto canonical = parameter["canonical"].get<std::string>();
      const ParameterRule* rule = FirstParameterRule(rules, canonical, swiglu);
      ASSERT_TRUE(rule) << canonical;
      EXPECT_EQ(TruthOf(*rule), parameter["parallel"]) << canonical;
      const std::vector<std::string> names = NamesOf(rules, canonical, layers);
      EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << canonical << run;
      EXPECT_EQ(CanonicalNamesOf(rules, name, layers), std::set<std::string>{canonical}) << run;
      if (parameter["stages"].size() > 1) {
        ASSERT_TRUE(FirstTiedRule(rules, canonical)) << canonical;
      }
      const nlohmann::json copies = parameter.value("tied_copies", nlohmann::json());
      for (const auto& [stage, states] : copies.items()) {
        EXPECT_EQ(FirstTiedRule(rules, canonical)->stale_copy,
                  !states["weight"]["equal_to_first_stage"].get<bool>());
      }
      ++parameters;
    }
  }
  EXPECT_GE(parameters, 100);
}

TEST(BuiltinRulesTest, BloomHasANormBehindItsEmbedding) {
  const Rules rules = Builtin("megatron-deepspeed-bigscience");
  const std::string canonical = "embedding.word_embeddings.norm.weight";
  const std::vector<std::string> names = NamesOf(rules, canonical, 70);
  EXPECT_EQ(names, (std::vector<std::string>{"language_model.embedding.word_embeddings.norm.weight",
                                             "tied_modules.embed.word_embeddings.norm.weight"}));
  EXPECT_EQ(FirstParameterRule(rules, canonical, false)->parallel, Parallel::kReplicated);
  EXPECT_TRUE(FirstTiedRule(rules, canonical)->stale_copy);
  EXPECT_EQ(rules.group_rule, GroupRule::kMegatronHalves);
  // BLOOM's 70 layers are files 3 to 72; its final norm is file 74.
  EXPECT_EQ(NamesOf(rules, "final_layernorm.bias", 70).back(), "74.bias");
  EXPECT_EQ(NamesOf(rules, "layers.69.mlp.dense_h_to_4h.bias", 70).back(),
            "72.mlp.dense_h_to_4h.bias");
}

TEST(BuiltinRulesTest, GatedLinearAppliesOnlyWithSwiGlu) {
  const Rules rules = Builtin("megatron-deepspeed");
  const std::string canonical = "layers.11.mlp.dense_h_to_4h.weight";
  EXPECT_EQ(FirstParameterRule(rules, canonical, true)->fused, Fused::kGatedLinear);
  EXPECT_EQ(FirstParameterRule(rules, canonical, false)->fused, Fused::kNone);
  EXPECT_EQ(FirstParameterRule(rules, canonical, false)->parallel, Parallel::kColumn);
}

TEST(BuiltinRulesTest, WhatTheyDoNotNameIsNotGuessed) {
  const Rules rules = Builtin("megatron-deepspeed");
  for (const char* name : {"layers.0.mlp.router.weight", "layers.x.input_layernorm.weight",
                           "xlayers.0.input_layernorm.weight", "layers.0.input_layernorm.weight2",
                           "layers.0.input_layernormXweight", "final_layernorm.weight_v", ""}) {
    EXPECT_EQ(FirstParameterRule(rules, name, false), nullptr) << name;
    EXPECT_EQ(FirstTiedRule(rules, name), nullptr) << name;
  }
  EXPECT_TRUE(FirstParameterRule(rules, "layers.3.self_attention.rotary_emb.inv_freq", false));
}

TEST(ParseRulesTest, RulesOfAModelThatIsNotMegatron) {
  const Result<Rules> parsed = ParseRules(R"json({
    "name": "two-linears",
    "parameters": [
      {"canonical": "up\\.(weight|bias)", "parallel": "column"},
      {"canonical": "qkv\\.weight", "parallel": "column", "sub_parameter_rows": [64, 16, 16]},
      {"canonical": "down\\.weight", "parallel": "row", "fused": "none"},
      {"canonical": ".*", "parallel": "replicated"}
    ],
    "tied": [{"canonical": "embed\\.weight", "layers": [0, 9]}],
    "groups": "from-files",
    "qkv_layout": "per-shard",
    "cuts": [0, 4, 9]
  })json",
                                          "rules.json");
  ASSERT_TRUE(parsed.ok()) << parsed.error().ToString();
  const Rules& rules = parsed.value();
  EXPECT_EQ(rules.name, "two-linears");
  EXPECT_TRUE(rules.names.empty());
  EXPECT_FALSE(rules.numbering);
  ASSERT_EQ(rules.parameters.size(), 4u);
  EXPECT_EQ(rules.parameters[1].sub_parameter_rows, (std::vector<int64_t>{64, 16, 16}));
  EXPECT_EQ(FirstParameterRule(rules, "up.bias", false), &rules.parameters[0]);
  EXPECT_EQ(FirstParameterRule(rules, "down.weight", false)->parallel, Parallel::kRow);
  EXPECT_EQ(FirstParameterRule(rules, "norm.weight", false), &rules.parameters[3]);
  EXPECT_EQ(rules.tied.at(0).layers, (std::vector<int64_t>{0, 9}));
  EXPECT_FALSE(rules.tied.at(0).stale_copy);
  EXPECT_EQ(rules.group_rule, GroupRule::kFromFiles);
  EXPECT_EQ(rules.qkv_layout, QkvLayout::kPerShard);
  EXPECT_EQ(rules.cuts, (std::vector<int64_t>{0, 4, 9}));
}

TEST(ParseRulesTest, UnknownMissingAndDoubleKeysAreRefused) {
  ExpectRefused(R"({"name": "x", "comment": "y"})", "$.comment", "unknown key");
  ExpectRefused(R"({"name": "x", "parameters": [{"canonical": "a", "parallel": "row"},
                    {"canonical": "a", "parallel": "row", "dim": 1}]})",
                "$.parameters[1].dim", "unknown key");
  ExpectRefused(R"({"cuts": []})", "$.name", "nothing");
  ExpectRefused(R"({"name": "x", "name": "y"})", "$", "'name' twice");
  ExpectRefused(R"({"name": "x", "numbering": {"embedding": 1}})", "$.numbering.first_layer",
                "nothing");
  ExpectRefused(R"({"name": "x", "parameters": [{"canonical": "a"}]})", "$.parameters[0].parallel",
                "nothing");
  ExpectRefused(R"({"name": "x", "tied": [{}]})", "$.tied[0].canonical", "nothing");
}

TEST(ParseRulesTest, WrongTypesAreRefused) {
  ExpectRefused("[]", "$", "array");
  ExpectRefused(R"({"name": 1})", "$.name", "number");
  ExpectRefused(R"({"name": "x", "names": {}})", "$.names", "object");
  ExpectRefused(R"({"name": "x", "parameters": [1]})", "$.parameters[0]", "number");
  ExpectRefused(R"({"name": "x", "cuts": 3})", "$.cuts", "number");
  ExpectRefused(R"({"name": "x", "cuts": [0, "3"]})", "$.cuts[1]", "string");
  ExpectRefused(R"({"name": "x", "cuts": [0, -3]})", "$.cuts[1]", "-3");
  ExpectRefused(R"({"name": "x", "cuts": [0, 1.5]})", "$.cuts[1]", "1.5");
  ExpectRefused(R"({"name": "x", "cuts": [0, 18446744073709551615]})", "$.cuts[1]", "1844674407");
  ExpectRefused(R"({"name": "x", "cuts": [0, 9999999999999999]})", "$.cuts[1]", "9999999999999999");
  ExpectRefused(R"({"name": "x", "cuts": [4, 4]})", "$.cuts[1]", "4 after 4");
  ExpectRefused(R"({"name": "x", "tied": [{"canonical": "a", "stale_copy": 1}]})",
                "$.tied[0].stale_copy", "number");
  ExpectRefused(R"({"name": "x", "tied": [{"canonical": "a", "layers": [2, 1]}]})",
                "$.tied[0].layers[1]", "1 after 2");
}

TEST(ParseRulesTest, ChoicesAreListed) {
  ExpectRefused(R"({"name": "x", "parameters": [{"canonical": "a", "parallel": "both"}]})",
                "$.parameters[0].parallel", "'both'");
  ExpectRefused(R"({"name": "x", "groups": "mine"})", "$.groups", "'mine'");
  const Result<Rules> rules = ParseRules(R"({"name": "x", "qkv_layout": "mine"})", "rules.json");
  ASSERT_FALSE(rules.ok());
  EXPECT_EQ(rules.error().expected, "one of per-head-group, per-shard, per-head-inner");
}

TEST(ParseRulesTest, FusedAndSubParametersMustFitTheSplit) {
  ExpectRefused(R"({"name": "x", "parameters":
      [{"canonical": "a", "parallel": "row", "fused": "query-key-value"}]})",
                "$.parameters[0].fused", "'query-key-value' on row");
  ExpectRefused(R"({"name": "x", "parameters":
      [{"canonical": "a", "parallel": "replicated", "sub_parameter_rows": [1]}]})",
                "$.parameters[0].sub_parameter_rows", "not split");
  ExpectRefused(R"({"name": "x", "parameters":
      [{"canonical": "a", "parallel": "row", "sub_parameter_rows": [1, 0]}]})",
                "$.parameters[0].sub_parameter_rows", "0 rows");
}

TEST(ParseRulesTest, PatternsMustCompile) {
  ExpectRefused(R"({"name": "x", "parameters": [{"canonical": "(a", "parallel": "row"}]})",
                "$.parameters[0].canonical", "missing )");
  ExpectRefused(R"json({"name": "x", "tied": [{"canonical": "(?=a)"}]})json", "$.tied[0].canonical",
                "(?=");
  ExpectRefused(R"({"name": "x", "tied": [{"canonical": ""}]})", "$.tied[0].canonical", "empty");
  ExpectRefused(R"({"name": "x", "tied": [{"canonical": ")" + std::string(1025, 'a') + R"("}]})",
                "$.tied[0].canonical", "1025 bytes", ErrorCode::kLimitExceeded);
}

TEST(ParseRulesTest, TemplatesMustFitEachOther) {
  const auto names = [](const std::string& entry) {
    return R"({"name": "x", "names": [)" + entry + "]}";
  };
  ExpectRefused(names(R"({"canonical": "a"})"), "$.names[0]", "neither");
  ExpectRefused(names(R"({"canonical": "", "plain": "a"})"), "$.names[0].canonical", "empty");
  ExpectRefused(names(R"({"canonical": "a.{rest}", "plain": "b"})"), "$.names[0].plain", "'rest'");
  ExpectRefused(names(R"({"canonical": "a", "plain": "b.{layer}"})"), "$.names[0].plain",
                "'layer'");
  ExpectRefused(names(R"({"canonical": "a.{head}", "plain": "b"})"), "$.names[0].canonical",
                "'head'");
  ExpectRefused(names(R"({"canonical": "{rest}.{rest}", "plain": "b"})"), "$.names[0].canonical",
                "twice");
  ExpectRefused(names(R"({"canonical": "{layer}{rest}", "plain": "b"})"), "$.names[0].canonical",
                "without text");
  ExpectRefused(names(R"({"canonical": "a{", "plain": "b"})"), "$.names[0].canonical", "brace");
  ExpectRefused(names(R"({"canonical": "a}b", "plain": "b"})"), "$.names[0].canonical", "brace");
  ExpectRefused(names(R"({"canonical": "a.{layer}", "pipeline": "{layer}.a"})"),
                "$.names[0].pipeline", "no numbering");
  ExpectRefused(names(R"({"canonical": "a", "plain": ")" + std::string(1025, 'a') + "\"}"),
                "$.names[0].plain", "1025 bytes", ErrorCode::kLimitExceeded);
}

TEST(ParseRulesTest, TextThatIsNoJsonIsRefused) {
  ExpectRefused("", "$", "parse error");
  ExpectRefused("{", "$", "parse error");
  ExpectRefused("{\"name\": \"\xff\"}", "$", "UTF-8");
  ExpectRefused("{\"name\": \"x\"} trailing", "$", "parse error");
  ExpectRefused(std::string(100'000, '['), "$", "parse error");
  ExpectRefused(std::string(kRuleFileBytesMax + 1, ' '), "$", "4194305 bytes",
                ErrorCode::kLimitExceeded);
}

TEST(ParseRulesTest, TheExampleOfTheDocumentationParses) {
  std::ifstream file(fs::path(SHARDPROOF_SOURCE_DIR) / "docs/format/rules.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string page = text.str();
  int examples = 0;
  for (size_t at = page.find("```json\n"); at != std::string::npos;
       at = page.find("```json\n", at + 1)) {
    const size_t begin = at + 8;
    const Result<Rules> rules =
        ParseRules(page.substr(begin, page.find("```", begin) - begin), "rules.md");
    EXPECT_TRUE(rules.ok()) << rules.error().ToString();
    ++examples;
  }
  EXPECT_GE(examples, 2);
}

TEST(TemplateTest, FieldsAreFoundAndFilledIn) {
  const auto match = MatchTemplate("layers.{layer}.{rest}", "layers.12.mlp.weight");
  ASSERT_TRUE(match);
  EXPECT_EQ(match->layer, 12);
  EXPECT_EQ(match->rest, "mlp.weight");
  EXPECT_EQ(FillTemplate("{layer}.{rest}", *match), "12.mlp.weight");
  EXPECT_EQ(MatchTemplate("{head}.lm_head.weight", "7.lm_head.weight")->head, 7);
  EXPECT_EQ(MatchTemplate("{final}.{rest}", "6.bias")->final_norm, 6);
  EXPECT_EQ(MatchTemplate("{embedding}.{rest}", "1.a")->embedding, 1);
  EXPECT_TRUE(MatchTemplate("output_layer.weight", "output_layer.weight"));
  // Text of the template is text, not a pattern.
  EXPECT_FALSE(MatchTemplate("output_layer.weight", "output_layerXweight"));
  EXPECT_EQ(MatchTemplate("{rest}.{layer}", "a.b.3")->rest, "a.b");
  EXPECT_EQ(MatchTemplate("a.{rest}", "a.\xc3\xa4 +\n\xff")->rest, "\xc3\xa4 +\n\xff");
}

TEST(TemplateTest, WhatDoesNotFitIsNoMatch) {
  EXPECT_FALSE(MatchTemplate("", ""));
  EXPECT_FALSE(MatchTemplate("a.{rest}", "a."));
  EXPECT_FALSE(MatchTemplate("{layer}.{rest}", "x.weight"));
  EXPECT_FALSE(MatchTemplate("{layer}.{rest}", "-1.weight"));
  EXPECT_FALSE(MatchTemplate("{layer}.{rest}", "02.weight"));
  EXPECT_FALSE(MatchTemplate("{layer}.{rest}", "99999999999999999999.weight"));
  EXPECT_FALSE(MatchTemplate("layers.{layer}.{rest}", "xlayers.1.a"));
}

TEST(TemplateDeathTest, FillingNeedsEveryField) {
  EXPECT_DEATH(FillTemplate("{layer}.a", {}), "lacks layer");
  EXPECT_DEATH(FillTemplate("a.{rest}", {}), "lacks rest");
}

TEST(PipelineNameTest, LayerOrTiedModuleAndTheKeyInItsFile) {
  EXPECT_EQ(SplitPipelineName("2.mlp.weight")->layer, 2);
  EXPECT_EQ(SplitPipelineName("2.mlp.weight")->rest, "mlp.weight");
  const auto tied = SplitPipelineName("tied_modules.embed.word_embeddings.weight");
  ASSERT_TRUE(tied);
  EXPECT_EQ(tied->tied_key, "embed");
  EXPECT_EQ(tied->rest, "word_embeddings.weight");
  EXPECT_FALSE(tied->layer);
  for (const char* name : {"weight", "layers.2.weight", "tied_modules.embed", "tied_modules..a",
                           "tied_modules.embed.", "2.", "2"}) {
    EXPECT_FALSE(SplitPipelineName(name)) << name;
  }
}

TEST(PatternTest, WholeAndPrefix) {
  EXPECT_TRUE(MatchesWhole("a|ab", "ab").value());
  EXPECT_FALSE(MatchesWhole("a", "ab").value());
  EXPECT_TRUE(MatchesPrefix("a", "ab").value());
  EXPECT_FALSE(MatchesPrefix("b", "ab").value());
  EXPECT_FALSE(MatchesPrefix("a$", "ab").value());
  // As DeepSpeed writes them: dots unescaped, matched as prefixes.
  EXPECT_TRUE(MatchesPrefix("\\d+.input_layernorm.weight", "12.input_layernorm.weight").value());
  EXPECT_EQ(MatchesPrefix("(", "").error().code, ErrorCode::kMalformedRules);
  EXPECT_EQ(MatchesWhole(std::string(1025, 'a'), "").error().code, ErrorCode::kLimitExceeded);
}

TEST(PatternTest, NoPatternTakesExponentialTime) {
  EXPECT_FALSE(MatchesWhole("(a*)*b", std::string(100'000, 'a')).value());
}

TEST(QkvLayoutTest, NamesAndLayoutsCorrespond) {
  for (const QkvLayout layout :
       {QkvLayout::kPerHeadGroup, QkvLayout::kPerShard, QkvLayout::kPerHeadInner}) {
    EXPECT_EQ(QkvLayoutFromName(QkvLayoutName(layout)), layout);
  }
  EXPECT_EQ(QkvLayoutFromName("per-head"), std::nullopt);
  EXPECT_EQ(GroupRuleName(GroupRule::kMegatronHalves), "megatron-halves");
  EXPECT_EQ(FusedName(Fused::kQueryKeyValue), "query-key-value");
}

}  // namespace
}  // namespace checkpoint
