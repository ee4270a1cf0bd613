#include "reshape/other_targets.h"

#include <algorithm>

#include "reshape/resolve.h"

namespace reshape {
namespace {

using checkpoint::DType;

class Finder {
 public:
  Finder(const Inventory& source, const TargetSpec& spec) : source_(source), spec_(spec) {}

  void TrySizes(const std::string& flag, std::optional<int32_t> TargetSpec::*member,
                const std::vector<int32_t>& values) {
    if (spec_.*member) return;
    for (const int32_t value : values) {
      TargetSpec one = spec_;
      one.*member = value;
      Try(flag, std::to_string(value), one);
    }
  }

  void TryForms() {
    if (!spec_.layout) {
      TargetSpec one = spec_;
      const bool plain = source_.layout == NameLayout::kPlain;
      one.layout = plain ? NameLayout::kPipeline : NameLayout::kPlain;
      Try("--layout", plain ? "pipeline" : "plain", one, /*form=*/true);
    }
    if (!spec_.universal) {
      TargetSpec one = spec_;
      one.universal = true;
      Try("--format", "universal", one, /*form=*/true);
    }
    if (spec_.dtype) return;
    for (const auto& [name, dtype] : {std::pair{"fp16", DType::kFloat16},
                                      {"bf16", DType::kBFloat16},
                                      {"fp32", DType::kFloat32}}) {
      TargetSpec one = spec_;
      one.dtype = dtype;
      if (dtype != source_.weight_dtype) Try("--dtype", name, one, /*form=*/true);
    }
  }

  OtherTargets Take() { return std::move(result_); }

 private:
  void Try(const std::string& flag, const std::string& value, const TargetSpec& spec,
           bool form = false) {
    const auto resolved = Resolve(source_, spec);
    if (resolved.ok()) {
      if (form) result_.reachable.push_back(flag + " " + value);
      return;
    }
    const checkpoint::Error& error = resolved.error();
    auto& locked = result_.locked;
    const auto same = std::find_if(locked.begin(), locked.end(), [&](const LockedTargets& other) {
      return other.flag == flag && other.unlock == error.advice;
    });
    if (same != locked.end()) {
      same->values.push_back(value);
    } else {
      locked.push_back({flag, {value}, error.found + "; expected " + error.expected, error.advice});
    }
  }

  const Inventory& source_;
  const TargetSpec& spec_;
  OtherTargets result_;
};

}  // namespace

OtherTargets FindOtherTargets(const Inventory& source, const TargetSpec& spec, int32_t ranks_max) {
  std::vector<int32_t> sizes;
  for (int32_t ranks = 1; ranks <= ranks_max; ++ranks) sizes.push_back(ranks);
  Finder finder(source, spec);
  finder.TrySizes("--tp", &TargetSpec::tensor_parallel_size, sizes);
  finder.TrySizes("--pp", &TargetSpec::pipeline_parallel_size, sizes);
  finder.TrySizes("--zero", &TargetSpec::zero_stage, {0, 1, 2, 3});
  finder.TryForms();
  return finder.Take();
}

}  // namespace reshape
