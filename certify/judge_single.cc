// One pass over a checkpoint for laws S1-S8: each state of each tensor is assembled once and shown
// to every law that wants it.
#include <ATen/Tensor.h>

#include <algorithm>
#include <utility>

#include "certify/parallel.h"
#include "certify/single_laws.h"

namespace certify {
namespace {

// Weight, master and what they are compared with, in bytes an element.
constexpr int64_t kBytesPerElement = 16;

class Sweep {
 public:
  Sweep(const Subject& subject, const StateHook& also)
      : subject_(subject),
        also_(also),
        covered_(subject),
        replicas_(subject),
        masters_(subject),
        moments_(subject) {
    for (const oracle::TensorInfo& info : subject.tensors()) {
      if (info.role != oracle::Role::kTrainable) continue;
      any_master_ = any_master_ || info.states.count(oracle::kMaster) > 0;
      any_weight_ = any_weight_ || info.states.count(oracle::kWeight) > 0;
    }
  }

  void VisitTensor(size_t index) {
    const oracle::TensorInfo& info = subject_.tensors()[index];
    at::Tensor weight, master;
    bool master_compared = false;
    for (const std::string& state : StateOrder(info)) {
      auto assembled = subject_.oracle->Assemble(index, state);
      if (!assembled.ok()) {
        covered_.CannotAssemble(index, state, assembled.error());
        replicas_.CannotAssemble(index, state);
        moments_.CannotAssemble(index, state);
        continue;
      }
      const oracle::Assembled& value = assembled.value();
      covered_.Visit(index, state, value);
      replicas_.Visit(index, state, value);
      if (also_) also_(index, state, value);
      const at::IntArrayRef shape(info.shape);
      if (value.covered != NumelOfShape(info.shape) || value.value.sizes() != shape) {
        moments_.CannotAssemble(index, state);
        continue;
      }
      moments_.Visit(index, state, value);
      if (state == oracle::kWeight) weight = value.value;
      if (state == oracle::kMaster) master = value.value;
      if (!weight.defined() || !master.defined()) continue;
      if (!subject_.summary().master_is_weight) masters_.Visit(index, weight, master);
      master_compared = true;
      // The next states need the memory.
      weight.reset();
      master.reset();
    }
    if (info.role == oracle::Role::kTrainable && !master_compared) ExplainNoMaster(index, info);
  }

  std::vector<LawResult> Finish(const std::vector<ScannedFile>& files) {
    std::vector<LawResult> results;
    results.push_back(CheckComplete(subject_));
    results.push_back(covered_.Finish());
    results.push_back(replicas_.Finish());
    results.push_back(masters_.Finish());
    results.push_back(moments_.Finish());
    results.push_back(CheckCounters(subject_));
    results.push_back(CheckGroups(subject_));
    results.push_back(CheckContainers(files));
    return results;
  }

 private:
  void ExplainNoMaster(size_t index, const oracle::TensorInfo& info) {
    if (NumelOfShape(info.shape) == 0 || !any_weight_) return;
    if (info.states.count(oracle::kMaster) > 0) {
      masters_.CannotCompare(index, "weight or master is incomplete");
    } else if (any_master_) {
      masters_.CannotCompare(index, "it has no master, though other parameters have one");
    }
  }

  const Subject& subject_;
  const StateHook& also_;
  Covered covered_;
  ReplicasAgree replicas_;
  MastersFresh masters_;
  MomentsSane moments_;
  bool any_master_ = false, any_weight_ = false;
};

}  // namespace

checkpoint::Result<std::vector<LawResult>> JudgeSingle(const Subject& subject,
                                                       const std::vector<ScannedFile>& files,
                                                       const SweepOptions& options) {
  Sweep sweep(subject, options.also);
  ParallelOptions parallel;
  parallel.threads = options.threads;
  parallel.bytes_of = [&](int64_t item) {
    return kBytesPerElement * NumelOfShape(subject.tensors()[static_cast<size_t>(item)].shape);
  };
  CK_DO(ParallelFor(static_cast<int64_t>(subject.tensors().size()), parallel,
                    [&](int64_t item) -> checkpoint::Status {
                      const auto index = static_cast<size_t>(item);
                      if (subject.IsJudged(index)) sweep.VisitTensor(index);
                      return checkpoint::Done{};
                    }));
  return sweep.Finish(files);
}

}  // namespace certify
