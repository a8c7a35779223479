// Collectives over point-to-point messages, for transports that have nothing better.
//
// Members first exchange a few bytes with each other that tell what they are about to do, so that a
// disagreement is an error instead of a hang; a barrier is just that. Then
//   all-gather   everyone sends its part to everyone;
//   broadcast    the root sends; large data is scattered and then all-gathered, which spreads the
//                load over all links (van de Geijn);
//   all-reduce   small data is exchanged whole; large data is cut into segments, each of them
//                reduce-scattered (member i sums the i-th part of everyone, in the group's order)
//                and all-gathered, with the gathering of one segment overlapping the scattering of
//                the next. Every element is summed by exactly one member: equal bits everywhere.
// A rank runs its collectives one after another in the order started, which no group can deadlock.
#ifndef AUTOPART_RUNTIME_TRANSPORTS_COLLECTIVES_H_
#define AUTOPART_RUNTIME_TRANSPORTS_COLLECTIVES_H_

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/transports/waiting_communicator.h"

namespace autopart::internal {

enum class Channel { kMessages = 0, kCollectives = 1 };

// A communicator that only has to move messages on two channels that never mix.
class MessageCommunicator : public WaitingCommunicator {
 public:
  ~MessageCommunicator() override;

  std::unique_ptr<Operation> StartSend(int peer, std::vector<ConstBytes> pieces) final;
  std::unique_ptr<Operation> StartReceive(int peer, std::vector<Bytes> pieces) final;
  std::unique_ptr<Operation> StartBroadcast(std::span<const int> group, int root, Bytes data) final;
  std::unique_ptr<Operation> StartAllGather(std::span<const int> group, ConstBytes mine,
                                            Bytes all) final;
  std::unique_ptr<Operation> StartAllReduce(std::span<const int> group, Bytes data,
                                            size_t element_bytes, Accumulate add) final;
  std::unique_ptr<Operation> StartBarrier(std::span<const int> group) final;

 protected:
  virtual std::unique_ptr<WaitingOperation> StartSendOn(Channel channel, int peer,
                                                        std::vector<ConstBytes> pieces) = 0;
  virtual std::unique_ptr<WaitingOperation> StartReceiveOn(Channel channel, int peer,
                                                           std::vector<Bytes> pieces) = 0;
  // Moves messages; Advance calls it.
  virtual void AdvanceMessages() = 0;
  void Advance() final;

 private:
  friend class Collective;
  friend class CollectiveOperation;
  std::unique_ptr<Operation> Start(std::shared_ptr<class Collective> collective);

  std::deque<std::shared_ptr<class Collective>> collectives_;  // the front one runs
};

}  // namespace autopart::internal

#endif  // AUTOPART_RUNTIME_TRANSPORTS_COLLECTIVES_H_
