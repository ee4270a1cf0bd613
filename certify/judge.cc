// The judgements themselves: Check (S1-S8 of one checkpoint) and Certify (R1-R8, and S1-S8 of the
// target).
#include <ATen/Parallel.h>
#include <malloc.h>

#include <algorithm>
#include <utility>

#include "certify/certify.h"
#include "certify/damage.h"
#include "certify/file_scan.h"
#include "certify/pair_laws.h"
#include "certify/root_cause.h"
#include "certify/single_laws.h"
#include "certify/subject.h"

namespace certify {
namespace {

namespace fs = std::filesystem;
using checkpoint::Error;
using checkpoint::Result;

std::vector<FileDigest> DigestsOf(const std::vector<ScannedFile>& files) {
  std::vector<FileDigest> digests;
  for (const ScannedFile& file : files) digests.push_back(file.digest);
  return digests;
}

Result<std::vector<ScannedFile>> Scan(const fs::path& path, const Declared& declared,
                                      const Subject* subject) {
  CK_TRY(const auto files, ListFiles(path, declared.tag, declared.universal));
  ScanOptions options;
  options.threads = declared.threads;
  if (subject != nullptr) options.opened = &subject->oracle->torch_files();
  return ScanFiles(files, options);
}

// Whole tensors come and go by the thousand. The allocator would keep what several of them needed,
// for each thread; mapping each anew costs time. This keeps a little, and it stays bounded.
void BoundKeptMemory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 16 << 20);
}

LawResult Undecided(std::string_view law, const std::string& reason) {
  Report report(law);
  report.Incomplete(reason);
  return report.Finish();
}

// What can be said of a checkpoint that cannot be opened because its content is damaged: which
// files, and that no more was looked at.
Result<std::vector<LawResult>> JudgeDamaged(const std::vector<ScannedFile>& files,
                                            const Error& error) {
  std::vector<LawResult> laws;
  const std::string reason = "a file cannot be read, as S8 says";
  for (const std::string_view law : LawNumbers('S'))
    if (law != "S8") laws.push_back(Undecided(law, reason));
  LawResult containers = CheckContainers(files);
  if (containers.verdict != Verdict::kBroken) {
    // Containers and checksums are whole, but what they hold is no checkpoint that can be read.
    Finding finding;
    finding.fault = true;
    finding.kind = checkpoint::ErrorCodeName(error.code);
    finding.text = error.ToString();
    finding.count = 1;
    containers.findings.insert(containers.findings.begin(), finding);
    ++containers.findings_total;
    containers.verdict = Verdict::kBroken;
  }
  laws.push_back(std::move(containers));
  return laws;
}

struct Single {
  std::vector<LawResult> laws;
  std::vector<FileDigest> files;
  std::optional<Subject> subject;  // nothing where the checkpoint is damaged
};

// Opens a checkpoint and scans its files. Damage is no error.
Result<Single> OpenSingle(const fs::path& path, const Declared& declared,
                          std::vector<ScannedFile>& scanned) {
  Single single;
  auto subject = OpenSubject(path, declared);
  if (!subject.ok() && !IsDamage(subject.error().code)) return std::move(subject.error());
  if (!subject.ok()) {
    CK_TRY(scanned, Scan(path, declared, nullptr));
    CK_TRY(single.laws, JudgeDamaged(scanned, subject.error()));
  } else {
    single.subject = std::move(subject).value();
    CK_TRY(scanned, Scan(path, declared, &*single.subject));
  }
  single.files = DigestsOf(scanned);
  return single;
}

// R-laws of a target that cannot be read.
std::vector<LawResult> PairOfDamaged(const std::vector<LawResult>& target_laws) {
  std::vector<LawResult> laws;
  for (const std::string_view law : LawNumbers('R'))
    laws.push_back(law == "R6" ? JudgeTargetAlone(target_laws)
                               : Undecided(law, "a file of the target cannot be read"));
  return laws;
}

