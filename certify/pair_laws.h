// Laws R1-R8, of a source and a target. Internal to certify/. Texts: docs/LAWS.md. Tested by
// pair_laws_test.cc and corpus_laws_test.cc.
//
// Tensors are matched by canonical name. What a target should hold follows from the source alone,
// by three rules: the same bits; after a change of type, weights are the source's masters rounded
// to nearest even (without masters: the weights converted); where the source has no masters, the
// target's are the source's weights widened.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "certify/compare_bits.h"
#include "certify/report.h"
#include "certify/single_laws.h"
#include "certify/subject.h"

namespace certify {

// Tensors of a subject by canonical name, aliases left out.
std::map<std::string, size_t> ByCanonicalName(const Subject& subject);

LawResult CompareTensorLists(const Subject& source, const Subject& target);    // R1
LawResult CompareTrainingState(const Subject& source, const Subject& target);  // R5
LawResult JudgeTargetAlone(const std::vector<LawResult>& target_laws);         // R6
// R7. `from_states`: rows and states that were made up or dropped, from StatesEqual::Rest.
LawResult ListTheRest(const Subject& source, const Subject& target,
                      const std::vector<Finding>& from_states);

// R8. Looks at the states that R2-R4 assemble of the source, so that none is assembled twice for
// it.
class SourceIsOne {
 public:
  explicit SourceIsOne(const Subject& source)
      : source_(source), covered_(source), replicas_(source) {}
  // A state of the source; later visits of the same one are ignored. Called from several threads.
  void Visit(size_t index, const std::string& state, const oracle::Assembled& assembled);
  // Assembles the states that were not shown. `files`: the source's. Errors: kLimitExceeded
  // (memory).
  checkpoint::Result<LawResult> Finish(const std::vector<ScannedFile>& files, int32_t threads);

 private:
  checkpoint::Status VisitTheRest(int32_t threads);

  const Subject& source_;
  Covered covered_;
  ReplicasAgree replicas_;
  std::mutex mutex_;
  std::set<std::pair<size_t, std::string>> seen_;
};

// R2, R3 and R4: one object, because a state of the target may follow from another state of the
// source.
class StatesEqual {
 public:
  // `moments_factor`: as Declared::moments_factor.
  StatesEqual(const Subject& source, const Subject& target, std::optional<double> moments_factor);

  // Who else wants to see each state of the source that is assembled here. Called from several
  // threads.
  void ShowSource(StateHook hook) { source_hook_ = std::move(hook); }
  // A state of the target; assembles what it needs of the source. Called from several threads.
  void Visit(size_t target_index, const std::string& state, const oracle::Assembled& assembled);
  LawResult FinishWeights();
  LawResult FinishMasters();
  LawResult FinishMoments();
  // Entries for R7. Complete after the three above.
  std::vector<Finding> Rest() const { return rest_; }

 private:
  struct Rule {
    std::string source_state;  // what the target's state follows from
    std::string words;         // empty: the same bits
  };
  // One state of the target beside what it should be, cut to the vocabulary rows that both have.
  struct Pair {
    size_t target_index = 0;
    std::string state;
    Rule rule;
    at::Tensor expected, found;
  };
  std::optional<Rule> RuleFor(const oracle::TensorInfo& source, const oracle::TensorInfo& target,
                              const std::string& state) const;
  Report& ReportOf(const std::string& state);
  void VisitMadeUp(size_t target_index, const std::string& state, const at::Tensor& value);
  bool CutToCommonRows(size_t target_index, Pair& pair);
  void CompareValues(const Pair& pair);
  void CompareMoments(const Pair& pair);
  void AddDifference(const Pair& pair, const Difference& difference);
  void JudgeMissingStates();
  void CompareWeightWithMaster(size_t source_index, size_t target_index);
  void Note(std::string kind, size_t target_index, const std::string& state, std::string text);
  void ExplainFactor();
  // Rows of this tensor cannot be told apart: TP differs, and its order is not declared.
  bool InDoubt(const oracle::TensorInfo& source, const oracle::TensorInfo& target) const;
  void ReportDoubt(Report& report) const;
  void ReportRulesInDoubt(Report& report) const;

  checkpoint::Result<oracle::Assembled> AssembleSource(size_t index,
                                                       const std::string& state) const;

  const Subject& source_;
  const Subject& target_;
  StateHook source_hook_;  // may be null
  const std::map<std::string, size_t> source_by_name_;
  std::optional<double> factor_;  // moments may be multiplied by this
  std::string factor_origin_;
  const std::string qkv_doubt_;  // as QkvOrderDoubt
  Report weights_, masters_, moments_;
  bool missing_judged_ = false;
  std::mutex mutex_;
  std::vector<Finding> rest_;
  int64_t moments_scaled_ = 0, moments_unscaled_ = 0;  // tensors and states
  std::map<std::string, std::pair<double, double>>
      factors_seen_;            // state -> range of constant factors that fit
  int64_t without_factor_ = 0;  // states that differ and fit no factor
};

// The loss scale by which moments of the two sides differ when fp16 at stage 0, which does not
// scale, meets a stage that does; nothing where the sides are not such a pair.
std::optional<double> LossScaleBetween(const oracle::Summary& source,
                                       const oracle::Summary& target);

}  // namespace certify
