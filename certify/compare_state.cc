#include "certify/compare_state.h"

#include <ATen/Tensor.h>

#include <algorithm>
#include <cmath>

#include "certify/format.h"
#include "certify/report.h"
#include "certify/subject.h"

namespace certify {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kFactorUlp = 8;  // a factor is known from one element only

int64_t RowsOf(const at::Tensor& tensor) { return tensor.dim() == 0 ? 1 : tensor.size(0); }

bool IsWhole(const StateSide& a, const StateSide& b, StateComparison& comparison) {
  for (const StateSide* side : {&a, &b}) {
    const int64_t missing = side->value.numel() - side->covered;
    if (missing == 0) continue;
    comparison.undecided = Format("{} of {} elements of {} are in no file", missing,
                                  side->value.numel(), side == &a ? "a" : "b");
    return false;
  }
  return true;
}

// Vocabulary rows of the two sides, told apart from padding. Nothing where no file says how many
// there are.
std::optional<int64_t> VocabularyRows(const StateSide& a, const StateSide& b) {
  if (a.rows_known && b.rows_known && a.vocabulary_rows != b.vocabulary_rows) return std::nullopt;
  if (a.rows_known) return a.vocabulary_rows;
  if (b.rows_known) return b.vocabulary_rows;
  return std::nullopt;
}

void ComparePadding(const at::Tensor& a, const at::Tensor& b, StateComparison& comparison) {
  const int64_t common = std::min(RowsOf(a), RowsOf(b));
  const auto add = [&](const std::string& text) {
    comparison.padding += (comparison.padding.empty() ? "" : "; ") + text;
  };
  if (common > 0) {
    const at::Tensor x = a.narrow(0, 0, common), y = b.narrow(0, 0, common);
    if (x.scalar_type() == y.scalar_type()) {
      const Difference difference = CompareBits(x, y);
      comparison.padding_compared = difference.compared;
      if (!difference.equal())
        add(Format("{} of {} elements of {} rows differ", difference.differing, difference.compared,
                   common));
    }
  }
  if (RowsOf(a) != RowsOf(b))
    add(Format("{} more rows in {}", std::max(RowsOf(a), RowsOf(b)) - common,
               RowsOf(a) > RowsOf(b) ? "a" : "b"));
}

// Cuts both sides to the rows whose values count. False: they cannot be compared, which is said.
bool CutToVocabulary(const StateSide& a_side, const StateSide& b_side, at::Tensor& a, at::Tensor& b,
                     StateComparison& comparison) {
  const bool same_rest =
      a.dim() == b.dim() && (a.dim() == 0 || a.sizes().slice(1) == b.sizes().slice(1));
  const bool vocabulary =
      same_rest && a.dim() > 0 && a_side.vocabulary_rows >= 0 && b_side.vocabulary_rows >= 0;
  if (!vocabulary && a.sizes() == b.sizes()) return true;
  const int64_t common = std::min(RowsOf(a), RowsOf(b));
  const auto rows = vocabulary ? VocabularyRows(a_side, b_side) : std::nullopt;
  if (rows && *rows <= common) {
    ComparePadding(a.narrow(0, *rows, RowsOf(a) - *rows), b.narrow(0, *rows, RowsOf(b) - *rows),
                   comparison);
    a = a.narrow(0, 0, *rows);
    b = b.narrow(0, 0, *rows);
    return true;
  }
  const bool unknown = vocabulary && !a_side.rows_known && !b_side.rows_known;
  if (unknown && RowsOf(a) == RowsOf(b)) return true;
  if (!unknown) {
    comparison.unequal = a.sizes() == b.sizes()
                             ? Format("{} rows of a are vocabulary, and {} of b",
                                      a_side.vocabulary_rows, b_side.vocabulary_rows)
                             : Format("shapes differ: ({}) and ({})", ShapeText(a.sizes().vec()),
                                      ShapeText(b.sizes().vec()));
    return false;
  }
  a = a.narrow(0, 0, common);
  b = b.narrow(0, 0, common);
  comparison.undecided = Format(
      "rows {} and later are on one side only, and no file says how many rows are vocabulary",
      common);
  return true;
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

// Where two float32 states differ: norms, and a constant factor where one fits.
void FindFactor(const at::Tensor& a, const at::Tensor& b, StateComparison& comparison) {
  if (comparison.difference.equal() || a.scalar_type() != at::kFloat ||
      b.scalar_type() != at::kFloat)
    return;
  AddProducts(a, b, comparison);
  const double factor = FactorAtLargest(a, b);
  if (std::isfinite(factor) && factor != 0 && CompareScaled(a, b, {factor, kFactorUlp}).equal())
    comparison.factor = factor;
}

// "[3, 5]", from a row-major index.
std::string PlaceText(int64_t index, const std::vector<int64_t>& shape) {
  std::vector<std::string> parts;
  for (size_t i = shape.size(); i-- > 0;) {
    const int64_t extent = std::max<int64_t>(shape[i], 1);
    parts.insert(parts.begin(), std::to_string(i == 0 ? index : index % extent));
    index /= extent;
  }
  return "[" + JoinText(parts, ", ") + "]";
}

ordered_json PlaceJson(int64_t index, double a, double b) {
  return {{"index", index}, {"a", NumberJson(a)}, {"b", NumberJson(b)}};
}

std::string ValuesText(const StateComparison& comparison) {
  const Difference& difference = comparison.difference;
  const double share =
      100.0 * static_cast<double>(difference.differing) / static_cast<double>(difference.compared);
  std::string text = Format("{} of {} elements ({:.3g} %) differ", difference.differing,
                            difference.compared, share);
  if (difference.differing > difference.not_comparable)
    text += Format(", by at most {} ulp", difference.ulp_max);
  text += Format("; first at {}: a {}, b {}", PlaceText(difference.first_index, comparison.shape),
                 NumberText(difference.first_expected), NumberText(difference.first_found));
  if (comparison.factor) text += Format("; b is a times {:.6g} throughout", *comparison.factor);
  return text;
}

}  // namespace

ordered_json NumberJson(double value) {
  if (std::isfinite(value)) return value;
  return NumberText(value);
}

void CompareState(const StateSide& a_side, const StateSide& b_side, StateComparison& comparison) {
  comparison.shape = a_side.value.sizes().vec();
  at::Tensor a = a_side.value, b = b_side.value;
  if (!IsWhole(a_side, b_side, comparison) || !CutToVocabulary(a_side, b_side, a, b, comparison))
    return;
  if (a.scalar_type() == b.scalar_type()) {
    comparison.difference = CompareBits(a, b);
  } else if (IsSmallFloat(a) && IsSmallFloat(b)) {
    const bool a_is_wider = DTypeOf(a) == checkpoint::DType::kFloat32;
    comparison.difference =
        a_is_wider ? CompareConverted(a, b, false) : CompareConverted(b, a, false);
    comparison.unequal =
        Format("types differ ({} and {}); the wider was rounded to the other",
               checkpoint::DTypeName(DTypeOf(a)), checkpoint::DTypeName(DTypeOf(b)));
  } else {
    comparison.unequal = Format("types differ: {} and {}", checkpoint::DTypeName(DTypeOf(a)),
                                checkpoint::DTypeName(DTypeOf(b)));
    return;
  }
  FindFactor(a, b, comparison);
}

void CompareWithMaster(const StateSide& a_side, const StateSide& b_side, bool a_is_master,
                       StateComparison& comparison) {
  comparison.shape = a_side.value.sizes().vec();
  at::Tensor a = a_side.value, b = b_side.value;
  if (!IsSmallFloat(a) || !IsSmallFloat(b)) {
    comparison.undecided = "weight and master have types that do not convert";
    return;
  }
  if (!IsWhole(a_side, b_side, comparison) || !CutToVocabulary(a_side, b_side, a, b, comparison))
    return;
  comparison.difference = a_is_master ? CompareConverted(a, b, true) : CompareConverted(b, a, true);
  if (a_is_master) return;
  // CompareConverted takes the master first; the words name a first.
  Difference& difference = comparison.difference;
  std::swap(difference.first_expected, difference.first_found);
  std::swap(difference.worst_expected, difference.worst_found);
}

std::string SentenceOf(const StateComparison& comparison) {
  std::vector<std::string> parts;
  if (!comparison.unequal.empty()) parts.push_back(comparison.unequal);
  if (!comparison.difference.equal()) parts.push_back(ValuesText(comparison));
  if (!comparison.undecided.empty()) parts.push_back(comparison.undecided);
  if (!comparison.padding.empty()) parts.push_back("padding rows: " + comparison.padding);
  const std::string how = comparison.how.empty() ? "" : " (" + comparison.how + ")";
  return comparison.name + " " + comparison.state + how + ": " + JoinText(parts, "; ");
}

ordered_json StateJson(const StateComparison& comparison) {
  const Difference& difference = comparison.difference;
  ordered_json json;
  json["name"] = comparison.name;
  json["state"] = comparison.state;
  json["text"] = SentenceOf(comparison);
  json["compared"] = difference.compared;
  json["differing"] = difference.differing;
  if (!comparison.how.empty()) json["how"] = comparison.how;
  if (!comparison.unequal.empty()) json["note"] = comparison.unequal;
  if (!comparison.padding.empty()) json["padding"] = comparison.padding;
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

}  // namespace certify