// Says of each law that the target breaks whether the source breaks it too.
void CompareWithSourceAlone(const Subject& source, const std::vector<ScannedFile>& source_files,
                            int32_t threads, std::vector<LawResult>& target_laws) {
  const bool broken = std::any_of(target_laws.begin(), target_laws.end(), [](const LawResult& law) {
    return law.verdict == Verdict::kBroken;
  });
  if (!broken) return;
  SweepOptions options;
  options.threads = threads;
  const auto source_laws = JudgeSingle(source, source_files, options);
  if (!source_laws.ok()) return;
  for (size_t i = 0; i < target_laws.size(); ++i) {
    if (target_laws[i].verdict != Verdict::kBroken) continue;
    const bool both = source_laws.value()[i].verdict == Verdict::kBroken;
    Finding finding;
    finding.kind = "in-the-source";
    finding.text = both ? "the source breaks this law too: the reshape carried the fault"
                        : "the source does not break this law: the reshape made the fault";
    target_laws[i].findings.push_back(std::move(finding));
    ++target_laws[i].findings_total;
  }
}

}  // namespace

Result<Judgement> Check(const fs::path& path, const Declared& declared) {
  BoundKeptMemory();
  at::set_num_threads(1);  // we run one thread a tensor
  std::vector<ScannedFile> scanned;
  CK_TRY(Single single, OpenSingle(path, declared, scanned));
  if (single.subject) {
    SweepOptions options;
    options.threads = declared.threads;
    CK_TRY(single.laws, JudgeSingle(*single.subject, scanned, options));
  }
  Judgement judgement;
  judgement.laws = std::move(single.laws);
  judgement.source_files = std::move(single.files);
  CK_TRY(judgement.damage,
         AssessDamage(path, declared, scanned, single.subject ? &*single.subject : nullptr));
  Conclude(judgement);
  return judgement;
}

Result<Judgement> Certify(const fs::path& source_path, const fs::path& target_path,
                          const Declared& source_declared, const Declared& target_declared) {
  BoundKeptMemory();
  at::set_num_threads(1);
  CK_TRY(const Subject source, OpenSubject(source_path, source_declared));
  CK_TRY(const auto source_scanned, Scan(source_path, source_declared, &source));
  std::vector<ScannedFile> target_scanned;
  CK_TRY(Single target, OpenSingle(target_path, target_declared, target_scanned));
  Judgement judgement;
  judgement.source_files = DigestsOf(source_scanned);
  judgement.target_files = std::move(target.files);
  if (!target.subject) {
    judgement.laws = PairOfDamaged(target.laws);
  } else {
    StatesEqual states(source, *target.subject, target_declared.moments_factor);
    SourceIsOne one(source);
    states.ShowSource(
        [&](size_t index, const std::string& state, const oracle::Assembled& assembled) {
          one.Visit(index, state, assembled);
        });
    SweepOptions options;
    options.threads = target_declared.threads;
    options.also = [&](size_t index, const std::string& state, const oracle::Assembled& assembled) {
      states.Visit(index, state, assembled);
    };
    CK_TRY(target.laws, JudgeSingle(*target.subject, target_scanned, options));
    CompareWithSourceAlone(source, source_scanned, target_declared.threads, target.laws);
    judgement.laws.push_back(CompareTensorLists(source, *target.subject));
    judgement.laws.push_back(states.FinishWeights());
    judgement.laws.push_back(states.FinishMasters());
    judgement.laws.push_back(states.FinishMoments());
    judgement.laws.push_back(CompareTrainingState(source, *target.subject));
    judgement.laws.push_back(JudgeTargetAlone(target.laws));
    judgement.laws.push_back(ListTheRest(source, *target.subject, states.Rest()));
    CK_TRY(LawResult source_is_one, one.Finish(source_scanned, source_declared.threads));
    judgement.laws.push_back(std::move(source_is_one));
  }
  for (LawResult& law : target.laws) judgement.laws.push_back(std::move(law));
  Conclude(judgement);
  return judgement;
}

}  // namespace certify
