// What a checkpoint is, and its logical tensors.
#include <string>

#include "certify/certify.h"
#include "certify/damage.h"
#include "certify/file_scan.h"
#include "certify/json_text.h"
#include "certify/single_laws.h"
#include "certify/subject.h"

namespace certify {
namespace {

using nlohmann::ordered_json;

const char* RoleName(oracle::Role role) {
  switch (role) {
    case oracle::Role::kTrainable:
      return "trainable";
    case oracle::Role::kFrozen:
      return "frozen";
    case oracle::Role::kBuffer:
      return "buffer";
  }
  return "";
}

ordered_json TensorJson(const oracle::TensorInfo& info) {
  ordered_json json;
  json["name"] = info.name;
  json["canonical"] = info.canonical;
  json["shape"] = info.shape;
  const auto weight = info.states.find(oracle::kWeight);
  const auto master = info.states.find(oracle::kMaster);
  const auto stored = weight != info.states.end() ? weight : master;
  json["dtype"] = stored == info.states.end() ? "" : checkpoint::DTypeName(stored->second);
  json["parallel"] = info.parallel;
  json["partition_dim"] = info.partition_dim;
  json["states"] = StateOrder(info);
  json["state_dtypes"] = ordered_json::object();
  for (const std::string& state : StateOrder(info))
    json["state_dtypes"][state] = checkpoint::DTypeName(info.states.at(state));
  json["role"] = RoleName(info.role);
  if (!info.alias_of.empty()) json["alias_of"] = info.alias_of;
  if (info.vocabulary_rows >= 0) json["vocabulary_rows"] = info.vocabulary_rows;
  if (info.group >= 0) json["group"] = info.group;
  if (info.step) json["step"] = *info.step;
  if (!info.weight_strides.empty()) json["weight_strides"] = info.weight_strides;
  json["rule"] = info.rule;
  return json;
}

// Law S1, for which nothing is put together: what is described below is that of an incomplete
// checkpoint where files are missing.
void AddFiles(const Subject& subject, ordered_json& json) {
  const LawResult complete = CheckComplete(subject);
  json["complete"] = complete.verdict == Verdict::kHeld;
  json["missing_files"] = ordered_json::array();
  for (const oracle::FileFact& fact : subject.summary().files)
    if (fact.expected && !fact.present) json["missing_files"].push_back(fact.name);
  json["file_findings"] = ordered_json::array();
  for (const Finding& finding : complete.findings)
    json["file_findings"].push_back({{"severity", finding.fault ? "fault" : "notice"},
                                     {"kind", finding.kind},
                                     {"text", finding.text},
                                     {"file", finding.file}});
}

// A checkpoint that cannot be opened: why, and what is left of it.
checkpoint::Result<ordered_json> InspectDamaged(const std::filesystem::path& path,
                                                const Declared& declared,
                                                const checkpoint::Error& error) {
  CK_TRY(const auto files, ListFiles(path, declared.tag, declared.universal));
  ScanOptions options;
  options.threads = declared.threads;
  CK_TRY(const auto scanned, ScanFiles(files, options));
  ordered_json json;
  json["complete"] = false;
  json["error"] = {{"code", checkpoint::ErrorCodeName(error.code)},
                   {"found", error.found},
                   {"expected", error.expected},
                   {"where", error.where},
                   {"advice", error.advice}};
  CK_TRY(json["damage"], AssessDamage(path, declared, scanned, nullptr));
  return CleanText(json);
}

}  // namespace

checkpoint::Result<ordered_json> Inspect(const std::filesystem::path& path,
                                         const Declared& declared) {
  auto opened = OpenSubject(path, declared);
  if (!opened.ok() && IsDamage(opened.error().code))
    return InspectDamaged(path, declared, opened.error());
  CK_TRY(const Subject subject, std::move(opened));
  ordered_json json = SummaryJson(subject);
  AddFiles(subject, json);
  json["tensors"] = ordered_json::array();
  for (size_t i = 0; i < subject.tensors().size(); ++i)
    if (subject.selected[i]) json["tensors"].push_back(TensorJson(subject.tensors()[i]));
  json["groups"] = ordered_json::array();
  for (const oracle::GroupInfo& group : subject.summary().groups)
    json["groups"].push_back({{"name", group.name},
                              {"hyper_parameters", group.hyper_parameters},
                              {"members", group.members}});
  json["notices"] = ordered_json::array();
  for (const oracle::Finding& finding : subject.summary().findings)
    json["notices"].push_back({{"kind", finding.kind}, {"text", finding.text}});
  // Sums of whole files are for `check`; what is missing is known without them.
  CK_TRY(json["damage"], AssessDamage(path, declared, {}, &subject));
  if (json["damage"].is_null()) json.erase("damage");
  return CleanText(json);
}

}  // namespace certify
