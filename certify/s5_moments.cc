// Law S5, moments are sane. Covers: exp_avg and exp_avg_sq are there, finite, exp_avg_sq not
// negative, no rank's part zero where the rest is trained. Does not cover: whether the values are
// right.
//
// Zeros that are legitimate and must not be called a fault: rows of an embedding whose token or
// position never occurred, vocabulary padding, dead units, parameters never used, parts of a few
// elements. Hence two tests: one part of a tensor is zero while the rest has hardly a zero; and
// everything that one holder has is zero while other holders of the same tensors have something.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "certify/compare_bits.h"
#include "certify/format.h"
#include "certify/scan_floats.h"
#include "certify/single_laws.h"

// Last, because libtorch has a macro CHECK of its own.
#include <ATen/Tensor.h>

namespace certify {
namespace {

constexpr int64_t kPartNumelMin = 8;          // smaller parts may be zero by chance
constexpr double kOtherZerosShareMax = 0.01;  // the rest of the tensor has hardly a zero

bool IsMoment(const std::string& state) {
  return state == oracle::kExpAvg || state == oracle::kExpAvgSq;
}

FloatCounts ScanValues(const at::Tensor& value) {
  const auto numel = static_cast<size_t>(value.numel());
  if (DTypeOf(value) == checkpoint::DType::kFloat32)
    return CountFloats({value.const_data_ptr<float>(), numel});
  FloatCounts counts;
  for (int64_t i = 0; i < value.numel(); ++i) {
    const double element = ElementAsDouble(value, i);
    counts.zeros += element == 0 ? 1 : 0;
    counts.negative += element < 0 ? 1 : 0;
    counts.not_finite += std::isfinite(element) ? 0 : 1;
  }
  return counts;
}

int64_t FirstWhere(const at::Tensor& value, bool negative) {
  for (int64_t i = 0; i < value.numel(); ++i) {
    const double element = ElementAsDouble(value, i);
    if (negative ? element < 0 : !std::isfinite(element)) return i;
  }
  return -1;
}

// Every row (first dimension) is either all zero or without a zero.
bool ZerosAreRows(const at::Tensor& value) {
  if (value.dim() < 2 || value.numel() == 0) return false;
  const at::Tensor nonzero = value.flatten(1).count_nonzero(at::IntArrayRef({1}));
  const int64_t row_numel = value.numel() / value.size(0);
  return nonzero.eq(0).logical_or(nonzero.eq(row_numel)).all().item<bool>();
}

Finding AboutMoment(const oracle::TensorInfo& info, const std::string& state, std::string kind) {
  Finding finding;
  finding.kind = std::move(kind);
  finding.tensor = info.name;
  finding.state = state;
  return finding;
}

}  // namespace

void MomentsSane::Visit(size_t index, const std::string& state,
                        const oracle::Assembled& assembled) {
  if (!IsMoment(state)) return;
  const oracle::TensorInfo& info = subject_.tensors()[index];
  const at::Tensor& value = assembled.value;
  const FloatCounts scan = ScanValues(value);
  report_.Compared(value.numel());
  const auto add = [&](std::string kind, int64_t count, bool negative, const char* what) {
    Finding finding = AboutMoment(info, state, std::move(kind));
    finding.fault = true;
    finding.count = count;
    finding.first_index = FirstWhere(value, negative);
    finding.text = Format("{} of {}: {} of {} elements are {}; first at {}: {}", state, info.name,
                          count, value.numel(), what, finding.first_index,
                          NumberText(ElementAsDouble(value, finding.first_index)));
    report_.Add(std::move(finding), static_cast<int64_t>(index));
  };
  if (scan.not_finite > 0) add("not-finite", scan.not_finite, false, "not finite");
  if (scan.negative > 0 && state == oracle::kExpAvgSq)
    add("negative", scan.negative, true, "negative, which a mean of squares cannot be");
  Seen seen;
  seen.numel = value.numel();
  seen.zeros = scan.zeros;
  seen.holders = assembled.holders;
  // Parts are read only where there are enough zeros to make one of them zero.
  if (scan.zeros >= kPartNumelMin && scan.zeros < value.numel()) {
    seen.zeros_are_rows = ZerosAreRows(value);
    if (auto parts = subject_.oracle->PartOfEachHolder(index, state); parts.ok()) {
      for (const oracle::HolderPart& part : parts.value())
        seen.parts.push_back({part.place, part.flat.numel(),
                              part.flat.numel() - part.flat.count_nonzero().item<int64_t>()});
    } else {
      report_.Incomplete(Format("the parts of {} of {} cannot be read", state, info.name));
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  seen_[{index, state}] = std::move(seen);
}

void MomentsSane::CannotAssemble(size_t index, const std::string& state) {
  if (!IsMoment(state)) return;
  report_.Incomplete(
      Format("{} of {} cannot be put together", state, subject_.tensors()[index].name));
}

// The softmax gives every row of an output layer a gradient, and so every row of a table that is
// tied to one.
bool MomentsSane::EveryRowIsTrained(const oracle::TensorInfo& info) const {
  if (info.name.find("pos") != std::string::npos) return false;
  const std::string_view tied_prefix = "tied_modules.";
  if (info.name.compare(0, tied_prefix.size(), tied_prefix) == 0) return true;
  bool has_output_layer = false;
  for (const oracle::TensorInfo& other : subject_.tensors()) {
    if (other.alias_of == info.name) return true;
    has_output_layer = has_output_layer || other.canonical == "output_layer.weight";
  }
  // Vocabulary tensors without an output layer beside them are the output layer too.
  return info.canonical == "output_layer.weight" ||
         (info.vocabulary_rows >= 0 && !has_output_layer);
}

// Zeros that may be rows of tokens or positions that never occurred, or vocabulary padding.
bool MomentsSane::ZerosMayBeUnusedRows(size_t index, const Seen& seen) const {
  if (!seen.zeros_are_rows) return false;
  const oracle::TensorInfo& info = subject_.tensors()[index];
  bool embedding = info.vocabulary_rows >= 0;
  for (const char* word : {"embed", "emb.", "wte", "wpe", "pos"})
    embedding = embedding || info.name.find(word) != std::string::npos;
  if (!embedding) return false;
  if (!EveryRowIsTrained(info)) return true;
  if (info.vocabulary_rows < 0 || info.shape.empty() || info.shape[0] == 0) return false;
  const int64_t row_numel = seen.numel / info.shape[0];
  return seen.zeros <= (info.shape[0] - info.vocabulary_rows) * row_numel;
}

// One part of a tensor is zero while the rest has hardly a zero.
void MomentsSane::JudgeParts() {
  for (const auto& [key, seen] : seen_) {
    const auto& [index, state] = key;
    int64_t all_zeros = 0, all_numel = 0;
    for (const Part& part : seen.parts) all_zeros += part.zeros, all_numel += part.numel;
    for (const Part& part : seen.parts) {
      if (part.numel < kPartNumelMin || part.zeros != part.numel) continue;
      const auto others_numel = static_cast<double>(all_numel - part.numel);
      const auto others_zeros = static_cast<double>(all_zeros - part.zeros);
      if (others_numel == 0 || others_zeros > kOtherZerosShareMax * others_numel) continue;
      Finding finding = AboutMoment(subject_.tensors()[index], state, "zero-part");
      finding.fault = !ZerosMayBeUnusedRows(index, seen);
      finding.count = part.numel;
      finding.text = Format(
          "{} of {}: all {} elements that {} ({}) holds are zero; the rest of the tensor is "
          "trained",
          state, finding.tensor, part.numel, part.place.rank.ToString(), part.place.file);
      report_.Add(WithPlace(std::move(finding), part.place), static_cast<int64_t>(index));
    }
  }
}

// Everything that one file holds is zero while other holders of the same tensors have something.
// Catches what JudgeParts cannot: several ranks at once, and small parts.
void MomentsSane::JudgeHolders() {
  struct Holding {
    oracle::Place place;
    int64_t zeros = 0, tensors = 0;
  };
  std::map<std::pair<std::string, std::string>, Holding> zero;
  std::set<std::pair<std::string, std::string>> nonzero;
  for (const auto& [key, seen] : seen_) {
    const std::string& state = key.second;
    if (seen.zeros == seen.numel) continue;  // never trained: says nothing about a holder
    for (const Part& part : seen.parts) {
      if (part.zeros < part.numel) {
        nonzero.insert({part.place.file, state});
      } else if (part.numel > 0 && !ZerosMayBeUnusedRows(key.first, seen)) {
        Holding& holding = zero[{part.place.file, state}];
        holding.place = part.place;
        holding.zeros += part.numel;
        ++holding.tensors;
      }
    }
    if (seen.parts.empty())
      for (const oracle::Place& place : seen.holders) nonzero.insert({place.file, state});
  }
  for (const auto& [key, holding] : zero) {
    if (nonzero.count(key) > 0 || holding.zeros < kPartNumelMin) continue;
    Finding finding;
    finding.fault = true;
    finding.kind = "zero-holder";
    finding.state = key.second;
    finding.count = holding.zeros;
    finding.text = Format(
        "{}: everything that {} ({}) holds is zero, {} elements of {} tensors that other ranks "
        "have trained",
        key.second, holding.place.rank.ToString(), holding.place.file, holding.zeros,
        holding.tensors);
    report_.Add(WithPlace(std::move(finding), holding.place), -1);
  }
}

void MomentsSane::JudgeWhole() {
  int64_t nonzero_tensors = 0;
  std::map<size_t, std::vector<std::string>> zero_states;
  for (const auto& [key, seen] : seen_) {
    if (seen.numel == 0) continue;
    if (seen.zeros < seen.numel) {
      ++nonzero_tensors;
    } else {
      zero_states[key.first].push_back(key.second);
    }
  }
  const oracle::Summary& summary = subject_.summary();
  const int64_t steps = summary.global_steps - std::max<int64_t>(summary.skipped_steps, 0);
  if (nonzero_tensors == 0 && !zero_states.empty() && steps > 0) {
    Finding finding;
    finding.fault = true;
    finding.kind = "all-moments-zero";
    finding.count = static_cast<int64_t>(zero_states.size());
    finding.text =
        Format("every moment of all {} tensors is zero, though {} optimizer steps were taken",
               zero_states.size(), steps);
    report_.Add(std::move(finding), -1);
    return;
  }
  if (nonzero_tensors == 0) return;  // nothing was trained yet: no news about one parameter
  for (const auto& [index, states] : zero_states) {
    Finding finding =
        AboutMoment(subject_.tensors()[index], JoinText(states, ", "), "never-trained");
    finding.text = Format("{}: {} all zero: never trained?", finding.tensor,
                          states.size() > 1 ? "both moments are" : states.front() + " is");
    report_.Add(std::move(finding), static_cast<int64_t>(index));
  }
}

// Trainable parameters without moments, though steps were taken.
void MomentsSane::JudgeMissing() {
  const oracle::Summary& summary = subject_.summary();
  std::vector<size_t> missing;
  int64_t with_state = 0;
  for (size_t i = 0; i < subject_.tensors().size(); ++i) {
    const oracle::TensorInfo& info = subject_.tensors()[i];
    if (!subject_.IsJudged(i) || info.role != oracle::Role::kTrainable) continue;
    if (NumelOfShape(info.shape) == 0) continue;
    const bool has_both =
        info.states.count(oracle::kExpAvg) > 0 && info.states.count(oracle::kExpAvgSq) > 0;
    const auto own = static_cast<int64_t>(info.states.size() - info.states.count(oracle::kWeight) -
                                          info.states.count(oracle::kMaster));
    with_state += own > 0 ? 1 : 0;
    // Another optimizer's state (momentum_buffer) stands in for the moments.
    if (!has_both && (own == 0 || info.states.count(oracle::kExpAvg) > 0 ||
                      info.states.count(oracle::kExpAvgSq) > 0))
      missing.push_back(i);
  }
  if (subject_.LacksOptimizerFiles()) {
    report_.Incomplete("every optimizer file is missing, and the moments with them");
    return;
  }
  if (summary.no_steps_taken && with_state == 0) {
    report_.NotApplicable("no optimizer step was taken, so there is no optimizer state yet");
    return;
  }
  if (with_state == 0 && summary.wrapper == "none") {
    report_.Incomplete("weights only: no optimizer state lies beside the weights");
    return;
  }
  // torch's own optimizers make state at a parameter's first gradient.
  const bool lazy =
      with_state > 0 && (summary.wrapper == "torch" || summary.wrapper == "FP16_UnfusedOptimizer");
  for (const size_t index : missing) {
    Finding finding =
        AboutMoment(subject_.tensors()[index], "", lazy ? "never-trained" : "moments-missing");
    finding.fault = !lazy;
    finding.text = Format("{}: no moments are stored{}", finding.tensor,
                          lazy ? ": never trained?" : ", though optimizer steps were taken");
    report_.Add(std::move(finding), static_cast<int64_t>(index));
  }
}

LawResult MomentsSane::Finish() {
  subject_.ReportLeftOut(report_);
  JudgeMissing();
  JudgeWhole();
  JudgeParts();
  JudgeHolders();
  return report_.Finish();
}

}  // namespace certify
