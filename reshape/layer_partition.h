// Which pipeline stage of a transformer owns which layers, as the framework's partition method
// "type:transformer" decides it. Pure arithmetic. Format: docs/format/directory.md. Tested by
// layer_partition_test.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/rules.h"

namespace reshape {

// Cuts of `weights` into `part_count` consecutive parts such that largest minus smallest part
// weight is least; of equally good last cuts the later one. Part i owns [cuts[i], cuts[i + 1]).
// Fewer entries than parts: one each, the last parts empty. REQUIRES: part_count >= 1.
std::vector<int64_t> PartitionBalanced(const std::vector<int64_t>& weights, int64_t part_count);

struct TransformerLayers {
  checkpoint::PipelineNumbering numbering;
  int64_t layers = 0;
  bool cast_at_end = true;        // fp16 and bf16 models end in a function that widens the output
  bool count_embeddings = false;  // partition method "type:transformer|embedding"
};

// Entries of the framework's layer list, functions included: what the last cut is.
int64_t LayerListCount(const TransformerLayers& layers);
// Method "type:transformer". 4 layers numbered from 2 on 2 stages: [0, 4, 9].
std::vector<int64_t> TransformerCuts(const TransformerLayers& layers, int64_t stage_count);

}  // namespace reshape
