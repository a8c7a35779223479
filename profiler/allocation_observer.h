// Counts the bytes of tensor memory that the current thread allocates and that are still alive.
//
//   AllocationObserver observer;
//   ... run operators ...
//   observer.live_bytes();   // allocated since, and not yet freed
//
// Blocks may be counted as of other sizes than they have: `size_of` gives what to count.
//
// Hears torch's CPU allocator (which reports the exact size of every allocation) through a
// c10::MemoryReportingInfoBase, and meta tensors through a counting meta allocator, which behaves
// as torch's own while no observer is alive. Memory from before the observer is not counted when it
// goes. Observers nest: the innermost hears. Use it on one thread only; tensors that it counted may
// be freed anywhere.
#ifndef AUTOPART_PROFILER_ALLOCATION_OBSERVER_H_
#define AUTOPART_PROFILER_ALLOCATION_OBSERVER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include <c10/util/ThreadLocalDebugInfo.h>

namespace autopart {

class AllocationObserver {
 public:
  AllocationObserver();
  explicit AllocationObserver(std::function<int64_t(int64_t)> size_of);
  ~AllocationObserver();
  AllocationObserver(const AllocationObserver&) = delete;
  AllocationObserver& operator=(const AllocationObserver&) = delete;

  int64_t live_bytes() const;
  int64_t peak_bytes() const;  // largest live_bytes since the start or the last ResetPeak
  void ResetPeak();

  struct Record;

 private:
  std::shared_ptr<Record> record_;
  std::shared_ptr<Record> outer_;
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

}  // namespace autopart

#endif  // AUTOPART_PROFILER_ALLOCATION_OBSERVER_H_
