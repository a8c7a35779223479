// A rank's sleeping place when those that wake it are threads of the same process.
#ifndef AUTOPART_RUNTIME_TRANSPORTS_BELL_H_
#define AUTOPART_RUNTIME_TRANSPORTS_BELL_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "runtime/transports/waiting_communicator.h"

namespace autopart::internal {

// Ring after every change that the rank may wait for; it reads the count, looks, and rests.
class Bell {
 public:
  uint64_t count() const { return count_.load(std::memory_order_acquire); }

  void Ring() {
    {
      std::lock_guard lock(mutex_);
      count_.fetch_add(1, std::memory_order_release);
    }
    rung_.notify_all();
  }

  // Returns when the count differs from `seen` or the time has come. Looks again and again for
  // `spin` before it sleeps.
  void Rest(uint64_t seen, Clock::time_point until, std::chrono::microseconds spin) {
    const Clock::time_point spin_end = std::min(until, Clock::now() + spin);
    do {
      for (int i = 0; i < 32; ++i) {
        if (count() != seen) return;
        RelaxCpu();
      }
    } while (Clock::now() < spin_end);
    std::unique_lock lock(mutex_);
    rung_.wait_until(lock, until, [&] { return count() != seen; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable rung_;
  std::atomic<uint64_t> count_{0};
};

}  // namespace autopart::internal

#endif  // AUTOPART_RUNTIME_TRANSPORTS_BELL_H_
