// Composed checkpoints for the tests of the source side: plain models without names that any rule
// knows.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/tree.h"
#include "reshape/checkpoint_for_test.h"
#include "reshape/inventory.h"

namespace reshape {

inline testing::AssertionResult Contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << part << "' is not in: " << text;
}

inline std::vector<float> AllNumbers(const LogicalTensor& tensor, const StatePieces& state) {
  std::vector<float> numbers;
  for (const int64_t extent : tensor.shape)
    numbers.resize(numbers.empty() ? static_cast<size_t>(extent)
                                   : numbers.size() * static_cast<size_t>(extent));
  for (const Piece& piece : state.pieces) {
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      int64_t rest = i, full = 0, stride = 1;
      for (size_t d = tensor.shape.size(); d-- > 0;) {
        full += (piece.box.start[d] + rest % piece.box.extent[d]) * stride;
        rest /= piece.box.extent[d];
        stride *= tensor.shape[d];
      }
      std::memcpy(
          &numbers[static_cast<size_t>(full)],
          checkpoint::StorageBytes(*piece.storage).data() + (piece.offset + i - piece.begin) * 4,
          4);
    }
  }
  return numbers;
}

inline const LogicalTensor& Named(const Inventory& inventory, const std::string& name) {
  for (const LogicalTensor& tensor : inventory.tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return inventory.tensors.front();
}

struct Weight {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> numbers;
};

inline checkpoint::Value ModelFile(TorchComposer& composer, const std::vector<Weight>& weights,
                                   checkpoint::Value optimizer, int64_t tensor_size = 1) {
  std::vector<std::pair<std::string, checkpoint::Value>> module;
  for (const Weight& weight : weights)
    module.emplace_back(
        weight.name, composer.Tensor(weight.shape, weight.numbers, checkpoint::DType::kBFloat16));
  return Dict({{"module", Dict(std::move(module))},
               {"buffer_names", checkpoint::MakeList({})},
               {"optimizer", std::move(optimizer)},
               {"param_shapes", checkpoint::MakeNone()},
               {"dp_world_size", checkpoint::MakeInt(1)},
               {"mp_world_size", checkpoint::MakeInt(tensor_size)}});
}

inline checkpoint::Value FlatGroup(TorchComposer& composer, const std::vector<float>& numbers) {
  return composer.Tensor({static_cast<int64_t>(numbers.size())}, numbers);
}

inline checkpoint::Value FusedOptimizer(TorchComposer& composer,
                                        const std::vector<std::vector<float>>& groups) {
  std::vector<std::pair<checkpoint::Value, checkpoint::Value>> state;
  std::vector<checkpoint::Value> masters, hyper;
  for (size_t i = 0; i < groups.size(); ++i) {
    masters.push_back(FlatGroup(composer, groups[i]));
    state.emplace_back(
        checkpoint::MakeInt(static_cast<int64_t>(i)),
        Dict({{"step", checkpoint::MakeInt(5)}, {"exp_avg", FlatGroup(composer, groups[i])}}));
    hyper.push_back(
        Dict({{"lr", checkpoint::MakeFloat(0.1)},
              {"params", checkpoint::MakeList({checkpoint::MakeInt(static_cast<int64_t>(i))})}}));
  }
  return Dict(
      {{"fp32_groups_flat", checkpoint::MakeList(std::move(masters))},
       {"optimizer_state_dict", Dict({{"state", checkpoint::MakeDict(std::move(state))},
                                      {"param_groups", checkpoint::MakeList(std::move(hyper))}})}});
}

// Numbers that bf16 holds exactly, another sequence for each start.
inline std::vector<float> Sequence(int start, size_t count) {
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(start + static_cast<int>(i));
  return numbers;
}

inline std::vector<float> Join(std::initializer_list<std::vector<float>> parts) {
  std::vector<float> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

class ComposedTest : public testing::Test {
 protected:
  checkpoint::Result<Inventory> ReadFused(const std::vector<Weight>& weights,
                                          const std::vector<std::vector<float>>& groups) {
    TorchComposer composer;
    composer.Write(folder_.path() / "step" / "mp_rank_00_model_states.pt",
                   ModelFile(composer, weights, FusedOptimizer(composer, groups)));
    return ReadInventory(folder_.path() / "step", ReadOptions{});
  }
  std::vector<std::string> NamesOfGroup(const Inventory& inventory, size_t group) {
    std::vector<std::string> names;
    for (const int32_t index : inventory.groups[group].tensors)
      names.push_back(inventory.tensors[static_cast<size_t>(index)].name);
    return names;
  }
  bool Noticed(const Inventory& inventory, const std::string& kind) {
    return std::any_of(inventory.notices.begin(), inventory.notices.end(),
                       [&](const Notice& notice) { return notice.kind == kind; });
  }
  TemporaryFolder folder_;
};

}  // namespace reshape
