// The sum that each written record needs, against memcpy of the same bytes.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "checkpoint/container.h"

namespace {

std::vector<std::byte> Bytes(int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 2654435761U >> 24);
  return bytes;
}

void Crc32OfABlock(benchmark::State& state) {
  const auto bytes = Bytes(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(checkpoint::Crc32(0, bytes));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(Crc32OfABlock)->RangeMultiplier(16)->Range(4 << 10, 16 << 20);

void MemcpyOfABlock(benchmark::State& state) {
  const auto bytes = Bytes(state.range(0));
  std::vector<std::byte> target(bytes.size());
  for (auto _ : state) {
    std::memcpy(target.data(), bytes.data(), bytes.size());
    benchmark::DoNotOptimize(target.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(MemcpyOfABlock)->RangeMultiplier(16)->Range(4 << 10, 16 << 20);

// Joins the sums of two parts; the length of the second decides the cost.
void Crc32CombineOfLengths(benchmark::State& state) {
  for (auto _ : state)
    benchmark::DoNotOptimize(checkpoint::Crc32Combine(0x12345678U, 0x9abcdef0U, state.range(0)));
}
BENCHMARK(Crc32CombineOfLengths)->Arg(4 << 10)->Arg(1LL << 40);

}  // namespace
