// Judgements as JSON. Schema of `check`: docs/check.schema.json.
#include <string>
#include <string_view>

#include "certify/certify.h"
#include "certify/json_text.h"
#include "certify/report.h"

namespace certify {
namespace {

using nlohmann::ordered_json;

ordered_json FindingJson(const Finding& finding) {
  ordered_json json;
  json["severity"] = finding.fault ? "fault" : "notice";
  json["kind"] = finding.kind;
  json["text"] = finding.text;
  const auto add = [&](const char* key, const std::string& text) {
    if (!text.empty()) json[key] = text;
  };
  add("file", finding.file);
  add("tensor", finding.tensor);
  add("state", finding.state);
  add("rank", finding.rank);
  if (finding.first_index >= 0) json["first_index"] = finding.first_index;
  if (finding.count > 0) json["count"] = finding.count;
  if (!finding.entries.empty()) json["entries"] = finding.entries;
  return json;
}

ordered_json LawJson(const LawResult& law) {
  ordered_json json;
  json["law"] = law.law;
  json["title"] = law.title;
  json["verdict"] = VerdictName(law.verdict);
  json["compared"] = law.compared;
  json["unit"] = law.unit;
  if (!law.reason.empty()) json["reason"] = law.reason;
  json["covers"] = law.covers;
  json["does_not_cover"] = law.does_not_cover;
  json["findings_total"] = law.findings_total;
  json["findings"] = ordered_json::array();
  for (const Finding& finding : law.findings) json["findings"].push_back(FindingJson(finding));
  return json;
}

std::string_view WholeVerdict(Verdict verdict, bool certificate) {
  if (!certificate) return VerdictName(verdict);
  if (verdict == Verdict::kHeld) return "certified";
  return verdict == Verdict::kBroken ? "refuted" : "undecided";
}

}  // namespace

ordered_json CleanText(const ordered_json& value) {
  const std::string text = value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  return ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
}

ordered_json JudgementJson(const Judgement& judgement, bool certificate) {
  ordered_json json;
  json["verdict"] = WholeVerdict(judgement.verdict, certificate);
  json["root"] = judgement.root;
  json["consequences"] = judgement.consequences;
  json["laws"] = ordered_json::array();
  for (const LawResult& law : judgement.laws) json["laws"].push_back(LawJson(law));
  if (!judgement.damage.is_null()) json["damage"] = judgement.damage;
  return CleanText(json);
}

ordered_json DeclaredJson(const Declared& declared) {
  ordered_json json = ordered_json::object();
  if (!declared.tag.empty()) json["tag"] = declared.tag;
  if (declared.universal) json["universal"] = true;
  if (declared.rules)
    json["rules"] = declared.rules_origin.empty() ? declared.rules->name : declared.rules_origin;
  if (declared.qkv_layout) json["qkv_layout"] = checkpoint::QkvLayoutName(*declared.qkv_layout);
  if (!declared.only.empty()) json["only"] = declared.only;
  if (declared.moments_factor) json["moments_factor"] = *declared.moments_factor;
  if (!declared.param_groups.empty()) json["param_groups"] = declared.param_groups;
  if (declared.moments_rescale) json["moments"] = "rescale";
  return json;
}

ordered_json SummaryJson(const Subject& subject) {
  const oracle::Summary& summary = subject.summary();
  ordered_json json;
  json["format"] = summary.format;
  json["step"] = summary.global_steps >= 0 ? summary.global_steps : summary.iteration;
  json["topology"] = {{"tp", summary.tensor_parallel},
                      {"pp", summary.pipeline_parallel},
                      {"dp", summary.data_parallel}};
  json["zero_stage"] = summary.zero_stage;
  json["dtype"] = summary.dtype;
  json["wrapper"] = summary.wrapper;
  json["layout"] = summary.layout;
  json["tag"] = summary.tag;
  json["iteration"] = summary.iteration;
  json["global_steps"] = summary.global_steps;
  json["skipped_steps"] = summary.skipped_steps;
  json["framework_version"] = summary.framework_version;
  json["elastic"] = summary.elastic;
  json["round_robin"] = summary.round_robin;
  json["legacy_container"] = summary.legacy_container;
  json["rules"] = summary.rules_origin;
  json["qkv_layout"] = nullptr;
  if (summary.qkv_layout) json["qkv_layout"] = checkpoint::QkvLayoutName(*summary.qkv_layout);
  json["fused_qkv"] = summary.has_fused_qkv;
  json["cuts"] = summary.cuts;
  int64_t tensors = 0, elements = 0;
  for (const oracle::TensorInfo& info : subject.tensors()) {
    if (!info.alias_of.empty()) continue;
    ++tensors;
    elements += NumelOfShape(info.shape);
  }
  json["tensor_count"] = tensors;
  json["element_count"] = elements;
  return json;
}

}  // namespace certify
