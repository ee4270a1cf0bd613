// Differences between any two checkpoints in logical space, matched by canonical name.
#include <ATen/Parallel.h>
#include <ATen/Tensor.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "certify/certify.h"
#include "certify/compare_bits.h"
#include "certify/json_text.h"
#include "certify/pair_laws.h"
#include "certify/parallel.h"
#include "certify/subject.h"

namespace certify {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kBytesPerElement = 16;
constexpr int64_t kFactorUlp = 8;  // a factor is known from one element only
constexpr double kFactorSpread = 1e-5;
constexpr double kSquareSpread = 1e-4;
constexpr double kNormSpread = 0.2;

// One state of one tensor on both sides.
struct StateComparison {
  std::string name, state, problem;  // problem: why it was not compared
  Difference difference;
  std::optional<double> factor;   // b is a times this, to a few ulp
  double aa = 0, bb = 0, ab = 0;  // sums of squares and products, of float32 states
};

ordered_json NumberJson(double value) {
  // JSON has no NaN and no infinity.
  if (std::isfinite(value)) return value;
  return NumberText(value);
}

ordered_json PlaceJson(int64_t index, double a, double b) {
  return {{"index", index}, {"a", NumberJson(a)}, {"b", NumberJson(b)}};
}

void AddProducts(const at::Tensor& a, const at::Tensor& b, StateComparison& comparison) {
  const auto* x = a.const_data_ptr<float>();
  const auto* y = b.const_data_ptr<float>();
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double left = x[i], right = y[i];
    if (!std::isfinite(left) || !std::isfinite(right)) continue;
    comparison.aa += left * left;
    comparison.bb += right * right;
    comparison.ab += left * right;
  }
}

void CompareTensors(const at::Tensor& a, const at::Tensor& b, StateComparison& comparison) {
  const auto rows = [](const at::Tensor& tensor) { return tensor.dim() == 0 ? 1 : tensor.size(0); };
  at::Tensor x = a, y = b;
  if (x.dim() != y.dim() || (x.dim() > 0 && x.sizes().slice(1) != y.sizes().slice(1))) {
    comparison.problem = "shapes differ: (" + ShapeText(x.sizes().vec()) + ") and (" +
                         ShapeText(y.sizes().vec()) + ")";
    return;
  }
  if (rows(x) != rows(y)) {
    const int64_t common = std::min(rows(x), rows(y));
    comparison.problem = "only the first " + std::to_string(common) + " rows are on both sides";
    x = x.narrow(0, 0, common);
    y = y.narrow(0, 0, common);
  }
  if (x.scalar_type() == y.scalar_type()) {
    comparison.difference = CompareBits(x, y);
  } else if (IsSmallFloat(x) && IsSmallFloat(y)) {
    // The wider side rounded to the other's type.
    const bool x_is_wider = DTypeOf(x) == checkpoint::DType::kFloat32;
    comparison.difference =
        x_is_wider ? CompareConverted(x, y, false) : CompareConverted(y, x, false);
    comparison.problem = "types differ: the wider was rounded to the other";
  } else {
    comparison.problem = "types differ and cannot be compared";
    return;
  }
  if (comparison.difference.equal() || x.scalar_type() != at::kFloat ||
      y.scalar_type() != at::kFloat)
    return;
  AddProducts(x, y, comparison);
  const double factor = FactorAtLargest(x, y);
  if (std::isfinite(factor) && factor != 0 && CompareScaled(x, y, {factor, kFactorUlp}).equal())
    comparison.factor = factor;
}

ordered_json DifferenceJson(const StateComparison& comparison) {
  const Difference& difference = comparison.difference;
  ordered_json json;
  json["name"] = comparison.name;
  json["state"] = comparison.state;
  json["compared"] = difference.compared;
  json["differing"] = difference.differing;
  if (!comparison.problem.empty()) json["note"] = comparison.problem;
  if (difference.equal()) return json;
  json["max_ulp"] = difference.ulp_max;
  json["max_relative"] = NumberJson(difference.relative_max);
  json["first"] =
      PlaceJson(difference.first_index, difference.first_expected, difference.first_found);
  json["worst"] =
      PlaceJson(difference.worst_index, difference.worst_expected, difference.worst_found);
  if (difference.not_comparable > 0) json["not_comparable"] = difference.not_comparable;
  if (comparison.factor) json["factor"] = *comparison.factor;
  return json;
}

