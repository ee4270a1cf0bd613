// Law S4, masters are fresh. Covers: every fp32 master rounded to the weights' type equals the
// weight, bit for bit; any NaN equals any NaN. Does not cover: whether both are what training
// produced; frozen parameters and buffers; the low bits of masters.
#include <ATen/Tensor.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "certify/compare_bits.h"
#include "certify/format.h"
#include "certify/holder_map.h"
#include "certify/single_laws.h"

namespace certify {
namespace {

// Offsets tried for "the masters sit k elements off".
constexpr int64_t kShiftMax = 64;
// Up to here, single elements were changed; another step changes nearly all.
constexpr int64_t kFewElements = 8;
constexpr double kFewShare = 0.05;
// Below this, weights and masters have nothing to do with each other.
constexpr double kUnrelatedCorrelation = 0.1;

struct Moments {
  double covariance = 0, weight_variance = 0, master_variance = 0;
};

// Sums about the means; elements that are not finite are left out.
Moments SumsAboutMeans(const at::Tensor& weight, const at::Tensor& master) {
  double weight_sum = 0, master_sum = 0;
  int64_t count = 0;
  const auto each = [&](const auto& body) {
    for (int64_t i = 0; i < weight.numel(); ++i) {
      const double w = ElementAsDouble(weight, i), m = ElementAsDouble(master, i);
      if (std::isfinite(w) && std::isfinite(m)) body(w, m);
    }
  };
  each([&](double w, double m) { weight_sum += w, master_sum += m, ++count; });
  Moments sums;
  if (count == 0) return sums;
  const double weight_mean = weight_sum / static_cast<double>(count);
  const double master_mean = master_sum / static_cast<double>(count);
  each([&](double w, double m) {
    sums.covariance += (w - weight_mean) * (m - master_mean);
    sums.weight_variance += (w - weight_mean) * (w - weight_mean);
    sums.master_variance += (m - master_mean) * (m - master_mean);
  });
  return sums;
}

// Offset k at which master[i + k] rounds to weight[i] for all i with both in range; 0: none, or too
// little to tell.
int64_t ShiftThatFits(const at::Tensor& weight, const at::Tensor& master) {
  const int64_t numel = weight.numel();
  const at::Tensor w = weight.flatten(), m = master.flatten();
  for (int64_t distance = 1; distance <= std::min(kShiftMax, numel / 2); ++distance) {
    const int64_t count = numel - distance;
    if (CompareConverted(m.narrow(0, distance, count), w.narrow(0, 0, count), true).equal())
      return distance;
    if (CompareConverted(m.narrow(0, 0, count), w.narrow(0, distance, count), true).equal())
      return -distance;
  }
  return 0;
}

}  // namespace

void MastersFresh::Visit(size_t index, const at::Tensor& weight, const at::Tensor& master) {
  const oracle::TensorInfo& info = subject_.tensors()[index];
  if (!IsSmallFloat(weight) || !IsSmallFloat(master) || weight.numel() != master.numel()) {
    CannotCompare(index, "weight and master are of types or shapes that cannot be compared");
    return;
  }
  const Difference difference = CompareConverted(master, weight, true);
  report_.Compared(difference.compared);
  Finding finding;
  if (!difference.equal()) {
    finding.fault = true;
    finding.kind = "master-differs";
    finding.tensor = info.name;
    finding.state = oracle::kMaster;
    finding.first_index = difference.first_index;
    finding.count = difference.differing;
    finding.text = Format("{}: rounded master against weight: {}", info.name,
                          DifferenceText(difference, {"the master rounds to", "the weight is"}));
    if (const int64_t shift = ShiftThatFits(weight, master); shift != 0)
      finding.text += Format("; the masters sit {} element{} {}", std::abs(shift),
                             std::abs(shift) == 1 ? "" : "s", shift > 0 ? "late" : "early");
    std::vector<bool> marked;
    CompareConverted(master, weight, true, &marked);
    const auto shares = SharesOfHolders(subject_, index, oracle::kMaster, marked);
    finding.text += HoldersText(shares);
    if (const auto first = std::find_if(shares.begin(), shares.end(),
                                        [](const HolderShare& share) { return share.marked > 0; });
        first != shares.end())
      finding = WithPlace(std::move(finding), first->place);
    report_.Add(std::move(finding), static_cast<int64_t>(index));
  }
  const Moments sums = difference.equal() ? Moments{} : SumsAboutMeans(weight, master);
  const std::lock_guard<std::mutex> lock(mutex_);
  compared_ += difference.compared;
  differing_ += difference.differing;
  tensors_broken_ += difference.equal() ? 0 : 1;
  ulp_max_ = std::max(ulp_max_, difference.ulp_max);
  covariance_ += sums.covariance;
  weight_variance_ += sums.weight_variance;
  master_variance_ += sums.master_variance;
}

void MastersFresh::CannotCompare(size_t index, const std::string& reason) {
  report_.Incomplete(Format("{}: {}", subject_.tensors()[index].name, reason));
}

void MastersFresh::Summarize() {
  if (differing_ == 0) return;
  const double spread = std::sqrt(weight_variance_ * master_variance_);
  const double correlation = spread > 0 ? covariance_ / spread : 0;
  const double share = static_cast<double>(differing_) / static_cast<double>(compared_);
  Finding finding;
  finding.fault = true;
  finding.kind = "stale-masters";
  finding.state = oracle::kMaster;
  finding.count = differing_;
  finding.text =
      Format("{} of {} masters ({}{:.1f} %), in {} tensor{}, do not round to their weights",
             differing_, compared_, share < 0.001 ? "less than " : "", std::max(100 * share, 0.1),
             tensors_broken_, tensors_broken_ == 1 ? "" : "s");
  const bool few = differing_ <= kFewElements && share < kFewShare;
  if (!few && std::fabs(correlation) < kUnrelatedCorrelation) {
    finding.text += Format(
        ". They are unrelated to the weights (correlation {:.3f}): never refreshed. The first "
        "optimizer step would write them over the weights; rebuild them from the weights first",
        correlation);
  } else if (ulp_max_ <= 1) {
    finding.text += ", each by one ulp: rounded another way (truncated, or rounded twice)";
  } else if (few) {
    finding.text += Format(
        ", by at most {} ulp: too few to be of another step; a weight or a master was changed or "
        "damaged",
        ulp_max_);
  } else {
    finding.text += Format(
        ", by at most {} ulp (correlation {:.3f}): of another step, or of other elements than the "
        "weights",
        ulp_max_, correlation);
  }
  report_.Add(std::move(finding), -1);
}

LawResult MastersFresh::Finish() {
  subject_.ReportLeftOut(report_);
  const oracle::Summary& summary = subject_.summary();
  bool any_master = false, any_weight = false, any_16bit = false;
  for (const oracle::TensorInfo& info : subject_.tensors()) {
    if (info.role != oracle::Role::kTrainable) continue;
    const auto weight = info.states.find(oracle::kWeight);
    any_master = any_master || info.states.count(oracle::kMaster) > 0;
    any_weight = any_weight || weight != info.states.end();
    any_16bit = any_16bit || (weight != info.states.end() && checkpoint::Is16Bit(weight->second));
  }
  if (summary.master_is_weight) {
    report_.NotApplicable(
        "the optimizer works on the fp32 weights themselves: there are no masters");
  } else if (subject_.LacksOptimizerFiles()) {
    report_.Incomplete("every optimizer file is missing, and the masters with them");
  } else if (!any_master && any_16bit && summary.wrapper == "none") {
    report_.Incomplete("weights only: no optimizer state lies beside the 16-bit weights");
  } else if (!any_weight) {
    report_.NotApplicable("this layout keeps masters alone; weights are made from them");
  } else if (!any_master) {
    report_.NotApplicable("this layout keeps no fp32 masters");
  }
  Summarize();
  return report_.Finish();
}

}  // namespace certify
