// Blocks are known by address, in a table of shards, so that those allocated before or outside any
// scope, and those of callers that take raw pointers, are freed as they always were.
#include "runtime/rank_memory_observer.h"

#include <array>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace autopart {

struct RankMemoryObserver::Account {
  void Add(int64_t bytes) {
    const int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t most = peak.load(std::memory_order_relaxed);
    while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
    }
  }
  std::atomic<int64_t> live{0}, peak{0};
};

namespace {

using Account = RankMemoryObserver::Account;

thread_local std::shared_ptr<Account> current;

class BlockTable {
 public:
  void Add(void* block, int64_t bytes, std::shared_ptr<Account> account) {
    account->Add(bytes);
    Shard& shard = ShardOf(block);
    std::scoped_lock lock(shard.mutex);
    shard.blocks[block] = {bytes, std::move(account)};
  }
  void Remove(void* block) {
    Shard& shard = ShardOf(block);
    std::scoped_lock lock(shard.mutex);
    const auto it = shard.blocks.find(block);
    if (it == shard.blocks.end()) return;
    it->second.account->Add(-it->second.bytes);
    shard.blocks.erase(it);
  }

 private:
  struct Block {
    int64_t bytes = 0;
    std::shared_ptr<Account> account;
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<void*, Block> blocks;
  };
  Shard& ShardOf(void* block) {
    return shards_[(reinterpret_cast<uintptr_t>(block) >> 6) % shards_.size()];
  }
  std::array<Shard, 64> shards_;
};

class CountingAllocator final : public c10::Allocator {
 public:
  // Around the allocator in place, for the rest of the process.
  static void Install() {
    static CountingAllocator* const installed = [] {
      c10::Allocator* inner = c10::GetCPUAllocator();
      if (inner == nullptr || inner->raw_deleter() == nullptr) {
        throw std::runtime_error(
            "memory cannot be counted: the CPU allocator in place gives no raw pointers");
      }
      // Never destroyed: blocks may be freed until the process ends.
      auto* allocator = new CountingAllocator(inner);
      constexpr uint8_t kPriority = 1;  // above torch's own
      c10::SetCPUAllocator(allocator, kPriority);
      return allocator;
    }();
    if (c10::GetCPUAllocator() != installed) {
      throw std::runtime_error("memory cannot be counted: another CPU allocator was put in place");
    }
  }

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr block = inner_->allocate(bytes);
    void* const address = block.get();
    if (current == nullptr || address == nullptr || block.get_context() != address) return block;
    // The inner deleter is called by ours.
    block.release_context();
    table_.Add(address, static_cast<int64_t>(bytes), current);
    return {address, address, &CountingAllocator::Free, block.device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &CountingAllocator::Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    inner_->copy_data(to, from, bytes);
  }

 private:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {
    inner_free = inner->raw_deleter();
    table = &table_;
  }
  static void Free(void* block) {
    if (block == nullptr) return;
    table->Remove(block);
    inner_free(block);
  }

  // Deleters are plain functions; there is one such allocator in a process.
  static inline c10::DeleterFnPtr inner_free = nullptr;
  static inline BlockTable* table = nullptr;
  c10::Allocator* const inner_;
  BlockTable table_;
};

}  // namespace

RankMemoryObserver::RankMemoryObserver(int num_ranks) {
  CountingAllocator::Install();
  for (int r = 0; r < num_ranks; ++r) accounts_.push_back(std::make_shared<Account>());
}

RankMemoryObserver::~RankMemoryObserver() = default;

RankMemoryObserver::Scope::Scope(const std::shared_ptr<RankMemoryObserver>& observer, int rank)
    : outer_(std::exchange(current, observer->accounts_.at(rank))) {}

RankMemoryObserver::Scope::~Scope() { current = std::move(outer_); }

int64_t RankMemoryObserver::live_bytes(int rank) const {
  return accounts_.at(rank)->live.load(std::memory_order_relaxed);
}

int64_t RankMemoryObserver::peak_bytes(int rank) const {
  return accounts_.at(rank)->peak.load(std::memory_order_relaxed);
}

void RankMemoryObserver::ResetPeak(int rank) {
  Account& account = *accounts_.at(rank);
  account.peak.store(account.live.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

}  // namespace autopart
