#include "runtime/rank_memory_observer.h"

#include <algorithm>

namespace autopart {

class RankMemoryObserver::Reporter : public c10::MemoryReportingInfoBase {
 public:
  Reporter(std::shared_ptr<RankMemoryObserver> observer, int rank)
      : observer_(std::move(observer)), rank_(rank) {}

  void reportMemoryUsage(void* block, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes > 0) {
      observer_->Allocated(block, bytes, rank_);
    } else {
      observer_->Freed(block);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  const std::shared_ptr<RankMemoryObserver> observer_;
  const int rank_;
};

RankMemoryObserver::RankMemoryObserver(int num_ranks) : live_(num_ranks), peak_(num_ranks) {}

RankMemoryObserver::Scope::Scope(std::shared_ptr<RankMemoryObserver> observer, int rank)
    : guard_(c10::DebugInfoKind::PROFILER_STATE,
             std::make_shared<Reporter>(std::move(observer), rank)) {}

void RankMemoryObserver::Allocated(void* block, int64_t bytes, int rank) {
  std::scoped_lock lock(mutex_);
  Block& known = blocks_[block];
  live_[known.rank] -= known.bytes;
  known = {rank, bytes};
  live_[rank] += bytes;
  peak_[rank] = std::max(peak_[rank], live_[rank]);
}

void RankMemoryObserver::Freed(void* block) {
  std::scoped_lock lock(mutex_);
  const auto it = blocks_.find(block);
  if (it == blocks_.end()) return;
  live_[it->second.rank] -= it->second.bytes;
  blocks_.erase(it);
}

int64_t RankMemoryObserver::live_bytes(int rank) const {
  std::scoped_lock lock(mutex_);
  return live_[rank];
}

int64_t RankMemoryObserver::peak_bytes(int rank) const {
  std::scoped_lock lock(mutex_);
  return peak_[rank];
}

void RankMemoryObserver::ResetPeak(int rank) {
  std::scoped_lock lock(mutex_);
  peak_[rank] = live_[rank];
}

}  // namespace autopart
