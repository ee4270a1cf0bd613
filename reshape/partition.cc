#include "reshape/partition.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshape {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Every stored size lies between the real and the padded one, and all parameters have room.
bool Fits(const PartitionForm& form, const PartitionEvidence& evidence) {
  if (form.partition_numel * form.partition_count < form.group_numel) return false;
  for (size_t rank = 0; rank < evidence.stored.size(); ++rank) {
    const int64_t real = RealNumel(form, static_cast<int64_t>(rank));
    if (evidence.stored[rank] < real || evidence.stored[rank] > form.partition_numel) return false;
  }
  for (const int64_t numel : evidence.padded) {
    if (numel != form.partition_numel) return false;
  }
  return true;
}

}  // namespace

PartitionForm MakePartitionForm(int64_t group_numel, int64_t partition_count) {
  const int64_t aligned = RoundUp(group_numel, kAlignmentPerRank * partition_count);
  return {group_numel, partition_count, aligned / partition_count};
}

int64_t RealNumel(const PartitionForm& form, int64_t rank) {
  return std::clamp<int64_t>(form.group_numel - rank * form.partition_numel, 0,
                             form.partition_numel);
}

checkpoint::Result<PartitionForm> FindPartitionForm(const PartitionEvidence& evidence,
                                                    const std::string& where) {
  int64_t stored = 0, largest = 0;
  for (const int64_t numel : evidence.stored) {
    stored += numel;
    largest = std::max(largest, numel);
  }
  const int64_t group_numel = evidence.group_numel >= 0 ? evidence.group_numel : stored;
  std::vector<int64_t> candidates{
      MakePartitionForm(group_numel, evidence.partition_count).partition_numel};
  if (!evidence.padded.empty()) candidates.push_back(evidence.padded.front());
  // Versions before the communication alignment padded to the number of ranks only.
  candidates.push_back(RoundUp(group_numel, evidence.partition_count) / evidence.partition_count);
  candidates.push_back(largest);
  for (const int64_t candidate : candidates) {
    const PartitionForm form{group_numel, evidence.partition_count, candidate};
    if (Fits(form, evidence)) return form;
  }
  return checkpoint::Error{
      checkpoint::ErrorCode::kInconsistent,
      fmt::format("{} stored elements over {} partitions, the largest of {}", stored,
                  evidence.partition_count, largest),
      fmt::format("partitions that hold the {} elements of the group's parameters, at most {} each",
                  group_numel, candidates.front()),
      where, "A partition was cut short, or parameters and optimizer files are of two runs."};
}

}  // namespace reshape
