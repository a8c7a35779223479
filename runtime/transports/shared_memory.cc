// Messages on lanes: a lane is one direction of one channel with one peer, a ring and a queue of
// started operations. Every wait moves bytes on all lanes that have operations, so two ranks that
// both send first, or a rank that waits for one peer while another streams to it, always get on.
// A rank that has nothing to move spins for a moment, then marks its lanes as asleep, looks once
// more, and sleeps on its bell (a futex), which peers ring after they have moved bytes on a marked
// lane. Now and then it wakes to see whether a process has died.
#include "runtime/transports/shared_memory.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>
#include <deque>
#include <thread>
#include <utility>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/transports/collectives.h"
#include "runtime/transports/shared_segment.h"

namespace autopart {
namespace {

using internal::Channel;
using internal::ProcessWatch;
using internal::RingConsumer;
using internal::RingProducer;
using internal::SharedControl;
using internal::SharedRank;
using internal::SharedSegment;
using internal::TotalBytes;
using internal::WaitingOperation;
using Kind = CommunicationError::Kind;

// How late a death may be noticed.
constexpr std::chrono::milliseconds kLookForDeaths{250};

void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, Clock::duration timeout) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(timeout).count();
  const timespec limit{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void RingBell(SharedRank& rank) {
  rank.bell.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rank.bell), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
          0);
}

class Transfer;

struct Lane {
  int peer = -1;
  bool sends = false;
  bool mapped = false;
  bool active = false;  // listed among the lanes with operations
  RingProducer producer;
  RingConsumer consumer;
  std::deque<Transfer*> queue;

  internal::RingHeader* header() const { return sends ? producer.header() : consumer.header(); }
  void SetSleeping(bool sleeps) {
    sends ? producer.SetSleeping(sleeps) : consumer.SetSleeping(sleeps);
  }
};

class SharedMemoryCommunicator final : public internal::MessageCommunicator {
 public:
  SharedMemoryCommunicator(const std::string& name, int rank, int size,
                           const SharedMemoryOptions& options)
      : segment_(name, rank, size, options),
        control_(segment_.control()),
        rank_(rank),
        size_(size),
        lanes_(size * 4),
        watches_(size) {
    if (options.spin) {
      spin_ = *options.spin;
    } else if (static_cast<int>(std::thread::hardware_concurrency()) >= size) {
      spin_ = std::chrono::microseconds(50);
    }
  }

