#include "reshape/rank_layout.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "reshape/naming.h"

namespace reshape {
namespace {

using checkpoint::GroupRule;
using checkpoint::Parallel;
using checkpoint::Result;
using checkpoint::Status;

constexpr std::string_view kTiedPrefix = "tied_modules.";

const checkpoint::TiedRule* TiedRuleOf(const Inventory& source, const std::string& canonical) {
  for (const checkpoint::TiedRule& rule : source.rules.tied) {
    const auto matches = checkpoint::MatchesWhole(rule.canonical, canonical);
    if (matches.ok() && matches.value()) return &rule;
  }
  return nullptr;
}

// Splits "tied_modules.embed.weight" into its key in the layer file, or "3.up.weight" into layer
// and key.
void SplitPipelineName(TargetName& name) {
  const std::string_view text = name.name;
  if (text.starts_with(kTiedPrefix)) {
    const size_t dot = text.find('.', kTiedPrefix.size());
    name.tied = true;
    name.layer_key = dot == std::string_view::npos ? "" : std::string(text.substr(dot + 1));
    return;
  }
  const size_t dot = text.find('.');
  int64_t layer = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + std::min(dot, text.size()), layer);
  if (error != std::errc() || dot == std::string_view::npos || end != text.data() + dot) return;
  name.layer_key = std::string(text.substr(dot + 1));
  if (name.layers.empty()) name.layers = {layer};
}

class RankBuilder {
 public:
  RankBuilder(const Inventory& source, const ResolvedTarget& target,
              const std::vector<TargetName>& names)
      : source_(source), target_(target), names_(names) {}

  Result<std::vector<RankLayout>> Build() {
    std::vector<RankLayout> ranks;
    const int32_t tensor_ranks = target_.topology.tensor_parallel_size;
    for (int32_t stage = 0; stage < target_.topology.pipeline_parallel_size; ++stage) {
      for (int32_t tensor_rank = 0; tensor_rank < tensor_ranks; ++tensor_rank) {
        RankLayout rank;
        rank.stage = PipelineStage{stage};
        rank.tensor_rank = TensorRank{tensor_rank};
        CK_DO(AddTensors(rank));
        AddGroups(rank);
        ranks.push_back(std::move(rank));
      }
    }
    return ranks;
  }

 private:
  // -1: not on this stage; 0: its first stage; above: a later copy.
  int32_t Occurrence(const TargetName& name, PipelineStage stage) const {
    if (target_.layout == NameLayout::kPlain) return 0;
    const auto index = static_cast<size_t>(stage);
    const auto stage_of = [&](int64_t layer) {
      const auto after = std::upper_bound(target_.cuts.begin(), target_.cuts.end(), layer);
      const auto found = std::max<int64_t>(0, after - target_.cuts.begin() - 1);
      return std::min(found, static_cast<int64_t>(target_.cuts.size()) - 2);
    };
    bool here = false, earlier = false;
    for (const int64_t layer : name.layers) {
      const auto found = static_cast<size_t>(stage_of(layer));
      here = here || found == index;
      earlier = earlier || found < index;
    }
    if (!here) return -1;
    return earlier ? 1 : 0;
  }

  Status AddTensors(RankLayout& rank) {
    for (size_t i = 0; i < source_.tensors.size(); ++i) {
      const LogicalTensor& tensor = source_.tensors[i];
      if (!tensor.alias_of.empty()) continue;
      const int32_t occurrence = Occurrence(names_[i], rank.stage);
      if (occurrence < 0) continue;
      RankTensor local;
      local.tensor = static_cast<int32_t>(i);
      local.later_copy = occurrence > 0;
      local.stale = local.later_copy && names_[i].stale;
      ShardForm form{tensor.parallel, tensor.shape, tensor.sub_parameter_rows};
      if (tensor.parallel == Parallel::kVocabulary) form.full_shape[0] = target_.vocabulary_rows;
      const int32_t tensor_ranks = target_.topology.tensor_parallel_size;
      CK_TRY(local.shape, ShardShape(form, tensor_ranks, tensor.name));
      local.slabs = SlabsOfShard(form, rank.tensor_rank, tensor_ranks);
      rank.tensors.push_back(std::move(local));
    }
    return checkpoint::Done{};
  }

