// A byte queue between one producer and one consumer, in memory that both map.
//
// Head and tail count bytes since the beginning; each is written by one side only and has its own
// cache line, and each side keeps its last look at the other's. A side that is about to sleep says
// so in a third line, which is rarely written, so a publish costs one fence and one cached load and
// no system call unless the other side sleeps.
#ifndef AUTOPART_RUNTIME_TRANSPORTS_RING_H_
#define AUTOPART_RUNTIME_TRANSPORTS_RING_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace autopart::internal {

struct RingHeader {
  alignas(64) std::atomic<uint64_t> head;  // bytes written
  alignas(64) std::atomic<uint64_t> tail;  // bytes read
  alignas(64) std::atomic<uint32_t> consumer_sleeps;
  std::atomic<uint32_t> producer_sleeps;
  std::atomic<uint32_t> broken;    // a message was dropped half-way
  std::atomic<uint64_t> capacity;  // set by the producer before the first byte
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The other side works on what was published while this side goes on copying.
constexpr size_t kRingStep = 64 << 10;

class RingProducer {
 public:
  RingProducer() = default;
  RingProducer(RingHeader* header, std::byte* data)
      : header_(header),
        data_(data),
        capacity_(header->capacity.load(std::memory_order_relaxed)),
        head_(header->head.load(std::memory_order_relaxed)),
        tail_(header->tail.load(std::memory_order_relaxed)) {}

  // Writes what fits and returns its size; the consumer sees it after Publish.
  size_t Write(std::span<const std::byte> bytes) {
    if (capacity_ - (head_ - tail_) < bytes.size()) {
      tail_ = header_->tail.load();
    }
    const size_t space = capacity_ - (head_ - tail_);
    const size_t count = std::min({bytes.size(), space, kRingStep});
    const size_t place = head_ % capacity_;
    const size_t first = std::min(count, capacity_ - place);
    std::memcpy(data_ + place, bytes.data(), first);
    std::memcpy(data_, bytes.data() + first, count - first);
    head_ += count;
    return count;
  }

  // Returns whether the consumer must be woken.
  bool Publish() {
    header_->head.store(head_);
    return header_->consumer_sleeps.load() != 0;
  }

  void SetSleeping(bool sleeps) { header_->producer_sleeps.store(sleeps); }
  RingHeader* header() const { return header_; }

 private:
  RingHeader* header_ = nullptr;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;  // last look
};

class RingConsumer {
 public:
  RingConsumer() = default;
  RingConsumer(RingHeader* header, const std::byte* data)
      : header_(header), data_(data), tail_(header->tail.load(std::memory_order_relaxed)) {
    head_ = tail_;
  }

  // Reads what is there, up to the size of `bytes`; the producer gets the space at Publish.
  size_t Read(std::span<std::byte> bytes) {
    if (head_ - tail_ < bytes.size()) head_ = header_->head.load();
    const size_t count = std::min({bytes.size(), size_t(head_ - tail_), kRingStep});
    if (count == 0) return 0;
    if (capacity_ == 0) capacity_ = header_->capacity.load(std::memory_order_relaxed);
    const size_t place = tail_ % capacity_;
    const size_t first = std::min(count, capacity_ - place);
    std::memcpy(bytes.data(), data_ + place, first);
    std::memcpy(bytes.data() + first, data_, count - first);
    tail_ += count;
    return count;
  }

  // Returns whether the producer must be woken.
  bool Publish() {
    header_->tail.store(tail_);
    return header_->producer_sleeps.load() != 0;
  }

  void SetSleeping(bool sleeps) { header_->consumer_sleeps.store(sleeps); }
  RingHeader* header() const { return header_; }

 private:
  RingHeader* header_ = nullptr;
  const std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  uint64_t tail_ = 0;
  uint64_t head_ = 0;  // last look
};

}  // namespace autopart::internal

#endif  // AUTOPART_RUNTIME_TRANSPORTS_RING_H_
