// Differences between any two checkpoints in logical space, matched by canonical name.
#include "certify/compare.h"

#include <ATen/Parallel.h>
#include <ATen/Tensor.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "certify/certify.h"
#include "certify/compare_state.h"
#include "certify/format.h"
#include "certify/json_text.h"
#include "certify/pair_laws.h"
#include "certify/parallel.h"
#include "certify/whole_files.h"

namespace certify {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kBytesPerElement = 16;
constexpr double kFactorSpread = 1e-5;
constexpr double kSquareSpread = 1e-4;
constexpr double kNormSpread = 0.2;

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

// A checkpoint of which nothing may be claimed where a file is missing.
struct Side {
  const Subject& subject;
  const char* letter;
  std::vector<WholeNotice> missing;
  bool rows_known = true;

  bool MissesFiles() const {
    return std::any_of(missing.begin(), missing.end(),
                       [](const WholeNotice& notice) { return notice.kind == "missing-file"; });
  }
  const oracle::TensorInfo& Info(size_t index) const { return subject.tensors()[index]; }
};

Side MakeSide(const Subject& subject, const char* letter) {
  Side side{subject, letter, WhatIsMissing(subject)};
  for (const oracle::Finding& finding : subject.summary().findings)
    side.rows_known = side.rows_known && finding.kind != "vocabulary-size-unknown";
  return side;
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

class Comparer {
 public:
  Comparer(const Subject& a, const Subject& b)
      : a_(MakeSide(a, "a")), b_(MakeSide(b, "b")), names_(MatchNames(a, b)) {
    const oracle::Summary &x = a.summary(), &y = b.summary();
    const int32_t a_shards = QkvShards(x), b_shards = QkvShards(y);
    const bool declared = x.qkv_layout && y.qkv_layout;
    if (!declared && a_shards != b_shards)
      qkv_doubt_ = Format(
          "rows of fused QKV were dealt out over {} ranks in a and {} in b, and their order is not "
          "declared: declare --qkv-layout or in --rules",
          a_shards, b_shards);
  }

  checkpoint::Status Run(int32_t threads) {
    by_tensor_.resize(names_.common.size());
    ParallelOptions parallel;
    parallel.threads = threads;
    parallel.bytes_of = [&](int64_t item) {
      return kBytesPerElement *
             NumelOfShape(a_.Info(names_.common[static_cast<size_t>(item)].first).shape);
    };
    return ParallelFor(static_cast<int64_t>(names_.common.size()), parallel,
                       [&](int64_t item) -> checkpoint::Status {
                         CompareTensor(static_cast<size_t>(item));
                         return checkpoint::Done{};
                       });
  }

  ordered_json Finish() {
    for (size_t i = 0; i < names_.common.size(); ++i) AddTensor(i);
    different_ = different_ || (!names_.only_a.empty() && !b_.MissesFiles()) ||
                 (!names_.only_b.empty() && !a_.MissesFiles());
    for (const Side* side : {&a_, &b_})
      for (const WholeNotice& notice : side->missing)
        AddUndecided("", std::string(side->letter) + " is not complete: " + notice.text);
    if (!in_doubt_.empty()) {
      AddUndecided("", Format("{} tensors were not compared: {}", in_doubt_.size(), qkv_doubt_));
      undecided_.back()["names"] = in_doubt_;
    }
    if (compared_ == 0 && undecided_.empty()) AddUndecided("", "nothing was compared");
    const bool same = !different_ && undecided_.empty();
    ordered_json json;
    json["verdict"] = different_ ? "different" : same ? "same" : "undecided";
    json["equal"] = same;
    json["compared"] = compared_;
    json["differing"] = differing_;
    json["states"] = StatesJson(all_);
    json["constant_factor"] = ConstantFactorJson(json["states"]);
    json["only_in_a"] = names_.only_a;
    json["only_in_b"] = names_.only_b;
    json["states_of_one_side"] = one_sided_;
    json["tensors"] = std::move(tensors_);
    json["padding"] = std::move(padding_);
    json["undecided"] = std::move(undecided_);
    json["notices"] = Notices();
    return CleanText(json);
  }

 private:
  bool InDoubt(const std::pair<size_t, size_t>& pair) const {
    return !qkv_doubt_.empty() && (a_.Info(pair.first).fused_qkv || b_.Info(pair.second).fused_qkv);
  }

  static std::optional<StateSide> Assemble(const Side& side, size_t index, const std::string& state,
                                           StateComparison& comparison) {
    auto assembled = side.subject.oracle->Assemble(index, state);
    if (!assembled.ok()) {
      comparison.undecided =
          std::string(side.letter) + " cannot be put together: " + assembled.error().ToString();
      return std::nullopt;
    }
    return StateSide{assembled.value().value, assembled.value().covered,
                     side.Info(index).vocabulary_rows, side.rows_known};
  }

  // What the state of one side is compared with on the other; empty: nothing there says it.
  static std::string Counterpart(const std::string& state, const oracle::TensorInfo& other) {
    if (other.states.count(state) > 0) return state;
    if (state == oracle::kWeight && other.states.count(oracle::kMaster) > 0) return oracle::kMaster;
    const auto weight = other.states.find(oracle::kWeight);
    const bool own_master = state == oracle::kMaster && weight != other.states.end() &&
                            weight->second == checkpoint::DType::kFloat32;
    return own_master ? oracle::kWeight : "";
  }

  void CompareTensor(size_t item) {
    const auto& pair = names_.common[item];
    if (InDoubt(pair)) return;
    const oracle::TensorInfo &x = a_.Info(pair.first), &y = b_.Info(pair.second);
    for (const std::string& state : StateOrder(x)) {
      const std::string other = Counterpart(state, y);
      if (!other.empty()) CompareOne(item, state, other);
    }
    for (const std::string& state : StateOrder(y)) {
      const std::string other = Counterpart(state, x);
      if (!other.empty() && other != state) CompareOne(item, other, state);
    }
  }

  void CompareOne(size_t item, const std::string& a_state, const std::string& b_state) {
    const auto& [a_index, b_index] = names_.common[item];
    StateComparison comparison;
    comparison.name = a_.Info(a_index).canonical;
    comparison.state = a_state;
    if (a_state != b_state)
      comparison.how = Format("{} of a, {} of b, the master rounded", a_state, b_state);
    const auto x = Assemble(a_, a_index, a_state, comparison);
    const auto y = Assemble(b_, b_index, b_state, comparison);
    if (x && y && a_state == b_state) CompareState(*x, *y, comparison);
    if (x && y && a_state != b_state)
      CompareWithMaster(*x, *y, a_state == oracle::kMaster, comparison);
    by_tensor_[item].push_back(std::move(comparison));
  }

  void AddUndecided(const std::string& name, const std::string& text) {
    ordered_json entry;
    if (!name.empty()) entry["name"] = name;
    entry["text"] = text;
    undecided_.push_back(std::move(entry));
  }

  void AddOneSided(const Side& side, const Side& other, const oracle::TensorInfo& info,
                   const oracle::TensorInfo& other_info) {
    for (const auto& [state, dtype] : info.states) {
      if (!Counterpart(state, other_info).empty()) continue;
      one_sided_.push_back(info.canonical + " " + state + ": in " + side.letter + " only");
      different_ = different_ || !other.MissesFiles();
    }
  }

  void AddTensor(size_t item) {
    const auto& pair = names_.common[item];
    const oracle::TensorInfo &x = a_.Info(pair.first), &y = b_.Info(pair.second);
    AddOneSided(a_, b_, x, y);
    AddOneSided(b_, a_, y, x);
    if (InDoubt(pair)) in_doubt_.push_back(x.canonical);
    for (StateComparison& comparison : by_tensor_[item]) {
      compared_ += comparison.difference.compared + comparison.padding_compared;
      differing_ += comparison.difference.differing;
      different_ = different_ || comparison.different();
      if (comparison.different()) tensors_.push_back(StateJson(comparison));
      if (!comparison.undecided.empty()) AddUndecided(comparison.name, SentenceOf(comparison));
      if (!comparison.padding.empty())
        padding_.push_back({{"name", comparison.name},
                            {"state", comparison.state},
                            {"text", comparison.name + " " + comparison.state +
                                         ": padding rows: " + comparison.padding}});
      all_.push_back(std::move(comparison));
    }
  }

  ordered_json Notices() const {
    ordered_json notices = ordered_json::array();
    for (const Side* side : {&a_, &b_})
      for (const WholeNotice& notice : UnprovedFiles(side->subject))
        notices.push_back({{"kind", notice.kind},
                           {"text", std::string(side->letter) + ": " + notice.text},
                           {"names", notice.names}});
    return notices;
  }

  const Side a_, b_;
  const Names names_;
  std::string qkv_doubt_;  // empty: the order of fused QKV is no question
  std::vector<std::vector<StateComparison>> by_tensor_;
  std::vector<StateComparison> all_;
  int64_t compared_ = 0, differing_ = 0;
  bool different_ = false;
  std::vector<std::string> one_sided_, in_doubt_;
  ordered_json tensors_ = ordered_json::array(), padding_ = ordered_json::array(),
               undecided_ = ordered_json::array();
};

}  // namespace

checkpoint::Result<ordered_json> CompareSubjects(const Subject& a, const Subject& b,
                                                 int32_t threads) {
  // A pattern may be of one side's names.
  const auto a_selected = a.CheckAnySelected();
  if (!a_selected.ok() && !b.CheckAnySelected().ok()) return a_selected.error();
  CK_DO(CheckRecordSums(a, threads));
  CK_DO(CheckRecordSums(b, threads));
  Comparer comparer(a, b);
  CK_DO(comparer.Run(threads));
  return comparer.Finish();
}

checkpoint::Result<ordered_json> Compare(const std::filesystem::path& a_path,
                                         const std::filesystem::path& b_path,
                                         const Declared& a_declared, const Declared& b_declared) {
  at::set_num_threads(1);
  CK_TRY(const Subject a, OpenSubject(a_path, a_declared));
  CK_TRY(const Subject b, OpenSubject(b_path, b_declared));
  return CompareSubjects(a, b, a_declared.threads);
}

}  // namespace certify
