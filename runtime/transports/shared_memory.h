// Ranks as processes of one host (threads work too) that share memory. Torch-free, Linux.
#ifndef AUTOPART_RUNTIME_TRANSPORTS_SHARED_MEMORY_H_
#define AUTOPART_RUNTIME_TRANSPORTS_SHARED_MEMORY_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "runtime/communicator.h"

namespace autopart {

constexpr int kMaxSharedMemoryRanks = 64;

struct SharedMemoryOptions {
  // Space for bytes on their way from one rank to another; rank 0's value counts. Larger messages
  // stream through it. A pair of ranks takes the space at its first message; where /dev/shm has
  // less, a smaller power of two serves.
  size_t ring_bytes = 4 << 20;
  // How long the ranks may take to come together.
  std::chrono::milliseconds join_deadline{60000};
  // How long a wait looks again and again before the process sleeps. By default 50 us, and next to
  // nothing where the host has fewer cores than the group has ranks.
  std::optional<std::chrono::microseconds> spin;
};

// Comes together with the other ranks under `name`, which no other group of this user on this host
// may have at that time. Returns when all `size` ranks are there; from then on nothing is left in
// /dev/shm, however the processes end. What a group that died before that left is replaced.
//
// The communicator notices within 0.5 s of waiting that a peer has died. A rank whose communicator
// is destroyed has left: what it sent before still arrives, waiting for more fails.
// Throws CommunicationError (kDeadline if ranks are missing, naming them; kPeerDied; kTransport).
std::unique_ptr<Communicator> JoinSharedMemoryGroup(const std::string& name, int rank, int size,
                                                    const SharedMemoryOptions& options = {});

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_TRANSPORTS_SHARED_MEMORY_H_
