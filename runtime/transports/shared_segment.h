// The memory that the ranks of a shared-memory group map, and how they come together on it.
//
// One sparse file in /dev/shm: a control block, then a place for a ring of each channel of each
// directed pair, which takes memory only when a pair first uses it. Rank 0 makes the file without a
// name, fills in the control block and then links the name, so that nobody ever sees half of it;
// the others open it, claim their slot, and wait; when all slots are claimed rank 0 removes the
// name and says so. From then on the kernel frees the memory with the last process. A rank that
// meets the file of a rank 0 that has died looks again; a new rank 0 replaces it.
#ifndef AUTOPART_RUNTIME_TRANSPORTS_SHARED_SEGMENT_H_
#define AUTOPART_RUNTIME_TRANSPORTS_SHARED_SEGMENT_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/communicator.h"
#include "runtime/transports/process_watch.h"
#include "runtime/transports/ring.h"
#include "runtime/transports/shared_memory.h"

namespace autopart::internal {

struct SharedRank {
  enum State : uint32_t { kAbsent, kClaimed, kJoined, kLeft };
  alignas(64) std::atomic<uint32_t> state;
  ProcessId process;
  alignas(64) std::atomic<uint32_t> bell;  // a futex: counts what may end a sleep
};

struct SharedControl {
  char magic[16];  // tells the layout too
  uint32_t size;
  uint64_t message_ring_bytes;
  uint64_t collective_ring_bytes;
  ProcessId creator;
  std::atomic<uint32_t> complete;  // all have joined and the name is gone

  enum AbortState : uint32_t { kNone, kWriting, kWritten };
  alignas(64) std::atomic<uint32_t> abort_state;
  int32_t abort_rank;
  uint32_t abort_size;
  char abort_what[4000];

  SharedRank ranks[kMaxSharedMemoryRanks];
};

class SharedSegment {
 public:
  // Comes together with the others; throws CommunicationError.
  SharedSegment(const std::string& name, int rank, int size, const SharedMemoryOptions& options);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  SharedControl& control() const { return *control_; }

  // Maps one ring; the producer also takes memory for it. Throws kTransport if there is none.
  RingProducer MapProducer(int channel, int from, int to);
  RingConsumer MapConsumer(int channel, int from, int to);

 private:
  struct Mapping {
    void* address;
    size_t bytes;
  };

  void Create(Clock::time_point deadline);
  bool Open();  // false: not there yet, or left over
  void Claim();
  bool WaitForAll(Clock::time_point deadline);  // false: rank 0 died, look again
  void Release();
  std::string Missing() const;
  bool Take(uint64_t offset, uint64_t bytes);
  uint64_t RingOffset(int channel, int from, int to) const;
  RingHeader* MapRing(int channel, int from, int to, uint64_t offset);

  const std::string name_, path_;
  const int rank_, size_;
  const SharedMemoryOptions options_;
  int file_ = -1;
  bool named_ = false;  // this rank has linked the name
  SharedControl* control_ = nullptr;
  std::vector<Mapping> mappings_;
};

}  // namespace autopart::internal

#endif  // AUTOPART_RUNTIME_TRANSPORTS_SHARED_SEGMENT_H_
