#include "partitioner/internal/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace autopart::internal {

void RunInParallel(int count, int threads, const std::function<void(int)>& task) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  std::vector<std::exception_ptr> errors(count);
  std::atomic<int> next = 0;
  const auto work = [&] {
    for (int i = next++; i < count; i = next++) {
      try {
        task(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    try {
      for (int t = 1; t < std::min(threads, count); ++t) helpers.emplace_back(work);
    } catch (const std::system_error&) {
      // No more threads to be had: those that run, and this one, do it all.
    }
    work();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace autopart::internal
