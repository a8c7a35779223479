// Counts the bytes that LibTorch's CPU allocator hands to each rank.
//
// A block belongs to the rank whose thread allocated it, whoever frees it. Blocks are seen only on
// threads with an open Scope; a block that a thread without one frees stays counted until its
// address is used again, so compare live bytes within a step rather than between steps.
#ifndef AUTOPART_RUNTIME_RANK_MEMORY_OBSERVER_H_
#define AUTOPART_RUNTIME_RANK_MEMORY_OBSERVER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace autopart {

class RankMemoryObserver {
 public:
  explicit RankMemoryObserver(int num_ranks);

  // While it lives, the calling thread's allocations belong to `rank`.
  class Scope {
   public:
    Scope(std::shared_ptr<RankMemoryObserver> observer, int rank);

   private:
    c10::DebugInfoGuard guard_;
  };

  int64_t live_bytes(int rank) const;
  // The most that was alive at once since ResetPeak.
  int64_t peak_bytes(int rank) const;
  void ResetPeak(int rank);

 private:
  class Reporter;
  struct Block {
    int rank = 0;
    int64_t bytes = 0;
  };
  void Allocated(void* block, int64_t bytes, int rank);
  void Freed(void* block);

  mutable std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  std::vector<int64_t> live_, peak_;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_RANK_MEMORY_OBSERVER_H_