  void AddGroups(RankLayout& rank) const {
    if (target_.wrapper == Wrapper::kNone) return;
    std::vector<int64_t> local_of(source_.tensors.size(), -1);
    for (size_t i = 0; i < rank.tensors.size(); ++i)
      local_of[static_cast<size_t>(rank.tensors[i].tensor)] = static_cast<int64_t>(i);
    std::vector<std::vector<size_t>> members(source_.groups.size());
    for (size_t group = 0; group < source_.groups.size(); ++group) {
      for (const int32_t tensor : source_.groups[group].tensors) {
        const int64_t local = local_of[static_cast<size_t>(tensor)];
        if (local >= 0) members[group].push_back(static_cast<size_t>(local));
      }
    }
    if (source_.rules.group_rule == GroupRule::kMegatronHalves && members.size() == 3)
      HalveAgain(members);
    for (size_t group = 0; group < members.size(); ++group) {
      if (!members[group].empty()) AddGroup(static_cast<int32_t>(group), members[group], rank);
    }
  }

  // The weight-decay list of each stage is cut in two by count: with other stages, other halves.
  static void HalveAgain(std::vector<std::vector<size_t>>& members) {
    std::vector<size_t> all = members[0];
    all.insert(all.end(), members[1].begin(), members[1].end());
    std::sort(all.begin(), all.end());  // module order
    const auto half = all.begin() + static_cast<int64_t>(all.size() / 2);
    members[0].assign(all.begin(), half);
    members[1].assign(half, all.end());
  }

  void AddGroup(int32_t source_group, const std::vector<size_t>& members, RankLayout& rank) const {
    FlatGroup group;
    group.source_group = source_group;
    std::vector<size_t> order(members.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (target_.round_robin)
      order = RoundRobinOrder(members.size(), target_.topology.data_parallel_size);
    for (size_t i = 0; i < order.size(); ++i) {
      FlatMember member{members[order[i]], group.numel, 0};
      group.numel += rank.tensors[member.rank_tensor].numel();
      if (i + 1 < order.size()) {  // no pad behind the last
        const int64_t alignment = target_.parameter_alignment_numel;
        member.padding_after = (alignment - group.numel % alignment) % alignment;
        group.numel += member.padding_after;
      }
      group.members.push_back(member);
    }
    const bool partitioned = target_.wrapper == Wrapper::kZero || target_.wrapper == Wrapper::kBf16;
    group.form = partitioned ? MakePartitionForm(group.numel, target_.topology.data_parallel_size)
                             : PartitionForm{group.numel, 1, group.numel};
    rank.groups.push_back(std::move(group));
  }

  const Inventory& source_;
  const ResolvedTarget& target_;
  const std::vector<TargetName>& names_;
};

}  // namespace

int64_t RankTensor::numel() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

std::vector<size_t> RoundRobinOrder(size_t count, int32_t data_ranks) {
  std::vector<size_t> order;
  order.reserve(count);
  const auto step = static_cast<size_t>(std::max(1, data_ranks));
  for (size_t first = 0; first < step && first < count; ++first) {
    for (size_t i = first; i < count; i += step) order.push_back(i);
  }
  return order;
}

Result<std::vector<TargetName>> NameTensors(const Inventory& source, const ResolvedTarget& target) {
  const bool untied = std::any_of(
      source.tensors.begin(), source.tensors.end(),
      [](const LogicalTensor& tensor) { return tensor.canonical == "output_layer.weight"; });
  const Naming naming{&source.rules, source.transformer_layers, !untied};
  const bool crosses = CrossesLayouts(source, target);
  std::vector<TargetName> names;
  for (const LogicalTensor& tensor : source.tensors) {
    TargetName name{tensor.name, {}, "", false, false};
    if (crosses && tensor.alias_of.empty()) {
      const auto other = NameInLayout(naming, target.layout, tensor.canonical);
      if (!other)
        return Unreachable(tensor.name + ", which has no name in the other layout",
                           "names for all tensors", "Leave --layout out.");
      name.name = *other;
    }
    if (target.layout == NameLayout::kPipeline) {
      if (!crosses) name.layers = tensor.layers;
      SplitPipelineName(name);
      const checkpoint::TiedRule* rule = name.tied ? TiedRuleOf(source, tensor.canonical) : nullptr;
      name.stale = rule != nullptr && rule->stale_copy;
      if (crosses && name.tied && source.rules.numbering) {
        const checkpoint::PipelineNumbering& numbering = *source.rules.numbering;
        name.layers = {numbering.embedding,
                       numbering.first_layer + source.transformer_layers + numbering.head_after};
      }
    }
    names.push_back(std::move(name));
  }
  return names;
}

Result<std::vector<RankLayout>> LayOutRanks(const Inventory& source, const ResolvedTarget& target,
                                            const std::vector<TargetName>& names) {
  return RankBuilder(source, target, names).Build();
}

}  // namespace reshape
