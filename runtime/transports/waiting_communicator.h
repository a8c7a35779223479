// What all transports share: the loop that waits, and how a communicator fails.
//
// A wait looks at its operation, lets the transport make progress on everything that is pending
// (so a rank that waits for one thing never holds up another), looks for an abort record and for
// dead peers, and then rests until something may have changed. The first failure is kept and thrown
// by every later call.
#ifndef AUTOPART_RUNTIME_TRANSPORTS_WAITING_COMMUNICATOR_H_
#define AUTOPART_RUNTIME_TRANSPORTS_WAITING_COMMUNICATOR_H_

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/communicator.h"

namespace autopart::internal {

class WaitingCommunicator;

class WaitingOperation : public Operation {
 public:
  explicit WaitingOperation(WaitingCommunicator& communicator) : communicator_(communicator) {}
  bool Poll() final;
  void Wait(Clock::time_point deadline) final;

  // Buffers are free or filled. May be read while other threads finish the operation.
  virtual bool done() const = 0;
  // Why the operation can no longer finish, for example because its peer is gone. Facts that stay:
  // the wait looks once more for bytes and for an abort record before it fails with them.
  virtual std::optional<CommunicationError> Problem() = 0;
  // "receive of 4096 bytes from rank 1 (1024 so far)".
  virtual std::string Describe() const = 0;
  virtual int peer() const = 0;  // the rank waited for, -1 if several

 protected:
  WaitingCommunicator& communicator_;
};

class WaitingCommunicator : public Communicator {
 public:
  // Throws the first cause if the communicator is closed or the group was aborted.
  void CheckOpen();
  // Keeps the error as the first cause, unless there is one.
  void Close(CommunicationError error);
  bool closed() const { return first_cause_.has_value(); }

  bool Poll(WaitingOperation& operation);
  void Wait(WaitingOperation& operation, Clock::time_point deadline);

 protected:
  void CheckPeer(int peer) const;  // throws std::invalid_argument
  // These throw std::invalid_argument too.
  void CheckGroup(std::span<const int> group) const;
  void CheckBroadcast(std::span<const int> group, int root) const;
  void CheckAllGather(std::span<const int> group, ConstBytes mine, Bytes all) const;
  void CheckAllReduce(std::span<const int> group, Bytes data, size_t element_bytes) const;

  // Moves what can be moved without waiting, for all pending operations of this rank.
  virtual void Advance() = 0;
  // Changes when something happens that a resting rank waits for; read before looking.
  virtual uint64_t Ticket() const = 0;
  // Rests until the ticket differs, the time has come, or for a moment.
  virtual void Rest(uint64_t ticket, Clock::time_point now, Clock::time_point until) = 0;
  // The wait is over.
  virtual void StopResting() {}

 private:
  [[noreturn]] void Fail(CommunicationError error);
  [[noreturn]] void FailAborted(const AbortRecord& record);

  std::optional<CommunicationError> first_cause_;
};

// Tells the core that this thread spins.
inline void RelaxCpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

size_t TotalBytes(std::span<const ConstBytes> pieces);
size_t TotalBytes(std::span<const Bytes> pieces);

}  // namespace autopart::internal

#endif  // AUTOPART_RUNTIME_TRANSPORTS_WAITING_COMMUNICATOR_H_
