// From the files' metadata to a checked plan, without a byte of a tensor: time by the number of
// ranks. The checkpoints are fixtures of sizes only.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "fixtures/fixture.h"
#include "reshape/inventory.h"
#include "reshape/plan.h"
#include "reshape/target.h"

namespace {

template <typename T>
T Valid(checkpoint::Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::cerr << result.error().ToString() << "\n";
  std::abort();
}

// A GPT at TP=2 PP=2 and as many data ranks as the argument says -> TP=4 PP=1, twice the ranks.
void PlanByDataRanks(benchmark::State& state) {
  const auto ranks = static_cast<int32_t>(state.range(0));
  fixtures::FixtureSpec spec;
  spec.model = {.layers = 16, .hidden = 256, .heads = 8, .feed_forward = 1024};
  spec.tensor_parallel = spec.pipeline_parallel = 2;
  spec.data_parallel = ranks;
  spec.zero_stage = 1;
  spec.dtype = checkpoint::DType::kBFloat16;
  spec.wrapper = fixtures::OptimizerWrapper::kZero;
  spec.sizes_only = true;
  const auto folder =
      std::filesystem::temp_directory_path() / ("shardproof-bench-plan-" + std::to_string(ranks));
  std::filesystem::remove_all(folder);
  if (!fixtures::WriteFixture(folder, spec).ok()) std::abort();
  reshape::ReadOptions read;
  read.qkv_layout = checkpoint::QkvLayout::kPerHeadGroup;
  reshape::TargetSpec target;
  target.tensor_parallel_size = 4;
  target.pipeline_parallel_size = 1;
  target.data_parallel_size = 2 * ranks;
  int64_t copies = 0;
  for (auto _ : state) {
    const auto inventory = Valid(reshape::ReadInventory(folder, read));
    const auto layout = Valid(reshape::LayOutTarget(inventory, target));
    copies = Valid(reshape::ComposePlan(inventory, layout)).copies;
  }
  state.counters["copies"] = static_cast<double>(copies);
  std::filesystem::remove_all(folder);
}
BENCHMARK(PlanByDataRanks)->RangeMultiplier(8)->Range(1, 64)->Unit(benchmark::kMillisecond);

}  // namespace
