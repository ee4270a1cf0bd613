#include "reshape/threads.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace reshape {

int32_t ThreadCount(int32_t wanted) {
  const auto cores = static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  return wanted > 0 ? wanted : cores;
}

void RunOnThreads(size_t count, const std::function<void()>& work,
                  const std::function<void()>& before_thread) {
  std::vector<std::thread> others;
  try {
    for (size_t i = 1; i < count; ++i) {
      if (before_thread) before_thread();
      others.emplace_back(work);
    }
  } catch (const std::system_error&) {
    // No more threads to be had: those there are, and this one, do the work.
  }
  work();
  for (std::thread& other : others) other.join();
}

void ForEachInParallel(size_t count, int32_t threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  RunOnThreads(std::min(static_cast<size_t>(ThreadCount(threads)), count), [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  });
}

}  // namespace reshape