// Per state: sums, and the constant factor if all tensors that differ have the same one.
ordered_json StatesJson(const std::vector<StateComparison>& comparisons) {
  struct Sum {
    int64_t compared = 0, differing = 0, ulp_max = 0;
    double relative_max = 0;
    bool one_factor = true;
    std::optional<double> factor;
    double aa = 0, bb = 0, ab = 0;
  };
  std::map<std::string, Sum> sums;
  for (const StateComparison& comparison : comparisons) {
    Sum& sum = sums[comparison.state];
    const Difference& difference = comparison.difference;
    sum.compared += difference.compared;
    sum.differing += difference.differing;
    sum.ulp_max = std::max(sum.ulp_max, difference.ulp_max);
    sum.relative_max = std::max(sum.relative_max, difference.relative_max);
    sum.aa += comparison.aa;
    sum.bb += comparison.bb;
    sum.ab += comparison.ab;
    if (difference.equal()) continue;
    if (!sum.factor) sum.factor = comparison.factor;
    sum.one_factor =
        sum.one_factor && comparison.factor && sum.factor &&
        std::fabs(*comparison.factor - *sum.factor) <= kFactorSpread * std::fabs(*sum.factor);
  }
  ordered_json json = ordered_json::object();
  for (const auto& [state, sum] : sums) {
    json[state] = {{"compared", sum.compared},
                   {"differing", sum.differing},
                   {"max_ulp", sum.ulp_max},
                   {"max_relative", NumberJson(sum.relative_max)}};
    json[state]["factor"] = nullptr;
    if (sum.differing > 0 && sum.one_factor && sum.factor) json[state]["factor"] = *sum.factor;
    if (sum.aa > 0 && sum.bb > 0) {
      json[state]["norm_ratio"] = NumberJson(std::sqrt(sum.bb / sum.aa));
      json[state]["cosine"] = NumberJson(sum.ab / std::sqrt(sum.aa * sum.bb));
    }
  }
  return json;
}

// exp_avg times k and exp_avg_sq times k squared: the gradients of one side were scaled. `exact`:
// every element to a few ulp; else the norms say so, as they do for two runs that differ in their
// gradients' scale and in rounding.
ordered_json ConstantFactorJson(const ordered_json& states) {
  const auto number = [&](const char* state, const char* key) -> std::optional<double> {
    if (!states.contains(state) || !states[state].contains(key)) return std::nullopt;
    if (!states[state][key].is_number()) return std::nullopt;
    return states[state][key].get<double>();
  };
  for (const bool exact : {true, false}) {
    const char* key = exact ? "factor" : "norm_ratio";
    const auto first = number(oracle::kExpAvg, key), second = number(oracle::kExpAvgSq, key);
    if (!first || !second) continue;
    const double spread = exact ? kSquareSpread : kNormSpread;
    const double square = *first * *first;
    const bool is_square = std::fabs(*second - square) <= spread * std::fabs(*second);
    // Norms that are about equal say nothing about a factor.
    if (!exact && (!is_square || std::fabs(*first - 1) < kNormSpread)) return nullptr;
    return {
        {"exp_avg", *first}, {"exp_avg_sq", *second}, {"is_square", is_square}, {"exact", exact}};
  }
  return nullptr;
}

struct Names {
  std::vector<std::pair<size_t, size_t>> common;
  std::vector<std::string> only_a, only_b;
};

Names MatchNames(const Subject& a, const Subject& b) {
  Names names;
  const auto a_names = ByCanonicalName(a), b_names = ByCanonicalName(b);
  for (const auto& [name, index] : a_names) {
    if (!a.selected[index]) continue;
    const auto found = b_names.find(name);
    if (found == b_names.end()) {
      names.only_a.push_back(name);
    } else {
      names.common.emplace_back(index, found->second);
    }
  }
  for (const auto& [name, index] : b_names)
    if (b.selected[index] && a_names.count(name) == 0) names.only_b.push_back(name);
  return names;
}

