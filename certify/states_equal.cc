// Laws R2, weights equal, and R3, masters equal; what they share with R4. Covers: bits of every
// state of every tensor that both sides have, vocabulary padding where both have it. Does not
// cover: vocabulary padding rows of one side alone, which R7 lists.
#include <ATen/Tensor.h>

#include <algorithm>
#include <set>

#include "certify/format.h"
#include "certify/holder_map.h"
#include "certify/pair_laws.h"

namespace certify {
namespace {

bool HasState(const Subject& subject, const char* state) {
  return std::any_of(
      subject.tensors().begin(), subject.tensors().end(),
      [state](const oracle::TensorInfo& info) { return info.states.count(state) > 0; });
}

bool IsConvertible(const at::Tensor& expected, const at::Tensor& found) {
  return IsSmallFloat(expected) && IsSmallFloat(found);
}

// "; the shard of tp0 is what tp1 should hold, ..." where the shards of a tensor are only in
// another order.
std::string PermutedShardsText(const at::Tensor& expected, const at::Tensor& found,
                               int64_t dimension, int64_t ranks) {
  if (dimension < 0 || ranks < 2 || expected.scalar_type() != found.scalar_type() ||
      expected.sizes() != found.sizes() || dimension >= expected.dim() ||
      expected.size(dimension) % ranks != 0)
    return "";
  const int64_t extent = expected.size(dimension) / ranks;
  const auto shard = [&](const at::Tensor& tensor, int64_t rank) {
    return tensor.narrow(dimension, rank * extent, extent).contiguous();
  };
  std::string text;
  for (int64_t i = 0; i < ranks; ++i) {
    int64_t from = -1;
    for (int64_t j = 0; j < ranks && from < 0; ++j)
      if (CompareBits(shard(expected, j), shard(found, i)).equal()) from = j;
    if (from < 0) return "";
    if (from != i)
      text += Format("{} tp{} holds what tp{} should", text.empty() ? ";" : ",", i, from);
  }
  return text;
}

}  // namespace

StatesEqual::StatesEqual(const Subject& source, const Subject& target,
                         std::optional<double> moments_factor)
    : source_(source),
      target_(target),
      source_by_name_(ByCanonicalName(source)),
      factor_(moments_factor),
      factor_origin_("declared"),
      qkv_doubt_(QkvOrderDoubt(source.summary(), target.summary())),
      weights_("R2"),
      masters_("R3"),
      moments_("R4") {
  if (factor_) return;
  factor_ = LossScaleBetween(source.summary(), target.summary());
  factor_origin_ = "the loss scale, which fp16 at stage 0 does not apply";
}

std::optional<StatesEqual::Rule> StatesEqual::RuleFor(const oracle::TensorInfo& source,
                                                      const oracle::TensorInfo& target,
                                                      const std::string& state) const {
  const auto found = source.states.find(state);
  const bool has = found != source.states.end();
  if (state == oracle::kWeight) {
    if (has && found->second == target.states.at(state)) return Rule{state, ""};
    if (source.role == oracle::Role::kTrainable && source.states.count(oracle::kMaster) > 0)
      return Rule{oracle::kMaster, "the source's masters rounded to nearest even"};
    if (has) return Rule{state, "the source's weights converted"};
    return std::nullopt;
  }
  if (has) return Rule{state, ""};
  if (state == oracle::kMaster && source.states.count(oracle::kWeight) > 0)
    return Rule{oracle::kWeight, "the source's weights, which has no masters"};
  return std::nullopt;
}

Report& StatesEqual::ReportOf(const std::string& state) {
  if (state == oracle::kWeight) return weights_;
  return state == oracle::kMaster ? masters_ : moments_;
}

void StatesEqual::Note(std::string kind, size_t target_index, const std::string& state,
                       std::string text) {
  Finding finding;
  finding.kind = std::move(kind);
  finding.tensor = target_.tensors()[target_index].name;
  finding.state = state;
  finding.text = std::move(text);
  const std::lock_guard<std::mutex> lock(mutex_);
  rest_.push_back(std::move(finding));
}

checkpoint::Result<oracle::Assembled> StatesEqual::AssembleSource(size_t index,
                                                                  const std::string& state) const {
  auto assembled = source_.oracle->Assemble(index, state);
  if (assembled.ok() && source_hook_) source_hook_(index, state, assembled.value());
  return assembled;
}

void StatesEqual::Visit(size_t target_index, const std::string& state,
                        const oracle::Assembled& assembled) {
  const oracle::TensorInfo& target = target_.tensors()[target_index];
  const auto match = source_by_name_.find(target.canonical);
  if (match == source_by_name_.end()) return;  // R1 reports it
  const oracle::TensorInfo& source = source_.tensors()[match->second];
  Report& report = ReportOf(state);
  const auto rule = RuleFor(source, target, state);
  if (!rule) {
    VisitMadeUp(target_index, state, assembled.value);
    return;
  }
  if (InDoubt(source, target)) return;
  auto expected = AssembleSource(match->second, rule->source_state);
  if (!expected.ok()) {
    report.Incomplete(Format("{} of {} cannot be put together from the source: {}",
                             rule->source_state, source.name, expected.error().ToString()));
    return;
  }
  if (expected.value().covered != expected.value().value.numel() ||
      assembled.covered != assembled.value.numel()) {
    report.Incomplete(Format("{} of {} is not whole", state, target.name));
    return;
  }
  Pair pair{target_index, state, *rule, expected.value().value, assembled.value};
  if (!CutToCommonRows(match->second, pair)) {
    report.Incomplete(Format("{} has another shape in the target", target.name));
    return;
  }
  if (&report == &moments_) {
    CompareMoments(pair);
  } else {
    CompareValues(pair);
  }
}

// The source has nothing that this state could follow from.
void StatesEqual::VisitMadeUp(size_t target_index, const std::string& state,
                              const at::Tensor& value) {
  if (value.numel() == 0) return;
  const std::string& name = target_.tensors()[target_index].name;
  const int64_t nonzero = value.count_nonzero().item<int64_t>();
  if (nonzero == 0) {
    Note("made-up", target_index, state,
         Format("{} of {} is made up (zeros): the source has none", state, name));
    return;
  }
  Finding finding;
  finding.fault = true;
  finding.kind = "state-made-up";
  finding.tensor = name;
  finding.state = state;
  finding.count = nonzero;
  finding.text = Format("{} of {} is in the target alone, and not zero", state, name);
  ReportOf(state).Add(std::move(finding), static_cast<int64_t>(target_index));
}

bool StatesEqual::CutToCommonRows(size_t source_index, Pair& pair) {
  if (pair.expected.sizes() == pair.found.sizes()) return true;
  const oracle::TensorInfo& target = target_.tensors()[pair.target_index];
  const oracle::TensorInfo& source = source_.tensors()[source_index];
  const bool vocabulary = source.vocabulary_rows >= 0 || target.vocabulary_rows >= 0;
  if (!vocabulary || pair.expected.dim() == 0 || pair.expected.dim() != pair.found.dim() ||
      pair.expected.sizes().slice(1) != pair.found.sizes().slice(1))
    return false;
  const int64_t source_rows = pair.expected.size(0), target_rows = pair.found.size(0);
  const int64_t common = std::min(source_rows, target_rows);
  if (common < std::max(source.vocabulary_rows, target.vocabulary_rows)) return false;
  if (target_rows > common) {
    const at::Tensor extra = pair.found.narrow(0, common, target_rows - common);
    const bool zeros = extra.count_nonzero().item<int64_t>() == 0;
    Note("made-up", pair.target_index, pair.state,
         Format("{} of {}: vocabulary padding rows {} to {} are made up ({})", pair.state,
                target.name, common, target_rows - 1, zeros ? "zeros" : "not zeros"));
  } else {
    Note("dropped", pair.target_index, pair.state,
         Format("{} of {}: vocabulary padding rows {} to {} of the source are dropped", pair.state,
                target.name, common, source_rows - 1));
  }
  pair.expected = pair.expected.narrow(0, 0, common);
  pair.found = pair.found.narrow(0, 0, common);
  return true;
}

void StatesEqual::CompareValues(const Pair& pair) {
  Report& report = ReportOf(pair.state);
  if (pair.expected.scalar_type() == pair.found.scalar_type() &&
      (pair.rule.words.empty() || !IsConvertible(pair.expected, pair.found))) {
    AddDifference(pair, CompareBits(pair.expected, pair.found));
  } else if (IsConvertible(pair.expected, pair.found)) {
    AddDifference(pair, CompareConverted(pair.expected, pair.found, true));
  } else {
    report.Incomplete(Format("{} of {} has a type that cannot be compared", pair.state,
                             target_.tensors()[pair.target_index].name));
  }
}

void StatesEqual::AddDifference(const Pair& pair, const Difference& difference) {
  Report& report = ReportOf(pair.state);
  report.Compared(difference.compared);
  if (difference.equal()) return;
  const oracle::TensorInfo& info = target_.tensors()[pair.target_index];
  Finding finding;
  finding.fault = true;
  finding.kind = pair.state + "-differs";
  finding.tensor = info.name;
  finding.state = pair.state;
  finding.first_index = difference.first_index;
  finding.count = difference.differing;
  finding.text = Format("{} of {}{}: {}", pair.state, info.name,
                        pair.rule.words.empty() ? "" : " against " + pair.rule.words,
                        DifferenceText(difference));
  finding.text += PermutedShardsText(pair.expected, pair.found, info.partition_dim,
                                     target_.summary().tensor_parallel);
  if (pair.expected.scalar_type() == pair.found.scalar_type()) {
    std::vector<bool> marked;
    CompareBits(pair.expected, pair.found, &marked);
    // Rows that the source lacks were not compared.
    marked.resize(static_cast<size_t>(NumelOfShape(info.shape)), false);
    const auto shares = SharesOfHolders(target_, pair.target_index, pair.state, marked);
    finding.text += HoldersText(shares);
    const auto first = std::find_if(shares.begin(), shares.end(),
                                    [](const HolderShare& share) { return share.marked > 0; });
    if (first != shares.end()) finding = WithPlace(std::move(finding), first->place);
  }
  report.Add(std::move(finding), static_cast<int64_t>(pair.target_index));
}

// The target keeps no weight of this parameter (universal folders): the source's weight must be the
// target's master, rounded.
void StatesEqual::CompareWeightWithMaster(size_t source_index, size_t target_index) {
  const auto weight = AssembleSource(source_index, oracle::kWeight);
  const auto master = target_.oracle->Assemble(target_index, oracle::kMaster);
  const std::string& name = target_.tensors()[target_index].name;
  if (!weight.ok() || !master.ok()) {
    weights_.Incomplete(Format("weight of {} cannot be put together", name));
    return;
  }
  Pair pair{target_index,
            oracle::kWeight,
            {oracle::kMaster, "the target's masters rounded to nearest even"},
            weight.value().value,
            master.value().value};
  if (!CutToCommonRows(source_index, pair) || !IsConvertible(pair.expected, pair.found)) {
    weights_.Incomplete(Format("weight of {} cannot be compared", name));
    return;
  }
  std::swap(pair.expected, pair.found);
  AddDifference(pair, CompareConverted(pair.expected, pair.found, true));
}

// States of the source that the target lacks.
void StatesEqual::JudgeMissingStates() {
  if (missing_judged_) return;
  missing_judged_ = true;
  for (size_t i = 0; i < target_.tensors().size(); ++i) {
    const oracle::TensorInfo& target = target_.tensors()[i];
    const auto match = source_by_name_.find(target.canonical);
    if (!target_.IsJudged(i) || match == source_by_name_.end()) continue;
    const oracle::TensorInfo& source = source_.tensors()[match->second];
    if (NumelOfShape(source.shape) == 0) continue;
    const auto weight = target.states.find(oracle::kWeight);
    for (const auto& [state, dtype] : source.states) {
      if (target.states.count(state) > 0) continue;
      if (state == oracle::kWeight && target.states.count(oracle::kMaster) > 0) {
        if (!InDoubt(source, target)) CompareWeightWithMaster(match->second, i);
        continue;
      }
      // Weights in fp32 are their own masters; R2 compared them with the source's masters.
      if (state == oracle::kMaster && weight != target.states.end() &&
          weight->second == checkpoint::DType::kFloat32)
        continue;
      Finding finding;
      finding.fault = true;
      finding.kind = "state-missing";
      finding.tensor = target.name;
      finding.state = state;
      finding.count = NumelOfShape(source.shape);
      finding.text = Format("the target has no {} of {}", state, target.name);
      ReportOf(state).Add(std::move(finding), static_cast<int64_t>(i));
    }
  }
}

bool StatesEqual::InDoubt(const oracle::TensorInfo& source,
                          const oracle::TensorInfo& target) const {
  return !qkv_doubt_.empty() && (source.fused_qkv || target.fused_qkv);
}

void StatesEqual::ReportDoubt(Report& report) const {
  Finding finding;
  for (size_t i = 0; i < target_.tensors().size(); ++i) {
    const oracle::TensorInfo& target = target_.tensors()[i];
    const auto match = source_by_name_.find(target.canonical);
    if (target_.IsJudged(i) && match != source_by_name_.end() &&
        InDoubt(source_.tensors()[match->second], target))
      finding.entries.push_back(target.name);
  }
  if (finding.entries.empty()) return;
  report.Incomplete(qkv_doubt_);
  finding.kind = "qkv-order-undeclared";
  finding.count = static_cast<int64_t>(finding.entries.size());
  finding.text = Format("{} tensors were not compared: {}", finding.count, qkv_doubt_);
  report.Add(std::move(finding), -1);
}

// A declared rule that splits a tensor otherwise than the files say makes both sides be read
// wrongly in the same manner, so that equal bits prove nothing where the shards were joined.
void StatesEqual::ReportRulesInDoubt(Report& report) const {
  const oracle::Summary &source = source_.summary(), &target = target_.summary();
  const bool joined = source.tensor_parallel != target.tensor_parallel ||
                      source.format != target.format || source.layout != target.layout;
  if (!joined || std::max(source.tensor_parallel, target.tensor_parallel) < 2) return;
  for (size_t i = 0; i < source_.tensors().size(); ++i) {
    const oracle::TensorInfo& info = source_.tensors()[i];
    if (info.rule_in_doubt.empty() || !source_.IsJudged(i)) continue;
    report.Incomplete(
        Format("{} is read as the rules say, against the source's own files: {}; nothing tells "
               "which is right",
               info.name, info.rule_in_doubt));
  }
}

LawResult StatesEqual::FinishWeights() {
  JudgeMissingStates();
  if (!HasState(source_, oracle::kWeight) && !HasState(target_, oracle::kWeight)) {
    weights_.NotApplicable("neither side keeps weights");
  } else {
    target_.ReportLeftOut(weights_);
    ReportDoubt(weights_);
    ReportRulesInDoubt(weights_);
  }
  return weights_.Finish();
}

LawResult StatesEqual::FinishMasters() {
  JudgeMissingStates();
  target_.ReportLeftOut(masters_);
  ReportDoubt(masters_);
  ReportRulesInDoubt(masters_);
  if (!HasState(source_, oracle::kMaster) && !HasState(target_, oracle::kMaster)) {
    masters_.NotApplicable("neither side keeps fp32 masters");
  } else if (!HasState(target_, oracle::kMaster)) {
    masters_.NotApplicable(
        "the target's weights are fp32 and their own masters; R2 compared them with the source's "
        "masters");
  }
  return masters_.Finish();
}

}  // namespace certify
