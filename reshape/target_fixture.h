// Test support: small sources made in memory, metadata only. Their storages have no bytes: targets
// are laid out from them, not written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshape/inventory.h"
#include "reshape/target.h"

namespace reshape {

struct GptOptions {
  int32_t tensor_ranks = 1, stages = 1, data_ranks = 1;
  Wrapper wrapper = Wrapper::kFused;
  checkpoint::DType dtype = checkpoint::DType::kFloat16;
  NameLayout layout = NameLayout::kPipeline;
  int64_t layers = 2;
  bool stale_copy =
      false;  // of the position embedding, as a source with more than one stage has it
};

// A GPT of hidden size 4, 2 heads, feed-forward 8, vocabulary 5 padded to a multiple of 2 x TP,
// sequence 3, Megatron's two groups.
Inventory MakeGpt(const GptOptions& options);

// A model that is no transformer: parameters of these numbers of elements in one group, ZeRO stage
// 1 over one rank.
Inventory MakePlain(const std::vector<int64_t>& numels, Wrapper wrapper, checkpoint::DType dtype);

// The tree of one file of a target; fails the test where there is none.
checkpoint::Value TreeOf(const Target& target, const std::string& name);
bool HasNotice(const Target& target, const std::string& kind);

}  // namespace reshape
