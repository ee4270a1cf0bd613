// Laws S1-S8, of one checkpoint on its own. Internal to certify/. Texts: docs/LAWS.md. Tested by
// laws_test.cc, each law held, broken, undecided and not applicable; over real checkpoints by
// corpus_laws_test.cc.
//
// Laws over elements are visited once a tensor and state, from several threads; each tensor is
// assembled once for all laws.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "certify/counters.h"
#include "certify/file_scan.h"
#include "certify/report.h"
#include "certify/subject.h"
#include "oracle/oracle.h"

namespace certify {

LawResult CheckComplete(const Subject& subject);                   // S1
void CheckModelEntries(const Subject& subject, Report& report);    // S1, part: s1_entries.cc
LawResult CheckCounters(const Subject& subject);                   // S6
LawResult CheckGroups(const Subject& subject);                     // S7
LawResult CheckContainers(const std::vector<ScannedFile>& files);  // S8

// S2. `compared` is the number of elements of all states of all logical tensors, vocabulary padding
// included, an alias once.
class Covered {
 public:
  explicit Covered(const Subject& subject) : subject_(subject), report_("S2") {}
  void Visit(size_t index, const std::string& state, const oracle::Assembled& assembled);
  void CannotAssemble(size_t index, const std::string& state, const checkpoint::Error& error);
  LawResult Finish();

 private:
  const Subject& subject_;
  Report report_;
};

// S3. `compared` is the number of elements of second and further holders that were compared with
// the first.
class ReplicasAgree {
 public:
  explicit ReplicasAgree(const Subject& subject) : subject_(subject), report_("S3") {}
  void Visit(size_t index, const std::string& state, const oracle::Assembled& assembled);
  void CannotAssemble(size_t index, const std::string& state);
  LawResult Finish();

 private:
  struct Broken {
    size_t index;
    std::string state;
  };
  std::string RanksThatAgree(const Broken& broken) const;
  void Summarize();

  const Subject& subject_;
  Report report_;
  std::mutex mutex_;
  std::vector<Broken> broken_;
  std::map<size_t, std::vector<std::string>> stale_states_;
  int64_t compared_ = 0;
  bool incomplete_ = false;
};

// S4. `compared` is the number of weights that have a master.
class MastersFresh {
 public:
  explicit MastersFresh(const Subject& subject) : subject_(subject), report_("S4") {}
  void Visit(size_t index, const at::Tensor& weight, const at::Tensor& master);
  // The tensor has no master, or one of the two could not be assembled or is not covered.
  void CannotCompare(size_t index, const std::string& reason);
  LawResult Finish();

 private:
  void Summarize();

  const Subject& subject_;
  Report report_;
  std::mutex mutex_;
  int64_t compared_ = 0, differing_ = 0, tensors_broken_ = 0, ulp_max_ = 0;
  double covariance_ = 0, weight_variance_ = 0,
         master_variance_ = 0;  // of broken tensors, each about its own mean
};

// S5. `compared` is the number of elements of exp_avg and exp_avg_sq.
class MomentsSane {
 public:
  explicit MomentsSane(const Subject& subject) : subject_(subject), report_("S5") {}
  void Visit(size_t index, const std::string& state, const oracle::Assembled& assembled);
  void CannotAssemble(size_t index, const std::string& state);
  LawResult Finish();

 private:
  struct Part {
    oracle::Place place;
    int64_t numel = 0, zeros = 0;
  };
  struct Seen {  // one state of one tensor
    int64_t numel = 0, zeros = 0;
    bool zeros_are_rows = false;  // zeros are whole rows (first dimension)
    std::vector<Part> parts;      // only where there are zeros to explain
    std::vector<oracle::Place> holders;
  };
  void JudgeMissing();
  void JudgeWhole();
  void JudgeParts();
  void JudgeHolders();
  bool EveryRowIsTrained(const oracle::TensorInfo& info) const;
  bool ZerosMayBeUnusedRows(size_t index, const Seen& seen) const;

  const Subject& subject_;
  Report report_;
  std::mutex mutex_;
  std::map<std::pair<size_t, std::string>, Seen> seen_;
};

using StateHook =
    std::function<void(size_t index, const std::string& state, const oracle::Assembled& assembled)>;

// One pass over all judged tensors of a checkpoint: each state is assembled once, shown to S2-S5
// and to `also` (may be null). Returns S1-S8 in order. Errors: kLimitExceeded (memory).
struct SweepOptions {
  int32_t threads = 0;
  StateHook also;
};
checkpoint::Result<std::vector<LawResult>> JudgeSingle(const Subject& subject,
                                                       const std::vector<ScannedFile>& files,
                                                       const SweepOptions& options);

}  // namespace certify
