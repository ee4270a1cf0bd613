#include "certify/tensor_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace certify {
namespace {

at::Tensor Floats(int64_t numel) {
  return at::empty({numel}, at::TensorOptions().dtype(at::kFloat));
}

TEST(KeptTensorMemoryTest, BlockOfOneTensorServesTheNextOfNearlyItsSize) {
  const KeptTensorMemory kept(64 << 20);
  const void* first = Floats(1 << 20).data_ptr();
  EXPECT_EQ(KeptTensorMemory::BytesKept(), 4 << 20);
  const at::Tensor smaller = Floats((1 << 20) - 100000);
  EXPECT_EQ(smaller.data_ptr(), first);
  EXPECT_EQ(KeptTensorMemory::BytesKept(), 0);
  const at::Tensor half = Floats(1 << 19);
  EXPECT_NE(half.data_ptr(), first);
}

TEST(KeptTensorMemoryTest, UsedAndKeptStayWithinTheLimit) {
  const KeptTensorMemory kept(10 << 20);
  at::Tensor six = Floats(3 << 19);
  { const at::Tensor four = Floats(1 << 20); }
  EXPECT_EQ(KeptTensorMemory::BytesKept(), 4 << 20);
  { const at::Tensor five = Floats(5 << 18); }
  EXPECT_EQ(KeptTensorMemory::BytesKept(), 0);  // 6 + 5 is more than 10
}

TEST(KeptTensorMemoryTest, NothingIsKeptAfterwardsAndTensorsLiveOn) {
  at::Tensor survivor;
  {
    const KeptTensorMemory kept(64 << 20);
    survivor = at::full({1 << 19}, 3.0F);
    { const at::Tensor other = Floats(1 << 20); }
    EXPECT_GT(KeptTensorMemory::BytesKept(), 0);
  }
  EXPECT_EQ(KeptTensorMemory::BytesKept(), 0);
  EXPECT_EQ(survivor[(1 << 19) - 1].item<float>(), 3.0F);
  survivor.reset();
  EXPECT_EQ(KeptTensorMemory::BytesKept(), 0);
}

TEST(KeptTensorMemoryTest, ThreadsDoNotShareABlockInUse) {
  const KeptTensorMemory kept(64 << 20);
  std::vector<std::thread> threads;
  std::vector<int64_t> wrong(4, 0);
  for (size_t thread = 0; thread < wrong.size(); ++thread) {
    threads.emplace_back([thread, &wrong] {
      for (int64_t round = 0; round < 20; ++round) {
        const at::Tensor mine = at::full({1 << 18}, static_cast<float>(thread));
        wrong[thread] += mine.ne(static_cast<float>(thread)).sum().item<int64_t>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int64_t>(4, 0));
}

}  // namespace
}  // namespace certify
