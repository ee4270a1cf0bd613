#include "certify/parallel.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace certify {
namespace {

class Loop {
 public:
  Loop(int64_t items, const ParallelOptions& options,
       const std::function<checkpoint::Status(int64_t)>& body)
      : items_(items), options_(options), body_(body) {}

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (next_ < items_ && !error_) {
      const int64_t bytes = options_.bytes_of ? options_.bytes_of(next_) : 0;
      if (running_ > 0 && bytes_running_ + bytes > options_.bytes_at_once) {
        room_.wait(lock);
        continue;
      }
      const int64_t item = next_++;
      ++running_;
      bytes_running_ += bytes;
      lock.unlock();
      checkpoint::Status status = Guarded(item);
      lock.lock();
      --running_;
      bytes_running_ -= bytes;
      if (!status.ok() && (!error_ || item < error_item_)) {
        error_ = std::move(status.error());
        error_item_ = item;
      }
      room_.notify_all();
    }
    room_.notify_all();
  }

  checkpoint::Status Outcome() {
    if (error_) return *std::move(error_);
    return checkpoint::Done{};
  }

 private:
  checkpoint::Status Guarded(int64_t item) const {
    try {
      return body_(item);
    } catch (const std::exception& problem) {
      return checkpoint::Error{checkpoint::ErrorCode::kLimitExceeded, problem.what(),
                               "memory for one tensor", "", "Run where more memory is free."};
    }
  }

  const int64_t items_;
  const ParallelOptions& options_;
  const std::function<checkpoint::Status(int64_t)>& body_;
  std::mutex mutex_;
  std::condition_variable room_;
  int64_t next_ = 0, running_ = 0, bytes_running_ = 0, error_item_ = 0;
  std::optional<checkpoint::Error> error_;
};

}  // namespace

checkpoint::Status ParallelFor(int64_t items, const ParallelOptions& options,
                               const std::function<checkpoint::Status(int64_t item)>& body) {
  int64_t threads = options.threads;
  if (threads <= 0) threads = static_cast<int64_t>(std::thread::hardware_concurrency());
  threads = std::clamp<int64_t>(threads, 1, std::max<int64_t>(items, 1));
  Loop loop(items, options, body);
  std::vector<std::thread> workers;
  for (int64_t i = 1; i < threads; ++i) workers.emplace_back([&loop] { loop.Work(); });
  loop.Work();
  for (std::thread& worker : workers) worker.join();
  return loop.Outcome();
}

}  // namespace certify
