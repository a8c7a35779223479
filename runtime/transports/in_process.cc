// Each directed pair of ranks has two queues, started sends and started receives, under one lock.
// Whoever adds to a queue copies while both hold bytes. A collective meets in a slot, found by its
// group and its number in that group; once all members are there its work is cut into chunks that
// any member's thread may take, so one thread that plays all ranks can do it alone and many threads
// share it.
//
// Locks: the hub's before a slot's; otherwise one at a time.
#include "runtime/transports/in_process.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/transports/bell.h"
#include "runtime/transports/waiting_communicator.h"

namespace autopart {
namespace {

using internal::Bell;
using internal::TotalBytes;
using internal::WaitingCommunicator;
using internal::WaitingOperation;

// Bytes of one all-reduce chunk: small enough to stay in the second-level cache with its sum.
constexpr size_t kChunkBytes = 128 << 10;

// A started send or receive: a cursor over its pieces.
struct Message {
  std::vector<Bytes> pieces;  // a send's are only read
  size_t piece = 0;
  size_t offset = 0;
  size_t total = 0;
  std::atomic<size_t> moved{0};  // == total: done, nobody touches the message any more

  std::span<std::byte> Rest() const { return pieces[piece].subspan(offset); }
  void SkipFinishedPieces() {
    while (piece < pieces.size() && offset == pieces[piece].size()) {
      ++piece;
      offset = 0;
    }
  }
};

struct Edge {
  std::mutex mutex;
  std::deque<Message*> sends;
  std::deque<Message*> receives;
  bool stopped = false;  // a message was dropped half-way: nothing moves any more
  bool broken = false;   // ... by a rank that had not failed
};

enum class Collective { kBroadcast, kAllGather, kAllReduce, kBarrier };

const char* Name(Collective kind) {
  switch (kind) {
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kAllGather:
      return "all-gather";
    case Collective::kAllReduce:
      return "all-reduce";
    case Collective::kBarrier:
      return "barrier";
  }
  return "";
}

// Where the members of one collective meet.
struct Slot {
  struct Member {
    bool here = false;
    ConstBytes in;
    Bytes out;
  };

  Collective kind;
  std::vector<int> group;
  int root = -1;
  size_t bytes = 0;
  size_t element_bytes = 1;
  Accumulate add;

  mutable std::mutex mutex;  // guards the rest
  std::vector<Member> members;
  int num_here = 0;
  std::string error;      // members disagree, or one dropped its operation
  bool given_up = false;  // a member's buffers are gone
  int64_t next_chunk = 0;
  int64_t done_chunks = 0;
  int64_t num_chunks = 0;
  int at_work = 0;
  std::condition_variable idle;  // at_work fell to 0
  std::atomic<bool> finished{false};

  void DoChunk(int64_t chunk) const;
};

void Copy(ConstBytes from, Bytes to) {
  if (!from.empty() && from.data() != to.data()) std::memmove(to.data(), from.data(), from.size());
}

void Slot::DoChunk(int64_t chunk) const {
  const size_t step = std::max<size_t>(1, kChunkBytes / element_bytes) * element_bytes;
  const size_t begin = chunk * step;
  const size_t length = std::min(step, bytes - begin);
  switch (kind) {
    case Collective::kBarrier:
      return;
    case Collective::kBroadcast: {
      const size_t source = std::lower_bound(group.begin(), group.end(), root) - group.begin();
      for (size_t i = 0; i < group.size(); ++i) {
        if (i == source) continue;
        Copy(members[source].out.subspan(begin, length), members[i].out.subspan(begin, length));
      }
      return;
    }
    case Collective::kAllGather:
      for (size_t to = 0; to < group.size(); ++to) {
        for (size_t from = 0; from < group.size(); ++from) {
          Copy(members[from].in.subspan(begin, length),
               members[to].out.subspan(from * bytes + begin, length));
        }
      }
      return;
    case Collective::kAllReduce: {
      const Bytes sum = members[0].out.subspan(begin, length);
      for (size_t i = 1; i < group.size(); ++i) add(sum, members[i].out.subspan(begin, length));
      for (size_t i = 1; i < group.size(); ++i) Copy(sum, members[i].out.subspan(begin, length));
      return;
    }
  }
}

// What the ranks share; lives until the last communicator and operation are gone.
class Hub {
 public:
  Hub(int size, const InProcessOptions& options)
      : size(size), options(options), edges(size * size), bells(size), left(size) {
    for (auto& flag : left) flag.store(false, std::memory_order_relaxed);
  }

