#include "reshape/layer_partition.h"

#include <algorithm>

#include "checkpoint/status.h"

namespace reshape {
namespace {

// Largest and smallest part weight of the best cut of the first i entries into j parts, and where
// its last part begins.
struct Best {
  bool possible = false;
  bool has_minimum = false;  // no part yet: any first part is the smallest
  int64_t largest = 0, smallest = 0;
  int64_t last_cut = 0;
};

}  // namespace

std::vector<int64_t> PartitionBalanced(const std::vector<int64_t>& weights, int64_t part_count) {
  CHECK(part_count >= 1, << part_count);
  const auto count = static_cast<int64_t>(weights.size());
  std::vector<int64_t> cuts;
  if (count <= part_count) {
    for (int64_t i = 0; i <= part_count; ++i) cuts.push_back(std::min(i, count));
    return cuts;
  }
  std::vector<int64_t> sums(weights.size() + 1, 0);
  for (size_t i = 0; i < weights.size(); ++i) sums[i + 1] = sums[i] + weights[i];
  const auto columns = static_cast<size_t>(part_count + 1);
  std::vector<Best> table((weights.size() + 1) * columns);
  table[0] = {true, false, 0, 0, 0};
  for (int64_t i = 1; i <= count; ++i) {
    for (int64_t j = 1; j <= std::min(i, part_count); ++j) {
      Best& best = table[static_cast<size_t>(i) * columns + static_cast<size_t>(j)];
      for (int64_t k = 0; k < i; ++k) {
        const Best& before = table[static_cast<size_t>(k) * columns + static_cast<size_t>(j - 1)];
        if (!before.possible) continue;
        const int64_t part = sums[static_cast<size_t>(i)] - sums[static_cast<size_t>(k)];
        const int64_t largest = std::max(before.largest, part);
        const int64_t smallest = before.has_minimum ? std::min(before.smallest, part) : part;
        if (best.possible && best.largest - best.smallest < largest - smallest) continue;
        best = {true, true, largest, smallest, k};
      }
    }
  }
  cuts.push_back(count);
  for (int64_t j = part_count; j >= 1; --j) {
    cuts.push_back(
        table[static_cast<size_t>(cuts.back()) * columns + static_cast<size_t>(j)].last_cut);
  }
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

int64_t LayerListCount(const TransformerLayers& layers) {
  // The head, and behind it the cast: 4 layers from 2 on, head at 7, cast at 8: 9 entries.
  return layers.numbering.first_layer + layers.layers + layers.numbering.head_after +
         (layers.cast_at_end ? 2 : 1);
}

std::vector<int64_t> TransformerCuts(const TransformerLayers& layers, int64_t stage_count) {
  std::vector<int64_t> weights(static_cast<size_t>(LayerListCount(layers)), 0);
  for (int64_t i = 0; i < layers.layers; ++i)
    weights[static_cast<size_t>(layers.numbering.first_layer + i)] = 1;
  if (layers.count_embeddings) {
    weights[static_cast<size_t>(layers.numbering.embedding)] = 1;
    weights[static_cast<size_t>(layers.numbering.first_layer + layers.layers +
                                layers.numbering.head_after)] = 1;
  }
  return PartitionBalanced(weights, stage_count);
}

}  // namespace reshape