StateComparison CompareState(const Subject& a, const Subject& b,
                             const std::pair<size_t, size_t>& pair, const std::string& state) {
  StateComparison comparison;
  comparison.name = a.tensors()[pair.first].canonical;
  comparison.state = state;
  const auto x = a.oracle->Assemble(pair.first, state);
  const auto y = b.oracle->Assemble(pair.second, state);
  if (!x.ok() || !y.ok()) {
    comparison.problem = (x.ok() ? y : x).error().ToString();
    return comparison;
  }
  CompareTensors(x.value().value, y.value().value, comparison);
  return comparison;
}

}  // namespace

checkpoint::Result<ordered_json> Compare(const std::filesystem::path& a_path,
                                         const std::filesystem::path& b_path,
                                         const Declared& a_declared, const Declared& b_declared) {
  at::set_num_threads(1);
  CK_TRY(const Subject a, OpenSubject(a_path, a_declared));
  CK_TRY(const Subject b, OpenSubject(b_path, b_declared));
  // A pattern may be of one side's names.
  const auto a_selected = a.CheckAnySelected();
  if (!a_selected.ok() && !b.CheckAnySelected().ok()) return a_selected.error();
  const Names names = MatchNames(a, b);
  std::vector<std::vector<StateComparison>> by_tensor(names.common.size());
  std::vector<std::string> states_of_one;
  ParallelOptions parallel;
  parallel.threads = a_declared.threads;
  parallel.bytes_of = [&](int64_t item) {
    return kBytesPerElement *
           NumelOfShape(a.tensors()[names.common[static_cast<size_t>(item)].first].shape);
  };
  CK_DO(ParallelFor(
      static_cast<int64_t>(names.common.size()), parallel, [&](int64_t item) -> checkpoint::Status {
        const auto i = static_cast<size_t>(item);
        const auto& b_states = b.tensors()[names.common[i].second].states;
        for (const std::string& state : StateOrder(a.tensors()[names.common[i].first]))
          if (b_states.count(state) > 0)
            by_tensor[i].push_back(CompareState(a, b, names.common[i], state));
        return checkpoint::Done{};
      }));
  std::vector<StateComparison> all;
  for (size_t i = 0; i < by_tensor.size(); ++i) {
    const oracle::TensorInfo& x = a.tensors()[names.common[i].first];
    const oracle::TensorInfo& y = b.tensors()[names.common[i].second];
    for (const auto& [state, dtype] : x.states)
      if (y.states.count(state) == 0)
        states_of_one.push_back(x.canonical + " " + state + ": in a only");
    for (const auto& [state, dtype] : y.states)
      if (x.states.count(state) == 0)
        states_of_one.push_back(x.canonical + " " + state + ": in b only");
    all.insert(all.end(), by_tensor[i].begin(), by_tensor[i].end());
  }
  ordered_json json;
  ordered_json tensors = ordered_json::array();
  int64_t compared = 0, differing = 0;
  for (const StateComparison& comparison : all) {
    compared += comparison.difference.compared;
    differing += comparison.difference.differing;
    if (!comparison.difference.equal() || !comparison.problem.empty())
      tensors.push_back(DifferenceJson(comparison));
  }
  json["equal"] = compared > 0 && differing == 0 && tensors.empty() && names.only_a.empty() &&
                  names.only_b.empty() && states_of_one.empty();
  json["compared"] = compared;
  json["differing"] = differing;
  json["states"] = StatesJson(all);
  json["constant_factor"] = ConstantFactorJson(json["states"]);
  json["only_in_a"] = names.only_a;
  json["only_in_b"] = names.only_b;
  json["states_of_one_side"] = states_of_one;
  json["tensors"] = std::move(tensors);
  return CleanText(json);
}

}  // namespace certify
