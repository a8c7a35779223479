// Two sources: the CPU allocator reports pointer and size to the thread's profiler state; meta
// tensors have no memory, so their allocator hands out null pointers whose deleter carries the
// size.
#include "profiler/allocation_observer.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include <c10/core/Allocator.h>

namespace autopart {

struct AllocationObserver::Record {
  void Add(int64_t bytes) {
    live += bytes;
    peak = std::max(peak, live);
  }
  int64_t SizeOf(int64_t bytes) const { return size_of ? size_of(bytes) : bytes; }
  std::function<int64_t(int64_t)> size_of;
  std::mutex mutex;
  std::unordered_map<void*, int64_t> cpu_blocks;
  int64_t live = 0;
  int64_t peak = 0;
};

namespace {

using Record = AllocationObserver::Record;

class Listener : public c10::MemoryReportingInfoBase {
 public:
  explicit Listener(std::shared_ptr<Record> record) : record_(std::move(record)) {}

  void reportMemoryUsage(void* pointer, int64_t bytes, size_t, size_t, c10::Device) override {
    std::lock_guard<std::mutex> lock(record_->mutex);
    if (bytes > 0) {
      const int64_t counted = record_->SizeOf(bytes);
      record_->cpu_blocks[pointer] = counted;
      record_->Add(counted);
      return;
    }
    const auto block = record_->cpu_blocks.find(pointer);
    if (block == record_->cpu_blocks.end()) return;
    record_->Add(-block->second);
    record_->cpu_blocks.erase(block);
  }

  bool memoryProfilingEnabled() const override { return true; }

 private:
  std::shared_ptr<Record> record_;
};

thread_local std::shared_ptr<Record> current;

struct MetaBlock {
  std::shared_ptr<Record> record;
  int64_t bytes;
};

void FreeMetaBlock(void* pointer) {
  std::unique_ptr<MetaBlock> block(static_cast<MetaBlock*>(pointer));
  std::lock_guard<std::mutex> lock(block->record->mutex);
  block->record->Add(-block->bytes);
}

void FreeNothing(void*) {}

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (current == nullptr || bytes == 0) {
      return {nullptr, nullptr, &FreeNothing, c10::Device(c10::kMeta)};
    }
    std::lock_guard<std::mutex> lock(current->mutex);
    const int64_t counted = current->SizeOf(static_cast<int64_t>(bytes));
    current->Add(counted);
    return {nullptr, new MetaBlock{current, counted}, &FreeMetaBlock, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}
};

void InstallMetaAllocator() {
  static MetaAllocator allocator;
  static const bool installed = [] {
    c10::SetAllocator(c10::kMeta, &allocator, /*priority=*/1);
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

AllocationObserver::AllocationObserver() : AllocationObserver(nullptr) {}

AllocationObserver::AllocationObserver(std::function<int64_t(int64_t)> size_of)
    : record_(std::make_shared<Record>()), outer_(current) {
  record_->size_of = std::move(size_of);
  InstallMetaAllocator();
  current = record_;
  guard_ = std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE,
                                                 std::make_shared<Listener>(record_));
}

AllocationObserver::~AllocationObserver() {
  guard_.reset();
  current = outer_;
}

int64_t AllocationObserver::live_bytes() const {
  std::lock_guard<std::mutex> lock(record_->mutex);
  return record_->live;
}

int64_t AllocationObserver::peak_bytes() const {
  std::lock_guard<std::mutex> lock(record_->mutex);
  return record_->peak;
}

void AllocationObserver::ResetPeak() {
  std::lock_guard<std::mutex> lock(record_->mutex);
  record_->peak = record_->live;
}

}  // namespace autopart
