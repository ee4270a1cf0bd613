#include "certify/tensor_memory.h"

#include <c10/core/Allocator.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <set>

namespace certify {
namespace {

// Smaller blocks are the C library's matter: it keeps those.
constexpr size_t kLargeBytes = 1 << 20;
constexpr size_t kAlignment = 4096;
// Sizes are rounded up to this, so that tensors of nearly the same size share blocks.
constexpr size_t kGranuleBytes = 1 << 18;

void* NewBlock(size_t bytes) {
  void* block = nullptr;
  if (posix_memalign(&block, kAlignment, bytes) != 0) throw std::bad_alloc();
  return block;
}

void FreeBlock(void* block) { std::free(block); }

class Pool final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, cpu};
    if (bytes < kLargeBytes) {
      void* block = NewSmall(bytes);
      return {block, block, &FreeBlock, cpu};
    }
    const size_t rounded = (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
    void* block = Take(rounded);
    return {block, block, &GiveBack, cpu};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  void Begin(int64_t bytes_max) {
    const std::lock_guard<std::mutex> lock(mutex_);
    limits_.insert(bytes_max);
    if (limits_.size() > 1) return;
    before_ = c10::GetAllocator(c10::DeviceType::CPU);
    c10::SetAllocator(c10::DeviceType::CPU, this);
  }

  void End(int64_t bytes_max) {
    const std::lock_guard<std::mutex> lock(mutex_);
    limits_.erase(limits_.find(bytes_max));
    Shrink(limits_.empty() ? 0 : *limits_.rbegin());
    if (limits_.empty()) c10::SetAllocator(c10::DeviceType::CPU, before_);
  }

  int64_t BytesKept() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kept_bytes_;
  }

  static Pool& Instance() {
    static Pool* pool = new Pool;  // never destroyed: tensors may outlive everything else
    return *pool;
  }

 private:
  static void* NewSmall(size_t bytes) {
    void* block = nullptr;
    if (posix_memalign(&block, 64, bytes) != 0) throw std::bad_alloc();
    return block;
  }

  static void GiveBack(void* block) { Instance().Keep(block); }

  // A kept block of nearly this size, or a new one.
  void* Take(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = kept_.lower_bound(bytes);
    void* block = nullptr;
    size_t block_bytes = bytes;
    if (found != kept_.end() && found->first <= bytes + bytes / 4) {
      block_bytes = found->first;
      block = found->second;
      kept_.erase(found);
      kept_bytes_ -= static_cast<int64_t>(block_bytes);
    }
    used_bytes_ += static_cast<int64_t>(block_bytes);
    if (block == nullptr) {
      Shrink(limits_.empty() ? 0 : *limits_.rbegin());
      block = NewBlock(block_bytes);
    }
    used_[block] = block_bytes;
    return block;
  }

  void Keep(void* block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = used_.find(block);
    const size_t block_bytes = found->second;
    used_.erase(found);
    used_bytes_ -= static_cast<int64_t>(block_bytes);
    kept_.emplace(block_bytes, block);
    kept_bytes_ += static_cast<int64_t>(block_bytes);
    Shrink(limits_.empty() ? 0 : *limits_.rbegin());
  }

  // Frees kept blocks, the largest first, until all together are within the limit.
  void Shrink(int64_t bytes_max) {
    while (!kept_.empty() && used_bytes_ + kept_bytes_ > bytes_max) {
      const auto largest = std::prev(kept_.end());
      kept_bytes_ -= static_cast<int64_t>(largest->first);
      FreeBlock(largest->second);
      kept_.erase(largest);
    }
  }

  std::mutex mutex_;
  std::multimap<size_t, void*> kept_;  // by size
  std::map<void*, size_t> used_;
  std::multiset<int64_t> limits_;
  int64_t kept_bytes_ = 0, used_bytes_ = 0;
  c10::Allocator* before_ = nullptr;
};

}  // namespace

KeptTensorMemory::KeptTensorMemory(int64_t bytes_max) : bytes_max_(bytes_max) {
  Pool::Instance().Begin(bytes_max);
}

KeptTensorMemory::~KeptTensorMemory() { Pool::Instance().End(bytes_max_); }

int64_t KeptTensorMemory::BytesKept() { return Pool::Instance().BytesKept(); }

}  // namespace certify
