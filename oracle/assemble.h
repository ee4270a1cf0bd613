// From copies of shards to whole logical tensors: concatenation over tensor ranks, sub-parameter by
// sub-parameter, and comparison of all replicas. Internal to oracle/. Format: docs/format/rules.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "oracle/draft.h"

namespace oracle {

// How the rows of one shard divide into sub-parameters: relative extents; empty: one.
using Shares = std::vector<int64_t>;

// Concatenates shards along `dimension`; with shares, each sub-parameter by itself, then the
// sub-parameters. Two shards [a0 b0] [a1 b1] with shares {1, 1} give [a0 a1 b0 b1]. REQUIRES: each
// shard divides by the shares.
at::Tensor JoinShards(const std::vector<at::Tensor>& shards, int64_t dimension,
                      const Shares& shares);

struct JoinRule {
  int32_t tensor_parallel = 1;
  Shares shares;
  int64_t bytes_max = INT64_MAX;  // more than all files hold: a shape in a file is damaged
};

// Errors: kInconsistent where a shard does not divide into its sub-parameters, kLimitExceeded.
checkpoint::Result<Assembled> AssembleState(const TensorEntry& entry, const std::string& state,
                                            const JoinRule& rule);
checkpoint::Result<at::Tensor> AssembleStale(const TensorEntry& entry, const std::string& state,
                                             const JoinRule& rule);

}  // namespace oracle
