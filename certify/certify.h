// Laws, verdicts, certificates. Judges files on disk through the oracle; never sees a plan. Each
// law's text is in docs/LAWS.md, each states what it covers and what not; the certificate prints
// exactly those lines. Tested by laws_test.cc, certificate_test.cc, corpus_laws_test.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/rules.h"
#include "checkpoint/status.h"
#include "checkpoint/value.h"

namespace certify {

enum class Verdict { kHeld, kBroken, kUndecided, kNotApplicable };

struct Finding {
  bool fault = false;  // false: a notice, which never changes a verdict
  std::string kind;    // stable word
  std::string text;    // found, expected, where, in words a user understands
  std::string file, tensor, state, rank;
  int64_t first_index = -1;          // row-major in the logical tensor; -1: not about an element
  int64_t count = 0;                 // how many elements or entries
  std::vector<std::string> entries;  // a list too long for `text`; JSON and HTML show it
};

struct LawResult {
  std::string law;  // "S3"
  std::string title;
  Verdict verdict = Verdict::kUndecided;
  int64_t compared = 0;  // elements (or records, files, counters: `unit`) that were compared
  std::string unit = "elements";
  std::string reason;  // for undecided and not applicable
  std::string covers, does_not_cover;
  std::vector<Finding> findings;  // capped per kind; `findings_total` counts all
  int64_t findings_total = 0;
};

// One file as it was read: its content as one number, and where a record's checksum differs.
struct FileDigest {
  std::string name;  // relative to the run folder: "global_step4/mp_rank_00_model_states.pt"
  int64_t bytes = 0;
  std::string xxh3_128;  // 32 hexadecimal digits, big-endian
};

struct Judgement {
  Verdict verdict = Verdict::kUndecided;  // broken before undecided before held
  std::string root;  // the law that is the cause; consequences are listed below it
  std::vector<std::string> consequences;
  std::vector<LawResult> laws;  // certify: R1-R8, then S1-S8 of the target
  std::vector<FileDigest>
      source_files;  // of the bytes that were judged, sorted by name; check: the one checkpoint
  std::vector<FileDigest> target_files;
  // check: what is intact, lost and rebuildable where a file is damaged or missing; else null.
  nlohmann::ordered_json damage;
};

struct Declared {
  std::string tag;
  std::optional<checkpoint::Rules> rules;
  std::string rules_origin;
  std::optional<checkpoint::QkvLayout> qkv_layout;
  std::string
      only;  // RE2 over whole names; empty: all. Anything left out makes the judgement undecided.
  int32_t threads = 0;
  bool universal = false;  // read the run's universal folder instead of the native step
  // Of the target: moments were multiplied on purpose, exp_avg by this and exp_avg_sq by its
  // square. Absent: equal, or the loss scale between fp16 at stage 0 (which does not scale the
  // loss) and another stage.
  std::optional<double> moments_factor;
  // What a reshape was told besides, for the words of its certificate.
  std::string param_groups;  // file of hyper-parameters; empty: none
  // What that file says, to compare with the target; null where a reshape wrote it itself.
  checkpoint::Value declared_groups;
  bool moments_rescale = false;  // --moments rescale
};

// S1-S8. A damaged file is a broken S8 with everything that needs it undecided, not an error.
// Errors: kUsage (`only` is no pattern), kNotFound, kNotACheckpoint, kUnsupported,
// kUnnamedParameter, kUndeclared, kUnprovedOrder, and what the reader says of files that are whole
// but contradict each other.
checkpoint::Result<Judgement> Check(const std::filesystem::path& path, const Declared& declared);
// R1-R8, and S1-S8 of the target. A target that cannot be read refutes; a source that cannot be
// read is an error (as Check).
checkpoint::Result<Judgement> Certify(const std::filesystem::path& source,
                                      const std::filesystem::path& target,
                                      const Declared& source_declared,
                                      const Declared& target_declared);

// {"verdict": ..., "laws": [...]}: "held|broken|undecided" for check; "certified|refuted|undecided"
// for certify.
nlohmann::ordered_json JudgementJson(const Judgement& judgement, bool certificate);

// The certificate: the judgement, both sides' summaries, declarations, notices, and a digest of
// every file on both sides. Its hashed part has no time, host name or thread count. Schema:
// docs/certificate.schema.json.
checkpoint::Result<nlohmann::ordered_json> MakeCertificate(const Judgement& judgement,
                                                           const std::filesystem::path& source,
                                                           const std::filesystem::path& target,
                                                           const Declared& source_declared,
                                                           const Declared& target_declared);
std::string CertificateHtml(const nlohmann::ordered_json& certificate);  // one self-contained page
// JUnit: one test case a law; broken is a failure, undecided an error (never a pass), not
// applicable skipped.
std::string JudgementJUnit(const Judgement& judgement, const std::string& suite);
// Are these still the files that were certified? Lists files that changed, vanished or appeared.
checkpoint::Result<Judgement> VerifyCertificate(const nlohmann::ordered_json& certificate,
                                                const std::filesystem::path& source,
                                                const std::filesystem::path& target);

// Digest per logical tensor and state, and one of the whole, over records whose CRC-32 is right.
// Algorithms: "xxh3-128", "sha256". "complete" is false, and the digest of all is
// "whole_of_what_is_there", where something that this layout should hold is missing; "notices" say
// what, and which tensors' digests stand on an assumed order of fused QKV. Errors: as Check, and
// kChecksumMismatch, kMissingFile (a state of which a part is missing).
checkpoint::Result<nlohmann::ordered_json> Digest(const std::filesystem::path& path,
                                                  const Declared& declared,
                                                  const std::string& algorithm);
// inspect --json. "complete" is false where law S1 is broken: files missing, or of no rank.
checkpoint::Result<nlohmann::ordered_json> Inspect(const std::filesystem::path& path,
                                                   const Declared& declared);
// compare A B: differences in logical space, matched by canonical name; share, ulp, first, worst,
// constant factor. "verdict": "same", "different", or "undecided" where nothing differs but
// something was not compared (fused QKV of another TP in an undeclared order, files missing).
// Vocabulary padding rows are listed apart and never count. Errors: as Check, and
// kChecksumMismatch.
checkpoint::Result<nlohmann::ordered_json> Compare(const std::filesystem::path& a,
                                                   const std::filesystem::path& b,
                                                   const Declared& a_declared,
                                                   const Declared& b_declared);

}  // namespace certify
