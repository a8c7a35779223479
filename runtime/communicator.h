// Moves bytes between ranks. Torch-free, so the in-process and shared-memory transports build and
// test without torch.
//
// Point to point: the bytes sent from one rank to another arrive in the order sent. A message is a
// list of pieces; message borders are not kept (a byte stream), so the receiver may ask for the
// same bytes in other pieces. Messages without bytes are done at once. Collectives never mix with
// point-to-point bytes.
// Collectives: every member calls them in the same order. Reductions add in the order of the group,
// whatever the timing, so results are equal on all ranks and from run to run.
// Start* returns at once; several operations may be pending. An operation borrows its buffers until
// it is done or destroyed, and its communicator for its whole life. One that is destroyed
// unfinished, half-way through a message, closes the communicator.
//
// Threads: one rank's communicator is used by one thread at a time, except Abort, aborted
// and DescribeFailure, which any may call. One thread may serve all ranks of an in-process group:
// start everything first on each rank, then wait. Errors: every wait ends by its deadline. Failures
// throw CommunicationError; after one the communicator is closed and every later call except Abort
// throws the same first cause. A new group in the same process works.
#ifndef AUTOPART_RUNTIME_COMMUNICATOR_H_
#define AUTOPART_RUNTIME_COMMUNICATOR_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace autopart {

using Clock = std::chrono::steady_clock;
using ConstBytes = std::span<const std::byte>;
using Bytes = std::span<std::byte>;

// Why the job ended, the same on every rank: the first record wins.
struct AbortRecord {
  int rank = -1;
  std::string what;  // names stage and action
};

class CommunicationError : public std::runtime_error {
 public:
  enum class Kind { kDeadline, kPeerDied, kAborted, kTransport };
  CommunicationError(Kind kind, int peer, const std::string& what)
      : std::runtime_error(what), kind_(kind), peer_(peer) {}
  Kind kind() const { return kind_; }
  int peer() const { return peer_; }  // the rank concerned, -1 if none

 private:
  Kind kind_;
  int peer_;
};

// A started send, receive or collective.
class Operation {
 public:
  virtual ~Operation() = default;
  // True when the buffers are free (send) or filled (receive). Makes progress; throws on failure.
  virtual bool Poll() = 0;
  // Returns when done; throws CommunicationError at the deadline, on abort, or when a peer dies.
  virtual void Wait(Clock::time_point deadline) = 0;
};

// Adds `other` to `sum`, both of the same number of bytes (the caller knows the dtype).
using Accumulate = std::function<void(Bytes sum, ConstBytes other)>;

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view transport() const = 0;  // "threads", "shared memory", "gloo"

  virtual std::unique_ptr<Operation> StartSend(int peer, std::vector<ConstBytes> pieces) = 0;
  virtual std::unique_ptr<Operation> StartReceive(int peer, std::vector<Bytes> pieces) = 0;

  // Collectives over `group`: ascending global ranks, the caller's own included.
  virtual std::unique_ptr<Operation> StartBroadcast(std::span<const int> group, int root,
                                                    Bytes data) = 0;
  // all <- data of group[0], data of group[1], ...; every rank gives the same number of bytes.
  virtual std::unique_ptr<Operation> StartAllGather(std::span<const int> group, ConstBytes mine,
                                                    Bytes all) = 0;
  // data <- data of group[0] + data of group[1] + ..., in that order. `add` sees whole elements and
  // may be called from another rank's thread (in-process groups), on parts of the buffers.
  virtual std::unique_ptr<Operation> StartAllReduce(std::span<const int> group, Bytes data,
                                                    size_t element_bytes, Accumulate add) = 0;
  virtual std::unique_ptr<Operation> StartBarrier(std::span<const int> group) = 0;

  // The same, waited for.
  void Send(int peer, std::vector<ConstBytes> pieces, Clock::time_point deadline);
  void Receive(int peer, std::vector<Bytes> pieces, Clock::time_point deadline);
  void Broadcast(std::span<const int> group, int root, Bytes data, Clock::time_point deadline);
  void AllGather(std::span<const int> group, ConstBytes mine, Bytes all,
                 Clock::time_point deadline);
  void AllReduce(std::span<const int> group, Bytes data, size_t element_bytes,
                 const Accumulate& add, Clock::time_point deadline);
  void Barrier(std::span<const int> group, Clock::time_point deadline);

  // Publishes the record (first writer wins) and unblocks every rank's pending and later calls.
  virtual void Abort(const AbortRecord& record) = 0;
  virtual std::optional<AbortRecord> aborted() const = 0;
  // What is known to be wrong with the group, for reports: the abort record, dead peers. Any
  // thread.
  virtual std::string DescribeFailure() const;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_COMMUNICATOR_H_
