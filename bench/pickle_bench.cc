// Reading and writing the object tree of a checkpoint file: thousands of tensors, each a REDUCE
// with a storage, as param_shapes, layer files and optimizer states have them.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "checkpoint/pickle.h"
#include "checkpoint/tensor.h"

namespace {

using checkpoint::DType;
using checkpoint::Result;
using checkpoint::StoragePtr;
using checkpoint::Value;

Value TreeOf(int64_t tensors) {
  std::vector<std::pair<Value, Value>> items;
  for (int64_t i = 0; i < tensors; ++i) {
    const StoragePtr storage = checkpoint::MakeStorage(DType::kFloat32, 64);
    items.emplace_back(
        checkpoint::MakeString("layers." + std::to_string(i) + ".self_attention.dense.weight"),
        checkpoint::MakeTensor({storage, 0, {8, 8}, {8, 1}}));
  }
  return checkpoint::MakeDict(std::move(items));
}

void WritePickleOfTensors(benchmark::State& state) {
  const Value root = TreeOf(state.range(0));
  int64_t bytes = 0;
  for (auto _ : state) {
    const auto output = checkpoint::WritePickle(root, checkpoint::StringMemo::kByContent);
    bytes += static_cast<int64_t>(output.bytes.size());
  }
  state.SetBytesProcessed(bytes);
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(WritePickleOfTensors)->Arg(100)->Arg(10'000);

void ReadPickleOfTensors(benchmark::State& state) {
  const auto output =
      checkpoint::WritePickle(TreeOf(state.range(0)), checkpoint::StringMemo::kByContent);
  size_t next = 0;
  const auto resolve = [&](const Value&) -> Result<StoragePtr> { return output.storages[next++]; };
  for (auto _ : state) {
    next = 0;
    const auto read = checkpoint::ReadPickle(std::as_bytes(std::span(output.bytes)), resolve, "");
    if (!read.ok()) std::abort();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(output.bytes.size()));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(ReadPickleOfTensors)->Arg(100)->Arg(10'000);

}  // namespace
