// Filling windows of a target storage from strided copies, the inner loop of a reshape: how short
// rows get before they cost more than their bytes, and what a change of type adds.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "checkpoint/container.h"
#include "checkpoint/tensor.h"
#include "reshape/fill.h"

namespace {

using checkpoint::DType;
using checkpoint::StoragePtr;

// A storage of `numel` elements in a file of its own, which is gone when the bench ends.
class StoredElements {
 public:
  StoredElements(DType dtype, int64_t numel) {
    path_ = std::filesystem::temp_directory_path() /
            ("shardproof-bench-" + std::to_string(reinterpret_cast<uintptr_t>(this)) + ".pt");
    std::filesystem::remove(path_);
    const StoragePtr storage = checkpoint::MakeStorage(dtype, numel);
    const auto root = checkpoint::MakeTensor({storage, 0, {numel}, {1}});
    const auto written =
        checkpoint::WriteTorchFile(path_, root, checkpoint::StringMemo::kByContent,
                                   [](const checkpoint::Storage&, std::span<std::byte> bytes) {
                                     for (size_t i = 0; i < bytes.size(); ++i)
                                       bytes[i] = static_cast<std::byte>(i & 0x3f);
                                   });
    if (!written.ok()) std::abort();
    auto file = checkpoint::OpenTorchFile(path_);
    if (!file.ok()) std::abort();
    file_ = std::make_unique<checkpoint::TorchFile>(std::move(file).value());
  }
  ~StoredElements() { std::filesystem::remove(path_); }
  StoragePtr storage() const { return file_->storages.front(); }

 private:
  std::filesystem::path path_;
  std::unique_ptr<checkpoint::TorchFile> file_;
};

// `rows` runs of `columns` elements, which lie one after another in the source and `ways` runs
// apart in the target: what one source shard of a row split is for a target of lower TP.
void FillRows(benchmark::State& state, DType source_type, DType target_type) {
  const int64_t columns = state.range(0), ways = 2, numel = 4 << 20, rows = numel / columns;
  const StoredElements source(source_type, numel);
  reshape::StoragePlan plan;
  const StoragePtr target = checkpoint::MakeStorage(target_type, numel * ways);
  plan.target = target.get();
  reshape::CopyRange copy;
  copy.source = source.storage().get();
  copy.block.dimensions = {{rows, columns, columns * ways}, {columns, 1, 1}};
  plan.copies = {copy};
  plan.zero_numel = numel;
  // A window as execute.h takes it: some MiB of the target.
  const reshape::Window window{0, std::min<int64_t>(numel * ways, 2 << 20)};
  std::vector<std::byte> buffer(
      static_cast<size_t>((window.end - window.begin) * checkpoint::ElementBytes(target_type)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(reshape::WindowCopies(plan, window).Fill(window, buffer).overflowed);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(buffer.size()));
}

void FillRowsOfFp16(benchmark::State& state) { FillRows(state, DType::kFloat16, DType::kFloat16); }
void FillRowsOfFp32(benchmark::State& state) { FillRows(state, DType::kFloat32, DType::kFloat32); }
void FillRowsFp32ToBf16(benchmark::State& state) {
  FillRows(state, DType::kFloat32, DType::kBFloat16);
}
void FillRowsFp32ToFp16(benchmark::State& state) {
  FillRows(state, DType::kFloat32, DType::kFloat16);
}
BENCHMARK(FillRowsOfFp16)->RangeMultiplier(8)->Range(8, 32 << 10);
BENCHMARK(FillRowsOfFp32)->RangeMultiplier(8)->Range(8, 32 << 10);
BENCHMARK(FillRowsFp32ToBf16)->RangeMultiplier(64)->Range(8, 32 << 10);
BENCHMARK(FillRowsFp32ToFp16)->RangeMultiplier(64)->Range(8, 32 << 10);

}  // namespace
