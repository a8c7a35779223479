// Counts the bytes of live tensor storage that each rank has taken from LibTorch's CPU allocator.
//
// A block belongs to the rank whose thread allocated it, until it is freed, by whichever thread.
// Only threads with an open Scope are counted: what was there before, and what other threads
// allocate, is nobody's. Ranks that share a thread are told apart by their scopes.
//
// The first observer puts a counting allocator around torch's own, which stays there: a thread
// without a scope pays a look at a thread-local pointer, and each free a look into a table.
#ifndef AUTOPART_RUNTIME_RANK_MEMORY_OBSERVER_H_
#define AUTOPART_RUNTIME_RANK_MEMORY_OBSERVER_H_

#include <cstdint>
#include <memory>
#include <vector>

namespace autopart {

class RankMemoryObserver {
 public:
  // Throws std::runtime_error where another CPU allocator is in place that cannot be wrapped.
  explicit RankMemoryObserver(int num_ranks);
  ~RankMemoryObserver();

  struct Account;

  // While it lives, the calling thread's allocations belong to `rank`. Scopes nest.
  class Scope {
   public:
    Scope(const std::shared_ptr<RankMemoryObserver>& observer, int rank);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<Account> outer_;
  };

  // Any thread.
  int64_t live_bytes(int rank) const;
  // The most that was alive at once since ResetPeak.
  int64_t peak_bytes(int rank) const;
  void ResetPeak(int rank);

 private:
  // Blocks that outlive the observer keep their account.
  std::vector<std::shared_ptr<Account>> accounts_;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_RANK_MEMORY_OBSERVER_H_