  Edge& edge(int from, int to) { return edges[from * size + to]; }

  // Copies while both queues hold bytes. Under the edge's lock. Returns whether a message ended.
  bool Match(Edge& edge) {
    bool ended = false;
    while (!edge.stopped && !edge.sends.empty() && !edge.receives.empty()) {
      Message& send = *edge.sends.front();
      Message& receive = *edge.receives.front();
      const ConstBytes from = send.Rest();
      const Bytes to = receive.Rest();
      const size_t count = std::min(from.size(), to.size());
      std::memcpy(to.data(), from.data(), count);
      ended |= Moved(send, count, edge.sends);
      ended |= Moved(receive, count, edge.receives);
    }
    return ended;
  }

  void RingAll() {
    for (Bell& bell : bells) bell.Ring();
  }

  std::shared_ptr<Slot> Join(std::shared_ptr<Slot> mine, int rank, uint64_t number,
                             Slot::Member member);

  const int size;
  const InProcessOptions options;
  std::vector<Edge> edges;
  std::vector<Bell> bells;
  std::vector<std::atomic<bool>> left;

  std::atomic<bool> has_abort{false};
  std::mutex mutex;  // guards the abort record and the slots
  std::optional<AbortRecord> abort;
  std::map<std::pair<std::vector<int>, uint64_t>, std::shared_ptr<Slot>> slots;

 private:
  static bool Moved(Message& message, size_t count, std::deque<Message*>& queue) {
    message.offset += count;
    message.SkipFinishedPieces();
    const bool ended = message.piece == message.pieces.size();
    if (ended) queue.pop_front();
    message.moved.fetch_add(count, std::memory_order_release);  // the last touch
    return ended;
  }
};

// Enters the member into the collective's slot, which the first to come makes. The last one removes
// the slot from the table.
std::shared_ptr<Slot> Hub::Join(std::shared_ptr<Slot> mine, int rank, uint64_t number,
                                Slot::Member member) {
  const int index =
      std::lower_bound(mine->group.begin(), mine->group.end(), rank) - mine->group.begin();
  std::shared_ptr<Slot> slot;
  bool complete = false;
  {
    std::lock_guard lock(mutex);
    const auto key = std::make_pair(mine->group, number);
    slot = slots.emplace(key, mine).first->second;
    std::lock_guard slot_lock(slot->mutex);
    const bool first = slot == mine;
    if (first) slot->members.resize(slot->group.size());
    if (slot->error.empty() &&
        (mine->kind != slot->kind || mine->bytes != slot->bytes || mine->root != slot->root ||
         mine->element_bytes != slot->element_bytes)) {
      slot->error = "rank " + std::to_string(rank) + " called " + Name(mine->kind) + " of " +
                    std::to_string(mine->bytes) + " bytes where another member called " +
                    Name(slot->kind) + " of " + std::to_string(slot->bytes) +
                    " bytes: all members must call the same collectives in the same order";
    }
    member.here = true;
    slot->members[index] = member;
    complete = ++slot->num_here == static_cast<int>(slot->group.size());
    if (complete) {
      const size_t step =
          std::max<size_t>(1, kChunkBytes / slot->element_bytes) * slot->element_bytes;
      slot->num_chunks = (slot->bytes + step - 1) / step;
      if (slot->num_chunks == 0 && slot->error.empty()) slot->finished = true;
      slots.erase(key);
    }
    complete |= !slot->error.empty();
  }
  if (complete) {
    for (int other : mine->group) bells[other].Ring();
  }
  return slot;
}

class InProcessCommunicator;

class PointToPoint final : public WaitingOperation {
 public:
  PointToPoint(WaitingCommunicator& communicator, std::shared_ptr<Hub> hub, int from, int to,
               bool sends, std::vector<Bytes> pieces);
  ~PointToPoint() override;

