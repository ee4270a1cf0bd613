// Law S1, complete. Covers: presence of every file that the topology needs, and in every model file
// of what its siblings have; one tag; one engine step over all model files; each model file under
// the name of its writer; names of all other files. Does not cover: other content of the files;
// files outside the run folder.

#include "certify/format.h"
#include "certify/single_laws.h"
#include "checkpoint/directory.h"

namespace certify {
namespace {

using checkpoint::FileKind;

// A file that a rank of some topology would have written.
bool IsRankFile(FileKind kind) {
  switch (kind) {
    case FileKind::kModelStates:
    case FileKind::kZeroModelStates:
    case FileKind::kOptimStates:
    case FileKind::kLayer:
    case FileKind::kExpert:
    case FileKind::kExpertOptim:
      return true;
    case FileKind::kKnownOther:
    case FileKind::kUnknown:
      return false;
  }
  return false;
}

// "../global_step20": a folder beside this step's.
bool IsAnotherStep(const std::string& name) { return name.rfind("../global_step", 0) == 0; }

Finding AboutFile(const oracle::FileFact& fact, bool fault, std::string kind, std::string text) {
  Finding finding;
  finding.fault = fault;
  finding.kind = std::move(kind);
  finding.text = std::move(text);
  finding.file = fact.name;
  return finding;
}

void CheckFile(const oracle::FileFact& fact, const std::string& topology, Report& report) {
  if (fact.expected) {
    report.Compared(1);
    if (!fact.present)
      report.Add(AboutFile(fact, true, "missing-file",
                           Format("{} is not there; {} needs it", fact.name, topology)));
    return;
  }
  if (!fact.present || IsAnotherStep(fact.name)) return;
  const FileKind kind = checkpoint::ParseFileName(fact.name).kind;
  if (IsRankFile(kind)) {
    report.Add(AboutFile(fact, true, "extra-file",
                         Format("{} belongs to no rank of {}", fact.name, topology)));
  } else if (kind == FileKind::kUnknown) {
    report.Add(AboutFile(fact, false, "unknown-file",
                         Format("{} is no file of a checkpoint and was not read", fact.name)));
  }
}

}  // namespace

LawResult CheckComplete(const Subject& subject) {
  Report report("S1");
  const oracle::Summary& summary = subject.summary();
  const std::string topology =
      Format("tp{}-pp{}-dp{} at ZeRO stage {}", summary.tensor_parallel, summary.pipeline_parallel,
             summary.data_parallel, summary.zero_stage);
  for (const oracle::FileFact& fact : summary.files) CheckFile(fact, topology, report);
  const auto tallies = TallyCounters(summary.counters);
  if (const CounterTally* steps = FindTally(tallies, "global_steps")) {
    for (const oracle::Counter& other : steps->others) {
      Finding finding;
      finding.fault = true;
      finding.kind = "two-steps";
      finding.text = Format("{} is of engine step {}, most files are of step {}", other.place.file,
                            NumberText(other.value), NumberText(steps->value));
      report.Add(WithPlace(std::move(finding), other.place));
    }
  }
  CheckModelEntries(subject, report);
  for (const oracle::Finding& met : summary.findings)
    if (LawOfKind(met.kind) == "S1") report.Add(FindingOf(met));
  return report.Finish();
}

}  // namespace certify
