// Which tensors are lost, and which another holder still has.
#include <algorithm>
#include <map>
#include <optional>

#include "certify/damage.h"
#include "certify/format.h"
#include "certify/report.h"

namespace certify {
namespace {

using nlohmann::ordered_json;

constexpr size_t kRangesShown = 4;

// The part of one shard that is damaged in one copy at least, and the part that no copy has.
struct ShardDamage {
  int64_t damaged = 0;
  Intervals lost;
  std::set<std::string> lost_in, intact_in;  // "FILE record data/3"
};

// One state of one tensor.
struct StateDamage {
  int64_t numel = 0, damaged = 0, lost = 0;
  std::vector<ShardDamage> shards;
};

std::string PlaceText(const oracle::Place& place) {
  return place.record.empty() ? place.file : place.file + " record " + place.record;
}

int64_t NumelOfCopy(const oracle::ShardCopy& copy) {
  int64_t numel = 0;
  for (const oracle::CopyPiece& piece : copy.pieces) numel += piece.numel;
  return numel;
}

ShardDamage AssessShard(const std::vector<oracle::ShardCopy>& copies, int64_t shard_numel,
                        const BadRecords& bad) {
  ShardDamage damage;
  damage.lost = {{0, shard_numel}};
  for (const oracle::ShardCopy& copy : copies) {
    Intervals damaged;
    int64_t begin = 0;
    for (const oracle::CopyPiece& piece : copy.pieces) {
      const bool is_bad = !piece.present || bad.count({piece.place.file, piece.place.record}) > 0;
      if (is_bad && piece.numel > 0) damaged.emplace_back(begin, begin + piece.numel);
      if (piece.present)
        (is_bad ? damage.lost_in : damage.intact_in).insert(PlaceText(piece.place));
      begin += piece.numel;
    }
    damage.damaged = std::max(damage.damaged, CountOf(damaged));
    damage.lost = Intersect(damage.lost, damaged);
  }
  if (copies.empty()) damage.damaged = shard_numel;
  return damage;
}

// Every tensor rank holds a copy of what is not split. Where files are missing, a rank without one
// has lost it with its file.
bool MissesACopy(const Subject& subject, const std::vector<oracle::ShardCopy>& copies) {
  const oracle::Summary& summary = subject.summary();
  const bool files_missing =
      std::any_of(summary.files.begin(), summary.files.end(),
                  [](const oracle::FileFact& fact) { return fact.expected && !fact.present; });
  if (!files_missing || summary.format == "deepspeed-universal") return false;
  std::set<int32_t> ranks;
  for (const oracle::ShardCopy& copy : copies) ranks.insert(copy.rank.tensor);
  return static_cast<int32_t>(ranks.size()) < summary.tensor_parallel;
}

std::optional<StateDamage> AssessState(const Subject& subject, size_t index,
                                       const std::string& state, const BadRecords& bad) {
  const auto copies = subject.oracle->CopiesOf(index, state);
  if (!copies.ok()) return std::nullopt;
  StateDamage damage;
  damage.numel = NumelOfShape(subject.tensors()[index].shape);
  const auto shards = static_cast<int64_t>(copies.value().size());
  for (const std::vector<oracle::ShardCopy>& shard : copies.value()) {
    const int64_t numel = shard.empty() ? damage.numel / shards : NumelOfCopy(shard.front());
    damage.shards.push_back(AssessShard(shard, numel, bad));
    if (shards == 1 && MissesACopy(subject, shard)) damage.shards.back().damaged = numel;
    damage.damaged += damage.shards.back().damaged;
    damage.lost += CountOf(damage.shards.back().lost);
  }
  return damage;
}

std::string RangesText(const Intervals& intervals) {
  std::vector<std::string> parts;
  for (const auto& [begin, end] : intervals) {
    if (parts.size() == kRangesShown) {
      parts.push_back(Format("{} more ranges", intervals.size() - kRangesShown));
      break;
    }
    parts.push_back(Format("{} to {}", begin, end - 1));
  }
  return JoinText(parts, ", ");
}

std::string Joined(const std::set<std::string>& texts) {
  return JoinText(std::vector<std::string>(texts.begin(), texts.end()), ", ");
}

// "tensor rank 1: elements 0 to 511 of its shard (FILE record data/3)".
std::string LostText(const StateDamage& damage) {
  std::vector<std::string> parts;
  for (size_t rank = 0; rank < damage.shards.size(); ++rank) {
    const ShardDamage& shard = damage.shards[rank];
    if (shard.lost.empty()) continue;
    std::string text = Format("elements {}", RangesText(shard.lost));
    if (damage.shards.size() > 1) text = Format("tensor rank {}: {} of its shard", rank, text);
    text += shard.lost_in.empty() ? " (their file is lost)" : " (" + Joined(shard.lost_in) + ")";
    parts.push_back(std::move(text));
  }
  return JoinText(parts, "; ");
}

std::string HoldersThatHave(const StateDamage& damage) {
  std::set<std::string> holders;
  for (const ShardDamage& shard : damage.shards)
    if (shard.damaged > 0) holders.insert(shard.intact_in.begin(), shard.intact_in.end());
  return Joined(holders);
}

struct Outcome {
  std::string word, text;
};

// What another state of the same tensor still says of a lost one; empty: nothing.
Outcome FromOtherState(const oracle::TensorInfo& info, const std::string& state,
                       const std::map<std::string, StateDamage>& states) {
  const auto is_whole = [&](const char* other) {
    const auto found = states.find(other);
    return found != states.end() && found->second.lost == 0;
  };
  if (state == oracle::kWeight && is_whole(oracle::kMaster))
    return {"rebuildable", "the weight is its fp32_master rounded, and that is intact"};
  if (state != oracle::kMaster || !is_whole(oracle::kWeight)) return {};
  if (info.states.at(oracle::kWeight) == checkpoint::DType::kFloat32)
    return {"rebuildable", "the weight is fp32 and intact, and is its own master"};
  return {"approximate",
          "the weight is intact, but it is the master rounded: what rounding took is lost"};
}

Outcome Judge(const oracle::TensorInfo& info, const std::string& state,
              const std::map<std::string, StateDamage>& states) {
  const StateDamage& damage = states.at(state);
  if (damage.lost == 0)
    return {"rebuildable",
            Format("{} of {} elements are damaged or missing in one holder; intact in {}",
                   damage.damaged, damage.numel, HoldersThatHave(damage))};
  Outcome outcome = FromOtherState(info, state, states);
  const std::string lost = Format("{} of {} elements are in no intact record: {}", damage.lost,
                                  damage.numel, LostText(damage));
  if (!outcome.word.empty()) return {outcome.word, lost + "; " + outcome.text};
  return {damage.lost == damage.numel ? "lost" : "partly lost", lost};
}

}  // namespace

Intervals Intersect(const Intervals& a, const Intervals& b) {
  Intervals both;
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    const int64_t begin = std::max(a[i].first, b[j].first);
    const int64_t end = std::min(a[i].second, b[j].second);
    if (begin < end) both.emplace_back(begin, end);
    a[i].second < b[j].second ? ++i : ++j;
  }
  return both;
}

int64_t CountOf(const Intervals& intervals) {
  int64_t count = 0;
  for (const auto& [begin, end] : intervals) count += end - begin;
  return count;
}

ordered_json DamagedTensors(const Subject& subject, const BadRecords& bad) {
  ordered_json tensors = ordered_json::array();
  for (size_t i = 0; i < subject.tensors().size(); ++i) {
    const oracle::TensorInfo& info = subject.tensors()[i];
    if (!subject.IsJudged(i) || NumelOfShape(info.shape) == 0) continue;
    std::map<std::string, StateDamage> states;
    for (const std::string& state : StateOrder(info))
      if (auto damage = AssessState(subject, i, state, bad)) states[state] = *damage;
    for (const std::string& state : StateOrder(info)) {
      const auto found = states.find(state);
      if (found == states.end() || found->second.damaged == 0) continue;
      const Outcome outcome = Judge(info, state, states);
      tensors.push_back(
          {{"name", info.name},
           {"state", state},
           {"outcome", outcome.word},
           {"lost", found->second.lost},
           {"numel", found->second.numel},
           {"text", info.name + " " + state + ": " + outcome.word + ": " + outcome.text}});
    }
  }
  return tensors;
}

}  // namespace certify
