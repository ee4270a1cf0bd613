// The certificate: judgement, both sides, and a digest of every file; and its verification. Schema:
// docs/certificate.schema.json.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "certify/certify.h"
#include "certify/file_scan.h"
#include "certify/format.h"
#include "certify/hash.h"
#include "certify/json_text.h"
#include "certify/report.h"
#include "certify/root_cause.h"
#include "certify/subject.h"

namespace certify {
namespace {

namespace fs = std::filesystem;
using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Result;
using nlohmann::ordered_json;

constexpr const char* kFormat = "shardproof-certificate";
constexpr int kFormatVersion = 1;
constexpr const char* kVersion = "0.1.0";

Result<std::vector<FileDigest>> DigestFiles(const fs::path& path, const std::string& tag,
                                            bool universal) {
  CK_TRY(const auto listed, ListFiles(path, tag, universal));
  ScanOptions options;
  options.digests_only = true;
  CK_TRY(const auto scanned, ScanFiles(listed, options));
  std::vector<FileDigest> digests;
  for (const ScannedFile& file : scanned) digests.push_back(file.digest);
  return digests;
}

Result<ordered_json> SideJson(const fs::path& path, const Declared& declared,
                              const std::vector<FileDigest>& judged) {
  ordered_json json;
  json["checkpoint"] = nullptr;
  const auto subject = OpenSubject(path, declared);
  // A side that is damaged has a verdict but no summary.
  if (subject.ok()) json["checkpoint"] = SummaryJson(subject.value());
  if (!subject.ok() && !IsDamage(subject.error().code)) return subject.error();
  json["declared"] = DeclaredJson(declared);
  std::vector<FileDigest> files = judged;
  if (files.empty()) {
    CK_TRY(files, DigestFiles(path, declared.tag, declared.universal));
  }
  json["files"] = ordered_json::array();
  for (const FileDigest& file : files)
    json["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.xxh3_128}});
  return json;
}

// Digest of everything in the certificate but the digest itself.
std::string OwnDigest(ordered_json certificate) {
  certificate.erase("digest");
  return HashHex(HashAlgorithm::kSha256,
                 certificate.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
}

// `where`: the entry of the certificate that is not right.
Error NoCertificate(const std::string& found, std::string where) {
  return Error{ErrorCode::kUsage, found, Format("a {} of version {}", kFormat, kFormatVersion),
               std::move(where), "Give a file that `certify --certificate` wrote."};
}

// A text entry; empty where absent or of another type.
std::string TextAt(const ordered_json& json, const char* key) {
  return json.is_object() && json.contains(key) && json[key].is_string()
             ? json[key].get<std::string>()
             : "";
}

// The files of one side as the certificate lists them, by name.
Result<std::map<std::string, FileDigest>> FilesOf(const ordered_json& certificate,
                                                  const char* side) {
  std::map<std::string, FileDigest> files;
  if (!certificate.contains(side) || !certificate[side].is_object() ||
      !certificate[side].contains("files") || !certificate[side]["files"].is_array())
    return NoCertificate(Format("no list of files of the {}", side), Format("{}.files", side));
  for (const ordered_json& entry : certificate[side]["files"]) {
    const auto text = [&](const char* key) {
      return entry.is_object() && entry.contains(key) && entry[key].is_string();
    };
    if (!text("name") || !text("xxh3_128") || !entry.contains("bytes") ||
        !entry["bytes"].is_number_integer())
      return NoCertificate(Format("a malformed file entry of the {}", side),
                           Format("{}.files", side));
    FileDigest file{entry["name"].get<std::string>(), entry["bytes"].get<int64_t>(),
                    entry["xxh3_128"].get<std::string>()};
    files.emplace(file.name, file);
  }
  return files;
}

// The step folder that was certified.
std::string TagOf(const ordered_json& certificate, const char* side) {
  const ordered_json& json = certificate[side];
  return json.contains("checkpoint") ? TextAt(json["checkpoint"], "tag") : "";
}

void AddFault(Report& report, std::string kind, const std::string& file, std::string text) {
  Finding finding;
  finding.fault = true;
  finding.kind = std::move(kind);
  finding.file = file;
  finding.text = std::move(text);
  finding.count = 1;
  report.Add(std::move(finding));
}

checkpoint::Status VerifySide(const ordered_json& certificate, const char* side,
                              const fs::path& path, Report& report) {
  CK_TRY(const auto certified, FilesOf(certificate, side));
  std::string tag = TagOf(certificate, side);
  // A step folder was given: it is the step, whatever its run folder says.
  if (!tag.empty() && fs::path(path / "").parent_path().filename() == tag) tag.clear();
  CK_TRY(const auto now, DigestFiles(path, tag, false));
  std::map<std::string, FileDigest> present;
  for (const FileDigest& file : now) present.emplace(file.name, file);
  for (const auto& [name, file] : certified) {
    report.Compared(1);
    const auto found = present.find(name);
    if (found == present.end()) {
      AddFault(report, "vanished", name, Format("{} of the {} is not there any more", name, side));
    } else if (found->second.bytes != file.bytes) {
      AddFault(report, "changed", name,
               Format("{} of the {} has {} bytes, {} were certified", name, side,
                      found->second.bytes, file.bytes));
    } else if (found->second.xxh3_128 != file.xxh3_128) {
      AddFault(report, "changed", name,
               Format("{} of the {} has another content than was certified", name, side));
    }
  }
  for (const auto& [name, file] : present)
    if (certified.count(name) == 0)
      AddFault(report, "appeared", name,
               Format("{} of the {} was not there when it was certified", name, side));
  return checkpoint::Done{};
}

}  // namespace

Result<ordered_json> MakeCertificate(const Judgement& judgement, const fs::path& source,
                                     const fs::path& target, const Declared& source_declared,
                                     const Declared& target_declared) {
  ordered_json json;
  json["format"] = kFormat;
  json["format_version"] = kFormatVersion;
  json["software"] = {{"name", "shardproof"}, {"version", kVersion}};
  json.update(JudgementJson(judgement, true));
  CK_TRY(json["source"], SideJson(source, source_declared, judgement.source_files));
  CK_TRY(json["target"], SideJson(target, target_declared, judgement.target_files));
  json = CleanText(json);
  json["digest"] = {{"algorithm", "sha256"}, {"hex", OwnDigest(json)}};
  return json;
}

Result<Judgement> VerifyCertificate(const ordered_json& certificate, const fs::path& source,
                                    const fs::path& target) {
  const std::string format = TextAt(certificate, "format");
  if (format != kFormat)
    return NoCertificate(format.empty() ? "JSON that does not name its format" : format, "format");
  if (!certificate.contains("format_version") || certificate["format_version"] != kFormatVersion)
    return NoCertificate("another format version", "format_version");
  Report report("V1");
  const bool own = certificate.contains("digest") &&
                   TextAt(certificate["digest"], "hex") == OwnDigest(certificate);
  if (!own)
    AddFault(report, "certificate-changed", "",
             "the certificate itself was changed: its digest does not fit its content");
  const std::string verdict = TextAt(certificate, "verdict");
  if (verdict == "undecided") report.Incomplete("the certificate's own verdict is undecided");
  if (verdict != "certified" && verdict != "undecided")
    AddFault(report, "not-certified", "", Format("the certificate's own verdict is '{}'", verdict));
  CK_DO(VerifySide(certificate, "source", source, report));
  CK_DO(VerifySide(certificate, "target", target, report));
  Judgement judgement;
  judgement.laws.push_back(report.Finish());
  Conclude(judgement);
  return judgement;
}

}  // namespace certify