  ~SharedMemoryCommunicator() override {
    control_.ranks[rank_].state.store(SharedRank::kLeft, std::memory_order_release);
    RingAll();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view transport() const override { return "shared memory"; }

  void Abort(const AbortRecord& record) override {
    uint32_t none = SharedControl::kNone;
    if (!control_.abort_state.compare_exchange_strong(none, SharedControl::kWriting)) return;
    control_.abort_rank = record.rank;
    const size_t length = std::min(record.what.size(), sizeof(control_.abort_what));
    std::memcpy(control_.abort_what, record.what.data(), length);
    control_.abort_size = length;
    control_.abort_state.store(SharedControl::kWritten, std::memory_order_release);
    RingAll();
  }

  std::optional<AbortRecord> aborted() const override {
    if (control_.abort_state.load(std::memory_order_acquire) != SharedControl::kWritten) {
      return std::nullopt;
    }
    return AbortRecord{control_.abort_rank, std::string(control_.abort_what, control_.abort_size)};
  }

  std::string DescribeFailure() const override {
    std::string text;
    for (int rank = 0; rank < size_; ++rank) {
      if (Left(rank) || internal::IsRunning(control_.ranks[rank].process)) continue;
      text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " (process " +
              std::to_string(control_.ranks[rank].process.pid) + ") has died";
    }
    if (text.empty() || aborted())
      text = Communicator::DescribeFailure() + (text.empty() ? "" : "; " + text);
    return text;
  }

 private:
  friend class Transfer;

  std::unique_ptr<WaitingOperation> StartSendOn(Channel channel, int peer,
                                                std::vector<ConstBytes> pieces) override;
  std::unique_ptr<WaitingOperation> StartReceiveOn(Channel channel, int peer,
                                                   std::vector<Bytes> pieces) override;
  std::unique_ptr<WaitingOperation> Start(Lane& lane, std::vector<Bytes> pieces);

  Lane& LaneOf(Channel channel, int peer, bool sends) {
    Lane& lane = lanes_[(peer * 2 + static_cast<int>(channel)) * 2 + sends];
    if (!lane.mapped) {
      lane.peer = peer;
      lane.sends = sends;
      const int index = static_cast<int>(channel);
      if (sends) {
        lane.producer = segment_.MapProducer(index, rank_, peer);
      } else {
        lane.consumer = segment_.MapConsumer(index, peer, rank_);
      }
      lane.mapped = true;
    }
    return lane;
  }

  void AdvanceMessages() override {
    for (size_t i = 0; i < active_.size();) {
      Lane& lane = *active_[i];
      MoveOn(lane);
      if (lane.queue.empty()) {
        if (armed_) lane.SetSleeping(false);
        lane.active = false;
        active_[i] = active_.back();
        active_.pop_back();
      } else {
        ++i;
      }
    }
  }

  void MoveOn(Lane& lane);

  // Has this rank noticed that the peer is gone?
  bool Left(int peer) const {
    return control_.ranks[peer].state.load(std::memory_order_acquire) == SharedRank::kLeft;
  }
  bool Died(int peer) const { return watches_[peer] && watches_[peer]->died; }

  uint64_t Ticket() const override {
    return control_.ranks[rank_].bell.load(std::memory_order_acquire);
  }

  void Rest(uint64_t ticket, Clock::time_point now, Clock::time_point until) override {
    if (!armed_) {
      if (!spin_until_) spin_until_ = now + spin_;
      if (now < *spin_until_) {
        for (int i = 0; i < 8; ++i) internal::RelaxCpu();
        return;
      }
      // Say so, and let the caller look once more before the sleep.
      Arm(true);
      return;
    }
    const auto slice = std::min<Clock::duration>(until - now, kLookForDeaths);
    FutexWait(control_.ranks[rank_].bell, static_cast<uint32_t>(ticket), slice);
    if (Ticket() == ticket) {
      LookForDeaths();
    } else {
      StopResting();  // something came: more may follow at once
      if (Clock::now() - last_look_ > kLookForDeaths) LookForDeaths();
    }
  }

  void StopResting() override {
    if (armed_) Arm(false);
    spin_until_.reset();
  }

  void Arm(bool sleeps) {
    armed_ = sleeps;
    for (Lane* lane : active_) lane->SetSleeping(sleeps);
  }

  // For those who only poll.
  void LookForDeathsNowAndThen() {
    if (++num_looks_ % 1024 == 0 && Clock::now() - last_look_ > kLookForDeaths) LookForDeaths();
  }

  void LookForDeaths() {
    last_look_ = Clock::now();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      if (!watches_[peer]) watches_[peer] = std::make_unique<Peer>(control_.ranks[peer].process);
      watches_[peer]->died = watches_[peer]->watch.Died();
    }
  }

  void RingAll() {
    for (int rank = 0; rank < size_; ++rank) RingBell(control_.ranks[rank]);
  }

  struct Peer {
    explicit Peer(const internal::ProcessId& process) : watch(process) {}
    ProcessWatch watch;
    bool died = false;
  };

  SharedSegment segment_;
  SharedControl& control_;
  const int rank_, size_;
  std::vector<Lane> lanes_;
  std::vector<Lane*> active_;
  std::vector<std::unique_ptr<Peer>> watches_;
  std::chrono::microseconds spin_{2};
  std::optional<Clock::time_point> spin_until_;
  bool armed_ = false;  // the active lanes are marked as asleep
  Clock::time_point last_look_ = Clock::now();
  uint32_t num_looks_ = 0;
};

// A started send or receive: a cursor over its pieces.
class Transfer final : public WaitingOperation {
 public:
  Transfer(SharedMemoryCommunicator& ranks, Lane& lane, std::vector<Bytes> pieces)
      : WaitingOperation(ranks),
        ranks_(ranks),
        lane_(lane),
        pieces_(std::move(pieces)),
        total_(TotalBytes(pieces_)) {}

  ~Transfer() override {
    if (done()) return;
    const auto place = std::find(lane_.queue.begin(), lane_.queue.end(), this);
    if (place != lane_.queue.end()) lane_.queue.erase(place);
    if (moved_ == 0 || ranks_.closed()) return;
    ranks_.Close(CommunicationError(
        Kind::kTransport, peer(),
        "rank " + std::to_string(ranks_.rank()) + " dropped the " + Describe() + " half-way"));
    lane_.header()->broken.store(1, std::memory_order_release);
    RingBell(ranks_.control_.ranks[peer()]);
  }

  bool done() const override { return moved_ == total_; }
  int peer() const override { return lane_.peer; }

