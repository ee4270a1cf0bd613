// Alignment padding of flat groups, accounted for to the element. The recorded `group_paddings` are
// compared, never used.
#include <algorithm>
#include <numeric>

#include "checkpoint/tree.h"
#include "oracle/partitions.h"

namespace oracle {

using checkpoint::Status;
using checkpoint::Value;

namespace {

// What one rank's files say about the padding of one group.
struct StoredPadding {
  std::optional<int64_t> recorded;
  int64_t master_numel = -1;  // -1: absent
  std::map<std::string, int64_t> moment_numel;
  int64_t nonzero = 0;
};

std::optional<int64_t> RecordedPadding(const Value& dictionary, int32_t position) {
  const auto list = checkpoint::AsIntList(checkpoint::Get(dictionary, "group_paddings"));
  if (!list || position >= static_cast<int32_t>(list->size())) return std::nullopt;
  return (*list)[static_cast<size_t>(position)];
}

// Elements of the flat group that no parameter owns, inside one partition, as [begin, end) relative
// to it.
std::vector<std::pair<int64_t, int64_t>> GapsOf(const GroupLayout& layout, int64_t begin,
                                                int64_t numel) {
  std::vector<std::pair<int64_t, int64_t>> gaps;
  int64_t reached = 0;
  const auto add = [&](int64_t first, int64_t last) {
    first = std::max(first, begin);
    last = std::min(last, begin + numel);
    if (first < last) gaps.emplace_back(first - begin, last - begin);
  };
  for (const Member& member : layout.members) {
    add(reached, member.start);
    reached = member.start + member.numel();
  }
  add(reached, begin + numel);
  return gaps;
}

int64_t CountNonzero(const at::Tensor& flat, const std::vector<std::pair<int64_t, int64_t>>& gaps) {
  int64_t count = 0;
  for (const auto& [begin, end] : gaps) {
    const int64_t last = std::min(end, flat.numel());
    if (begin < last) count += flat.narrow(0, begin, last - begin).ne(0).sum().item<int64_t>();
  }
  return count;
}

checkpoint::Result<StoredPadding> ReadStoredPadding(const Draft& draft, const RankFiles& rank,
                                                    const GroupFacts& facts,
                                                    const GroupLayout& layout, size_t data) {
  StoredPadding stored;
  const Value& dictionary = rank.dictionaries[data];
  stored.recorded = RecordedPadding(dictionary, facts.position);
  const auto gaps =
      GapsOf(layout, static_cast<int64_t>(data) * facts.partition_numel, facts.partition_numel);
  std::vector<std::string> states = StateKeys(dictionary, facts.position);
  states.insert(states.begin(), kMaster);
  for (const std::string& state : states) {
    const Value value = PartitionValue(dictionary, facts.position, state);
    if (!checkpoint::IsTensor(value)) continue;
    CK_TRY(const Stored tensor, draft.source.TensorAt(rank.files[data], rank.RankOf(data), value));
    if (tensor.view.shape.size() != 1) continue;
    const int64_t numel = tensor.view.numel();
    (state == kMaster ? stored.master_numel : stored.moment_numel[state]) = numel;
    stored.nonzero += CountNonzero(TensorOf(tensor.view), gaps);
  }
  return stored;
}

// Older versions wrote the whole padding on the last rank and nothing elsewhere.
bool IsHistoricRecord(const std::vector<StoredPadding>& ranks, int64_t total) {
  for (size_t data = 0; data < ranks.size(); ++data) {
    const bool last = data + 1 == ranks.size();
    if (ranks[data].recorded && *ranks[data].recorded != (last ? total : 0)) return false;
  }
  return true;
}

std::string LengthProblem(const GroupFacts& facts, const StoredPadding& stored,
                          int64_t real_numel) {
  const int64_t full = facts.partition_numel;
  const int64_t master_expected = facts.keeps_padding ? full : real_numel;
  const bool longer_but_zero =
      stored.master_numel > real_numel && stored.master_numel <= full && stored.nonzero == 0;
  if (stored.master_numel >= 0 && stored.master_numel != master_expected && !longer_but_zero) {
    return "fp32 partition of " + std::to_string(stored.master_numel) + " elements, expected " +
           std::to_string(master_expected);
  }
  const int64_t moment_expected = facts.elastic ? real_numel : full;
  for (const auto& [state, numel] : stored.moment_numel) {
    const bool zero_padded = numel > moment_expected && numel <= full && stored.nonzero == 0;
    if (numel != moment_expected && !zero_padded) {
      return state + " partition of " + std::to_string(numel) + " elements, expected " +
             std::to_string(moment_expected);
    }
  }
  if (stored.nonzero > 0)
    return std::to_string(stored.nonzero) + " elements of alignment padding are not zero";
  return "";
}

}  // namespace

Status AccountForPadding(Draft& draft, const RankFiles& rank, const GroupFacts& facts,
                         const GroupLayout& layout, int32_t group) {
  const int64_t count = facts.partition_count, full = facts.partition_numel;
  const int64_t by_rule = PartitionNumel(layout.numel, count);
  std::vector<StoredPadding> ranks(static_cast<size_t>(count));
  for (size_t data = 0; data < ranks.size() && data < rank.dictionaries.size(); ++data) {
    if (!rank.dictionaries[data]) continue;
    CK_TRY(ranks[data], ReadStoredPadding(draft, rank, facts, layout, data));
  }
  const bool historic = IsHistoricRecord(ranks, full * count - layout.numel);
  bool historic_used = false, longer_used = false;
  for (size_t data = 0; data < ranks.size() && data < rank.dictionaries.size(); ++data) {
    if (!rank.dictionaries[data]) continue;
    const StoredPadding& stored = ranks[data];
    PaddingAccount account;
    account.place = draft.source.PlaceOf(rank.files[data], rank.RankOf(data));
    account.group = group;
    account.real_numel =
        std::clamp<int64_t>(layout.numel - static_cast<int64_t>(data) * full, 0, full);
    account.stored_numel = std::max<int64_t>(stored.master_numel, 0);
    account.expected_padding = full - account.real_numel;
    account.recorded_padding = stored.recorded.value_or(account.expected_padding);
    account.nonzero = stored.nonzero;
    account.problem = LengthProblem(facts, stored, account.real_numel);
    if (account.problem.empty() && full != by_rule &&
        full * count != (layout.numel + count - 1) / count * count) {
      account.problem = "partitions of " + std::to_string(full) + " elements, expected " +
                        std::to_string(by_rule) + " for " + std::to_string(layout.numel) +
                        " elements on " + std::to_string(count) + " ranks";
    }
    if (account.recorded_padding != account.expected_padding) {
      historic_used = historic_used || historic;
      if (!historic && account.problem.empty()) {
        account.problem = "recorded padding " + std::to_string(account.recorded_padding) +
                          ", expected " + std::to_string(account.expected_padding);
      }
    }
    longer_used =
        longer_used || (!facts.keeps_padding && stored.master_numel > account.real_numel &&
                        account.problem.empty());
    draft.summary.padding.push_back(std::move(account));
  }
  const Place place = rank.FirstPlace(draft.source);
  if (historic_used) {
    draft.Note(
        "historic-padding-record",
        "group " + std::to_string(group) +
            ": the whole alignment padding is recorded on the last data rank, as older versions "
            "did; the exact values were recomputed",
        {}, place);
  }
  if (longer_used) {
    draft.Note(
        "historic-padding-kept",
        "group " + std::to_string(group) +
            ": fp32 partitions hold alignment padding that newer versions cut off; it is zero",
        {}, place);
  }
  return checkpoint::Done{};
}

}  // namespace oracle
