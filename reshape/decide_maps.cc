// param_slice_mappings are wrong in files written with round_robin_gradients: where they contradict
// param_shapes, the content decides.
#include <fmt/format.h>

#include <algorithm>

#include "reshape/compare_content.h"
#include "reshape/source.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::Status;

bool MembersHold(const ModelRank& rank, const LocalGroup& group,
                 const std::vector<Member>& members) {
  const FlatMasters masters(group);
  return std::all_of(members.begin(), members.end(), [&](const Member& member) {
    const auto position = rank.by_name.find(member.name);
    if (position == rank.by_name.end()) return false;
    const LocalTensor& tensor = rank.tensors[position->second];
    if (member.numel == 0 || tensor.tied_copy || tensor.view.storage == nullptr) return true;
    const RowMajorBytes weight(tensor.view);
    return weight.numel() == member.numel &&
           masters.MatchingPrefix(member.begin, weight) == member.numel;
  });
}

}  // namespace

Status DecideMaps(Source& source) {
  std::vector<std::string> files;
  for (ModelRank& rank : source.ranks) {
    for (size_t g = 0; g < rank.groups.size(); ++g) {
      LocalGroup& group = rank.groups[g];
      if (!group.maps_contradict) continue;
      if (MembersHold(rank, group, group.members)) {
        files.push_back(source.ModelFileName(rank));
      } else if (!group.rival.empty() && MembersHold(rank, group, group.rival)) {
        group.members = group.rival;
        source.Notify(
            "param-shapes-overruled",
            fmt::format("{} group {}: the content follows param_slice_mappings, not param_shapes.",
                        rank.Text(), g),
            {source.ModelFileName(rank)});
      } else {
        return MakeError(
            ErrorCode::kUnprovedOrder,
            fmt::format(
                "param_shapes and param_slice_mappings that contradict each other (group {})", g),
            "one of the two orders proved by content",
            source.ModelFileName(rank) + " " + rank.Text(),
            "If the masters are stale, rebuild them from the weights (refresh).");
      }
    }
  }
  files.erase(std::unique(files.begin(), files.end()), files.end());
  if (files.empty()) return checkpoint::Done{};
  const char* reason = source.inventory.round_robin ? " (written with round_robin_gradients)" : "";
  source.Notify("false-slice-maps",
                fmt::format("param_slice_mappings are false{}: they contradict param_shapes, and "
                            "the content proves param_shapes.",
                            reason),
                std::move(files));
  return checkpoint::Done{};
}

}  // namespace reshape
