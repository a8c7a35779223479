#include "runtime/communicator.h"

#include <utility>

namespace autopart {

void Communicator::Send(int peer, std::vector<ConstBytes> pieces, Clock::time_point deadline) {
  StartSend(peer, std::move(pieces))->Wait(deadline);
}

void Communicator::Receive(int peer, std::vector<Bytes> pieces, Clock::time_point deadline) {
  StartReceive(peer, std::move(pieces))->Wait(deadline);
}

void Communicator::Broadcast(std::span<const int> group, int root, Bytes data,
                             Clock::time_point deadline) {
  StartBroadcast(group, root, data)->Wait(deadline);
}

void Communicator::AllGather(std::span<const int> group, ConstBytes mine, Bytes all,
                             Clock::time_point deadline) {
  StartAllGather(group, mine, all)->Wait(deadline);
}

void Communicator::AllReduce(std::span<const int> group, Bytes data, size_t element_bytes,
                             const Accumulate& add, Clock::time_point deadline) {
  StartAllReduce(group, data, element_bytes, add)->Wait(deadline);
}

void Communicator::Barrier(std::span<const int> group, Clock::time_point deadline) {
  StartBarrier(group)->Wait(deadline);
}

std::string Communicator::DescribeFailure() const {
  const std::optional<AbortRecord> record = aborted();
  if (!record) return "no failure of another rank is known";
  return "rank " + std::to_string(record->rank) + " failed: " + record->what;
}

}  // namespace autopart