  std::optional<CommunicationError> Problem() override {
    ranks_.LookForDeathsNowAndThen();
    const bool died = ranks_.Died(peer());
    if (!died && !ranks_.Left(peer()) &&
        lane_.header()->broken.load(std::memory_order_acquire) == 0) {
      return std::nullopt;
    }
    // What the peer wrote before it went still counts.
    ranks_.MoveOn(lane_);
    if (done()) return std::nullopt;
    const bool left = ranks_.Left(peer());
    const std::string who = "rank " + std::to_string(peer());
    const std::string waits =
        "; rank " + std::to_string(ranks_.rank()) + " waits for the " + Describe();
    if (left)
      return CommunicationError(Kind::kPeerDied, peer(), who + " has left the group" + waits);
    if (died) {
      return CommunicationError(Kind::kPeerDied, peer(),
                                who + " (process " +
                                    std::to_string(ranks_.control_.ranks[peer()].process.pid) +
                                    ") has died" + waits);
    }
    return CommunicationError(Kind::kTransport, peer(),
                              who + " dropped a message half-way" + waits);
  }

  std::string Describe() const override {
    return std::string(lane_.sends ? "send" : "receive") + " of " + std::to_string(total_) +
           " bytes " + (lane_.sends ? "to" : "from") + " rank " + std::to_string(peer()) + " (" +
           std::to_string(moved_) + " so far)";
  }

  // Moves one step, up to the end of a piece; false if the ring has no room or no bytes.
  bool Step() {
    while (pieces_[piece_].size() == offset_) {
      ++piece_;
      offset_ = 0;
    }
    const Bytes rest = pieces_[piece_].subspan(offset_);
    const size_t count = lane_.sends ? lane_.producer.Write(rest) : lane_.consumer.Read(rest);
    offset_ += count;
    moved_ += count;
    return count != 0;
  }
  size_t moved() const { return moved_; }

 private:
  SharedMemoryCommunicator& ranks_;
  Lane& lane_;
  const std::vector<Bytes> pieces_;
  const size_t total_;
  size_t piece_ = 0;
  size_t offset_ = 0;
  size_t moved_ = 0;
};

void SharedMemoryCommunicator::MoveOn(Lane& lane) {
  size_t unpublished = 0;
  const auto publish = [&] {
    if (unpublished == 0) return;
    unpublished = 0;
    const bool wake = lane.sends ? lane.producer.Publish() : lane.consumer.Publish();
    if (wake) RingBell(control_.ranks[lane.peer]);
  };
  while (!lane.queue.empty()) {
    Transfer& transfer = *lane.queue.front();
    const size_t before = transfer.moved();
    const bool moved = transfer.Step();
    unpublished += transfer.moved() - before;
    if (transfer.done()) {
      lane.queue.pop_front();
      publish();
    } else if (!moved) {
      break;
    } else if (unpublished >= internal::kRingStep) {
      publish();
    }
  }
  publish();
}

std::unique_ptr<WaitingOperation> SharedMemoryCommunicator::StartSendOn(
    Channel channel, int peer, std::vector<ConstBytes> pieces) {
  std::vector<Bytes> writable;
  writable.reserve(pieces.size());
  for (const ConstBytes& piece : pieces) {
    writable.emplace_back(const_cast<std::byte*>(piece.data()), piece.size());
  }
  return Start(LaneOf(channel, peer, true), std::move(writable));
}

std::unique_ptr<WaitingOperation> SharedMemoryCommunicator::StartReceiveOn(
    Channel channel, int peer, std::vector<Bytes> pieces) {
  return Start(LaneOf(channel, peer, false), std::move(pieces));
}

std::unique_ptr<WaitingOperation> SharedMemoryCommunicator::Start(Lane& lane,
                                                                  std::vector<Bytes> pieces) {
  auto transfer = std::make_unique<Transfer>(*this, lane, std::move(pieces));
  if (transfer->done()) return transfer;
  lane.queue.push_back(transfer.get());
  MoveOn(lane);
  if (!lane.queue.empty() && !lane.active) {
    lane.active = true;
    active_.push_back(&lane);
    if (armed_) Arm(false);  // to look once more at this one too before the sleep
  }
  return transfer;
}

}  // namespace

std::unique_ptr<Communicator> JoinSharedMemoryGroup(const std::string& name, int rank, int size,
                                                    const SharedMemoryOptions& options) {
  return std::make_unique<SharedMemoryCommunicator>(name, rank, size, options);
}

}  // namespace autopart
