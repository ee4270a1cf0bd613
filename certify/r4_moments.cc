// Law R4, moments equal. Covers: bits of exp_avg, exp_avg_sq and any other state of a parameter's
// shape; after a rescaling that is declared, or that is the loss scale between stages, exp_avg
// times k and exp_avg_sq times k squared. Does not cover: vocabulary padding rows of one side
// alone.
#include <ATen/Tensor.h>

#include <algorithm>
#include <cmath>

#include "certify/counters.h"
#include "certify/format.h"
#include "certify/pair_laws.h"

namespace certify {
namespace {

// A product that is rounded once is right to the bit; k squared may itself have been rounded
// before.
constexpr int64_t kScaledUlp = 1;
// For the words about a constant factor: k itself is only known from one element.
constexpr int64_t kFactorUlp = 8;
constexpr double kFactorSpread = 1e-5;

// Power of the factor that a state carries: the gradient once, or squared.
double PowerOf(const std::string& state, double factor) {
  return state == oracle::kExpAvgSq ? factor * factor : factor;
}

// A factor would show: there is an element that is neither zero nor infinite.
bool HasNumber(const at::Tensor& value) {
  const auto* data = value.const_data_ptr<float>();
  return std::any_of(data, data + value.numel(),
                     [](float element) { return element != 0 && std::isfinite(element); });
}

}  // namespace

std::optional<double> LossScaleBetween(const oracle::Summary& source,
                                       const oracle::Summary& target) {
  if (source.dtype != "fp16" || target.dtype != "fp16") return std::nullopt;
  const bool source_scales = source.zero_stage > 0, target_scales = target.zero_stage > 0;
  if (source_scales == target_scales) return std::nullopt;
  const auto tallies = TallyCounters(source_scales ? source.counters : target.counters);
  const auto other = TallyCounters(source_scales ? target.counters : source.counters);
  const CounterTally* scale = FindTally(tallies, "cur_scale");
  if (scale == nullptr) scale = FindTally(other, "cur_scale");
  if (scale == nullptr || !(scale->value > 0)) return std::nullopt;
  return target_scales ? scale->value : 1 / scale->value;
}

void StatesEqual::CompareMoments(const Pair& pair) {
  if (pair.expected.scalar_type() != pair.found.scalar_type()) {
    CompareValues(pair);
    return;
  }
  const Difference bits = CompareBits(pair.expected, pair.found);
  const bool floats = DTypeOf(pair.found) == checkpoint::DType::kFloat32;
  if (bits.equal() || !floats) {
    AddDifference(pair, bits);
    // Zeros are the same before and after.
    const bool says_something = floats && HasNumber(pair.expected);
    const std::lock_guard<std::mutex> lock(mutex_);
    moments_unscaled_ += says_something ? 1 : 0;
    return;
  }
  if (factor_) {
    const Scaling scaling{PowerOf(pair.state, *factor_), kScaledUlp};
    const Difference scaled = CompareScaled(pair.expected, pair.found, scaling);
    if (scaled.equal()) {
      moments_.Compared(scaled.compared);
      const std::lock_guard<std::mutex> lock(mutex_);
      ++moments_scaled_;
      return;
    }
  }
  AddDifference(pair, bits);
  const double factor = FactorAtLargest(pair.expected, pair.found);
  const bool fits = std::isfinite(factor) && factor != 0 &&
                    CompareScaled(pair.expected, pair.found, {factor, kFactorUlp}).equal();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!fits) {
    ++without_factor_;
    return;
  }
  auto [range, first] = factors_seen_.try_emplace(pair.state, factor, factor);
  range->second = {std::min(range->second.first, factor), std::max(range->second.second, factor)};
}

// Words for moments that differ by one constant factor.
void StatesEqual::ExplainFactor() {
  const auto constant = [&](const std::string& state) -> std::optional<double> {
    const auto range = factors_seen_.find(state);
    if (range == factors_seen_.end()) return std::nullopt;
    const auto [low, high] = range->second;
    if (std::fabs(high - low) > kFactorSpread * std::fabs(high)) return std::nullopt;
    return high;
  };
  const auto first = constant(oracle::kExpAvg), second = constant(oracle::kExpAvgSq);
  if (without_factor_ > 0 || !first || !second) return;
  Finding finding;
  finding.fault = true;
  finding.kind = "constant-factor";
  const bool squared = std::fabs(*second - *first * *first) <= 1e-4 * std::fabs(*second);
  finding.text = Format(
      "the target's moments are the source's times a constant: exp_avg times {:.7g}, exp_avg_sq "
      "times {:.7g}{}",
      *first, *second,
      squared ? ", its square: the gradients were scaled. Declare the factor if this was meant"
              : ", which is not its square");
  moments_.Add(std::move(finding), -1);
}

LawResult StatesEqual::FinishMoments() {
  JudgeMissingStates();
  target_.ReportLeftOut(moments_);
  ReportDoubt(moments_);
  ReportRulesInDoubt(moments_);
  ExplainFactor();
  if (moments_scaled_ > 0) {
    Finding finding;
    finding.kind = "rescaled";
    finding.count = moments_scaled_;
    finding.text = Format(
        "exp_avg is the source's times {:.9g}, exp_avg_sq times its square ({}), in {} states",
        *factor_, factor_origin_, moments_scaled_);
    // A part of the moments on another scale than the rest is no rescaling.
    finding.fault = moments_unscaled_ > 0;
    if (finding.fault)
      finding.text += Format("; but {} states were not rescaled", moments_unscaled_);
    moments_.Add(std::move(finding), -1);
  } else if (const auto scale = LossScaleBetween(source_.summary(), target_.summary());
             scale && moments_unscaled_ > 0) {
    Finding finding;
    finding.kind = "another-scale";
    finding.text = Format(
        "moments are carried as they are, but the gradients of the target will be about {:.6g} "
        "times those that made them (fp16 at "
        "stage 0 does not scale the loss, other stages do; less the clip factor): reshape with "
        "--moments rescale to adapt them",
        *scale);
    moments_.Add(std::move(finding), -1);
  }
  const auto has_moments = [](const Subject& subject) {
    return std::any_of(
        subject.tensors().begin(), subject.tensors().end(), [](const oracle::TensorInfo& info) {
          return info.states.size() >
                 info.states.count(oracle::kWeight) + info.states.count(oracle::kMaster);
        });
  };
  if (!has_moments(source_) && !has_moments(target_))
    moments_.NotApplicable("neither side has optimizer state");
  return moments_.Finish();
}

}  // namespace certify
