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
  // Throws CommunicationError if the operation can no longer finish, for example because its peer
  // is gone. Called after progress was made and done() was false.
  virtual void Check() = 0;
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
  // Keeps the error as the first cause, unless there is one, and throws the first cause.
  [[noreturn]] void Fail(CommunicationError error);

  bool Poll(WaitingOperation& operation);
  void Wait(WaitingOperation& operation, Clock::time_point deadline);

 protected:
  void CheckPeer(int peer) const;                     // throws std::invalid_argument
  void CheckGroup(std::span<const int> group) const;  // throws std::invalid_argument
  bool closed() const { return first_cause_.has_value(); }

  // Moves what can be moved without waiting, for all pending operations of this rank.
  virtual void Advance() = 0;
  // Changes whenever something of interest to this rank happens; read before looking.
  virtual uint64_t Ticket() const = 0;
  // Rests until the ticket differs, the time has come, or for a moment.
  virtual void Rest(uint64_t ticket, Clock::time_point until) = 0;

 private:
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