  bool done() const override {
    return message_.moved.load(std::memory_order_acquire) == message_.total;
  }
  std::optional<CommunicationError> Problem() override;
  std::string Describe() const override;
  int peer() const override { return sends_ ? to_ : from_; }

 private:
  std::shared_ptr<Hub> hub_;
  const int from_, to_;
  const bool sends_;
  Message message_;
};

class GroupOperation final : public WaitingOperation {
 public:
  GroupOperation(WaitingCommunicator& communicator, std::shared_ptr<Hub> hub,
                 std::shared_ptr<Slot> slot)
      : WaitingOperation(communicator), hub_(std::move(hub)), slot_(std::move(slot)) {}
  ~GroupOperation() override;

  bool done() const override { return slot_->finished.load(std::memory_order_acquire); }
  std::optional<CommunicationError> Problem() override;
  std::string Describe() const override;
  int peer() const override;

 private:
  std::shared_ptr<Hub> hub_;
  std::shared_ptr<Slot> slot_;
};

class InProcessCommunicator final : public WaitingCommunicator {
 public:
  InProcessCommunicator(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  ~InProcessCommunicator() override {
    hub_->left[rank_].store(true, std::memory_order_release);
    hub_->RingAll();
  }

  int rank() const override { return rank_; }
  int size() const override { return hub_->size; }
  std::string_view transport() const override { return "threads"; }

  std::unique_ptr<Operation> StartSend(int peer, std::vector<ConstBytes> pieces) override {
    CheckPeer(peer);
    CheckOpen();
    std::vector<Bytes> writable;
    writable.reserve(pieces.size());
    for (const ConstBytes& piece : pieces) {
      writable.emplace_back(const_cast<std::byte*>(piece.data()), piece.size());
    }
    return std::make_unique<PointToPoint>(*this, hub_, rank_, peer, true, std::move(writable));
  }

  std::unique_ptr<Operation> StartReceive(int peer, std::vector<Bytes> pieces) override {
    CheckPeer(peer);
    CheckOpen();
    return std::make_unique<PointToPoint>(*this, hub_, peer, rank_, false, std::move(pieces));
  }

  std::unique_ptr<Operation> StartBroadcast(std::span<const int> group, int root,
                                            Bytes data) override {
    CheckBroadcast(group, root);
    return StartCollective(Collective::kBroadcast, group, root, data.size(), 1, nullptr, data,
                           data);
  }

  std::unique_ptr<Operation> StartAllGather(std::span<const int> group, ConstBytes mine,
                                            Bytes all) override {
    CheckAllGather(group, mine, all);
    return StartCollective(Collective::kAllGather, group, -1, mine.size(), 1, nullptr, mine, all);
  }

  std::unique_ptr<Operation> StartAllReduce(std::span<const int> group, Bytes data,
                                            size_t element_bytes, Accumulate add) override {
    CheckAllReduce(group, data, element_bytes);
    return StartCollective(Collective::kAllReduce, group, -1, data.size(), element_bytes,
                           std::move(add), data, data);
  }

  std::unique_ptr<Operation> StartBarrier(std::span<const int> group) override {
    CheckGroup(group);
    return StartCollective(Collective::kBarrier, group, -1, 0, 1, nullptr, {}, {});
  }

  void Abort(const AbortRecord& record) override {
    {
      std::lock_guard lock(hub_->mutex);
      if (hub_->abort) return;
      hub_->abort = record;
      hub_->has_abort.store(true, std::memory_order_release);
    }
    hub_->RingAll();
  }

  std::optional<AbortRecord> aborted() const override {
    if (!hub_->has_abort.load(std::memory_order_acquire)) return std::nullopt;
    std::lock_guard lock(hub_->mutex);
    return hub_->abort;
  }

 private:
  std::unique_ptr<Operation> StartCollective(Collective kind, std::span<const int> group, int root,
                                             size_t bytes, size_t element_bytes, Accumulate add,
                                             ConstBytes in, Bytes out) {
    CheckOpen();
    auto slot = std::make_shared<Slot>();
    slot->kind = kind;
    slot->group.assign(group.begin(), group.end());
    slot->root = root;
    slot->bytes = bytes;
    slot->element_bytes = element_bytes;
    slot->add = std::move(add);
    const uint64_t number = num_collectives_[slot->group]++;
    slot = hub_->Join(std::move(slot), rank_, number, {true, in, out});
    pending_.push_back(slot);
    return std::make_unique<GroupOperation>(*this, hub_, std::move(slot));
  }

  // Takes chunks of the collectives in which all members are present.
  void Advance() override {
    for (size_t i = 0; i < pending_.size();) {
      Work(*pending_[i]);
      if (pending_[i]->finished.load(std::memory_order_acquire) || pending_[i].use_count() == 1) {
        pending_.erase(pending_.begin() + i);
      } else {
        ++i;
      }
    }
  }

  void Work(Slot& slot) {
    std::unique_lock lock(slot.mutex);
    while (slot.error.empty() && !slot.given_up &&
           slot.num_here == static_cast<int>(slot.group.size()) &&
           slot.next_chunk < slot.num_chunks) {
      const int64_t chunk = slot.next_chunk++;
      ++slot.at_work;
      lock.unlock();
      slot.DoChunk(chunk);
      lock.lock();
      ++slot.done_chunks;
      if (--slot.at_work == 0) slot.idle.notify_all();
      if (slot.done_chunks == slot.num_chunks) {
        slot.finished.store(true, std::memory_order_release);
        lock.unlock();
        for (int member : slot.group) hub_->bells[member].Ring();
        return;
      }
    }
  }

  uint64_t Ticket() const override { return hub_->bells[rank_].count(); }

  void Rest(uint64_t ticket, Clock::time_point, Clock::time_point until) override {
    hub_->bells[rank_].Rest(ticket, until, hub_->options.spin);
  }

  std::shared_ptr<Hub> hub_;
  const int rank_;
  std::map<std::vector<int>, uint64_t> num_collectives_;
  std::vector<std::shared_ptr<Slot>> pending_;
};

PointToPoint::PointToPoint(WaitingCommunicator& communicator, std::shared_ptr<Hub> hub, int from,
                           int to, bool sends, std::vector<Bytes> pieces)
    : WaitingOperation(communicator), hub_(std::move(hub)), from_(from), to_(to), sends_(sends) {
  message_.pieces = std::move(pieces);
  message_.total = TotalBytes(message_.pieces);
  message_.SkipFinishedPieces();
  if (message_.total == 0) return;
  bool ended = false;
  {
    Edge& edge = hub_->edge(from_, to_);
    std::lock_guard lock(edge.mutex);
    (sends_ ? edge.sends : edge.receives).push_back(&message_);
    ended = hub_->Match(edge);
  }
  if (ended) hub_->bells[peer()].Ring();
}

PointToPoint::~PointToPoint() {
  if (done()) return;
  Edge& edge = hub_->edge(from_, to_);
  bool broke = false;
  {
    std::lock_guard lock(edge.mutex);
    std::deque<Message*>& queue = sends_ ? edge.sends : edge.receives;
    const auto place = std::find(queue.begin(), queue.end(), &message_);
    if (place != queue.end()) {
      queue.erase(place);
      edge.stopped = edge.stopped || message_.moved.load() != 0;
      broke = edge.broken = edge.stopped && (edge.broken || !communicator_.closed());
    }
  }
  if (broke) hub_->bells[peer()].Ring();
}

std::optional<CommunicationError> PointToPoint::Problem() {
  const bool left = hub_->left[peer()].load(std::memory_order_acquire);
  bool broken = false;
  {
    Edge& edge = hub_->edge(from_, to_);
    std::lock_guard lock(edge.mutex);
    broken = edge.broken;
  }
  // What the peer sent before it left still counts.
  if ((!left && !broken) || done()) return std::nullopt;
  return CommunicationError(
      left ? CommunicationError::Kind::kPeerDied : CommunicationError::Kind::kTransport, peer(),
      "rank " + std::to_string(peer()) +
          (left ? " has left the group" : " dropped a message half-way") + "; rank " +
          std::to_string(communicator_.rank()) + " waits for the " + Describe());
}

std::string PointToPoint::Describe() const {
  return std::string(sends_ ? "send" : "receive") + " of " + std::to_string(message_.total) +
         " bytes " + (sends_ ? "to" : "from") + " rank " + std::to_string(peer()) + " (" +
         std::to_string(message_.moved.load(std::memory_order_relaxed)) + " so far)";
}

// The buffers are about to go: no other thread may start on them, and those at work must end.
GroupOperation::~GroupOperation() {
  if (done()) return;
  {
    std::unique_lock lock(slot_->mutex);
    slot_->given_up = true;
    if (slot_->error.empty() && !communicator_.closed()) {
      slot_->error = "rank " + std::to_string(communicator_.rank()) + " dropped the " +
                     Name(slot_->kind) + " unfinished";
    }
    slot_->idle.wait(lock, [&] { return slot_->at_work == 0; });
  }
  for (int member : slot_->group) hub_->bells[member].Ring();
}

std::optional<CommunicationError> GroupOperation::Problem() {
  std::string error;
  int absent = -1;
  {
    std::lock_guard lock(slot_->mutex);
    error = slot_->error;
    for (size_t i = 0; i < slot_->members.size(); ++i) {
      const int member = slot_->group[i];
      if (!slot_->members[i].here && hub_->left[member].load(std::memory_order_acquire)) {
        absent = member;
      }
    }
  }
  if (!error.empty()) return CommunicationError(CommunicationError::Kind::kTransport, -1, error);
  if (absent < 0) return std::nullopt;
  return CommunicationError(CommunicationError::Kind::kPeerDied, absent,
                            "rank " + std::to_string(absent) + " has left the group; rank " +
                                std::to_string(communicator_.rank()) + " waits for the " +
                                Describe());
}

int GroupOperation::peer() const {
  std::lock_guard lock(slot_->mutex);
  for (size_t i = 0; i < slot_->members.size(); ++i) {
    if (!slot_->members[i].here) return slot_->group[i];
  }
  return -1;
}

std::string GroupOperation::Describe() const {
  std::lock_guard lock(slot_->mutex);
  std::string text = std::string(Name(slot_->kind)) + " of " + std::to_string(slot_->bytes) +
                     " bytes over " + std::to_string(slot_->group.size()) + " ranks";
  std::string absent;
  for (size_t i = 0; i < slot_->members.size(); ++i) {
    if (!slot_->members[i].here)
      absent += (absent.empty() ? "" : ", ") + std::to_string(slot_->group[i]);
  }
  return absent.empty() ? text : text + " (missing: rank " + absent + ")";
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeInProcessGroup(int size,
                                                              const InProcessOptions& options) {
  if (size < 1) throw std::invalid_argument("a group needs at least one rank");
  auto hub = std::make_shared<Hub>(size, options);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<InProcessCommunicator>(hub, rank));
  }
  return ranks;
}

}  // namespace autopart
