// One pass over a checkpoint for laws S1-S8: each state of each tensor is assembled once and shown
// to every law that wants it.
#include <ATen/Tensor.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "certify/parallel.h"
#include "certify/single_laws.h"
#include "certify/tensor_memory.h"

namespace certify {
namespace {

// Memory that a piece of work needs at most, in bytes an element: what was assembled, and what it
// is compared with, both in fp32; a weight stays beside its master.
constexpr int64_t kStateBytes = 8, kMasterBytes = 10;
// All pieces at once stay within three copies of the largest tensor in fp32, and this.
constexpr int64_t kLargestBytes = 12;
constexpr int64_t kBytesBeside = 96LL << 20;

// States of one tensor that are judged together: weight and master, or one other.
struct Piece {
  size_t index = 0;
  std::vector<std::string> states;
  int64_t bytes = 0;
};

bool IsWeightOrMaster(const std::string& state) {
  return state == oracle::kWeight || state == oracle::kMaster;
}

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

  // In order of the tensors, weight and master first.
  std::vector<Piece> Pieces() const {
    std::vector<Piece> pieces;
    for (size_t i = 0; i < subject_.tensors().size(); ++i) {
      if (!subject_.IsJudged(i)) continue;
      const oracle::TensorInfo& info = subject_.tensors()[i];
      const int64_t numel = NumelOfShape(info.shape);
      Piece first{i, {}, kMasterBytes * numel};
      std::vector<Piece> others;
      for (const std::string& state : StateOrder(info)) {
        if (IsWeightOrMaster(state)) {
          first.states.push_back(state);
        } else {
          others.push_back({i, {state}, kStateBytes * numel});
        }
      }
      pieces.push_back(std::move(first));
      pieces.insert(pieces.end(), others.begin(), others.end());
    }
    return pieces;
  }

  void Visit(const Piece& piece) {
    const oracle::TensorInfo& info = subject_.tensors()[piece.index];
    at::Tensor weight, master;
    bool master_compared = false;
    for (const std::string& state : piece.states) {
      const at::Tensor value = VisitState(piece.index, state);
      if (state == oracle::kWeight) weight = value;
      if (state == oracle::kMaster) master = value;
      if (!weight.defined() || !master.defined()) continue;
      if (!subject_.summary().master_is_weight) masters_.Visit(piece.index, weight, master);
      master_compared = true;
    }
    const bool about_master = piece.states.empty() || IsWeightOrMaster(piece.states.front());
    if (about_master && info.role == oracle::Role::kTrainable && !master_compared)
      ExplainNoMaster(piece.index, info);
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
  // Shows one state to all laws. Undefined where it is not whole.
  at::Tensor VisitState(size_t index, const std::string& state) {
    const oracle::TensorInfo& info = subject_.tensors()[index];
    auto assembled = subject_.oracle->Assemble(index, state);
    if (!assembled.ok()) {
      covered_.CannotAssemble(index, state, assembled.error());
      replicas_.CannotAssemble(index, state);
      moments_.CannotAssemble(index, state);
      return {};
    }
    const oracle::Assembled& value = assembled.value();
    covered_.Visit(index, state, value);
    replicas_.Visit(index, state, value);
    if (also_) also_(index, state, value);
    const at::IntArrayRef shape(info.shape);
    if (value.covered != NumelOfShape(info.shape) || value.value.sizes() != shape) {
      moments_.CannotAssemble(index, state);
      return {};
    }
    moments_.Visit(index, state, value);
    return value.value;
  }

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
  const std::vector<Piece> pieces = sweep.Pieces();
  ParallelOptions parallel;
  parallel.threads = options.threads;
  parallel.bytes_of = [&](int64_t item) { return pieces[static_cast<size_t>(item)].bytes; };
  int64_t largest = 0;
  for (const Piece& piece : pieces)
    largest = std::max(largest, NumelOfShape(subject.tensors()[piece.index].shape));
  parallel.bytes_at_once = kLargestBytes * largest + kBytesBeside;
  const KeptTensorMemory kept(parallel.bytes_at_once);
  CK_DO(ParallelFor(static_cast<int64_t>(pieces.size()), parallel,
                    [&](int64_t item) -> checkpoint::Status {
                      sweep.Visit(pieces[static_cast<size_t>(item)]);
                      return checkpoint::Done{};
                    }));
  return sweep.Finish(files);
}

}  // namespace certify
