// Law S8, containers are whole. Covers: zip structure, CRC-32 of every record, pickle within
// limits and without dangerous callables, of every file. Does not cover: content that was damaged
// before it was checksummed; legacy containers, which have no checksums.

#include "certify/format.h"
#include "certify/single_laws.h"

namespace certify {
namespace {

// What loading a file would import and call: a fault where it is dangerous, else a notice.
void AddCallables(const ScannedFile& file, Report& report) {
  for (const checkpoint::NamedCallable& callable : file.callables) {
    Finding finding;
    finding.fault = callable.kind == checkpoint::CallableKind::kDangerous;
    finding.kind = finding.fault ? "dangerous-callable" : "foreign-class";
    finding.file = file.digest.name;
    finding.count = 1;
    finding.text =
        Format("{}: {} at {}: {}", file.digest.name, callable.name, callable.path,
               finding.fault ? "loading this file with torch.load may run commands or code"
                             : "no framework writes this class; loading the file imports it");
    report.Add(std::move(finding));
  }
}

}  // namespace

LawResult CheckContainers(const std::vector<ScannedFile>& files) {
  Report report("S8");
  int64_t containers = 0, legacy = 0;
  for (const ScannedFile& file : files) {
    report.Compared(file.records_checked);
    containers += file.torch ? 1 : 0;
    legacy += file.legacy ? 1 : 0;
    Finding finding;
    finding.fault = true;
    finding.file = file.digest.name;
    finding.count = 1;
    if (file.damage) {
      finding.kind = checkpoint::ErrorCodeName(file.damage->code);
      finding.text = Format("{}: {}", file.digest.name, file.damage->ToString());
      report.Add(finding);
    }
    for (const BadRecord& bad : file.bad_records) {
      finding.kind = checkpoint::ErrorCodeName(checkpoint::ErrorCode::kChecksumMismatch);
      finding.text = Format("{}: CRC-32 of record {} is {:08x}, the directory says {:08x}",
                            file.digest.name, bad.record, bad.found, bad.expected);
      report.Add(finding);
    }
    AddCallables(file, report);
  }
  if (legacy > 0) {
    Finding finding;
    finding.kind = "no-checksums";
    finding.count = legacy;
    finding.text = Format(
        "{} files are legacy containers, which carry no checksums: their structure was read, their "
        "content cannot be proved whole",
        legacy);
    report.Add(std::move(finding));
    if (legacy == containers) report.NotApplicable("legacy containers carry no checksums");
  }
  return report.Finish();
}

}  // namespace certify
