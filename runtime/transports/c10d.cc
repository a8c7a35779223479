// A pending Gloo operation can be neither polled nor, from the outside, be given up: its wait
// blocks, and one that expires closes the connection. So a helper thread waits for each lane (one
// direction of one channel with one peer) and owns the buffers; the rank itself waits for its bell,
// which the helpers and the thread that watches the abort record ring.
//
// Each message becomes a first frame of fixed size, which begins with the message's length, and if
// it is longer a second frame with the rest: an operation costs about 100 us whatever its size, so
// all pieces of a message travel together, and the receiver knows how much to ask for. The receiver
// asks for a frame only while a started receive wants bytes, so nothing waits without need.
#include "runtime/transports/c10d.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "runtime/transports/bell.h"
#include "runtime/transports/collectives.h"

namespace autopart {
namespace {

using internal::Bell;
using internal::Channel;
using internal::TotalBytes;
using internal::WaitingOperation;
using Kind = CommunicationError::Kind;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr int64_t kFirstFrameBytes = 4096;
constexpr int64_t kLengthBytes = 8;
constexpr int64_t kFirstPayload = kFirstFrameBytes - kLengthBytes;

at::Tensor EmptyBytes(int64_t size) { return at::empty({size}, at::kByte); }

// The backend's message without its source line, back trace and advice.
std::string Brief(std::string text) {
  text = text.substr(0, text.find("\nException raised from"));
  text = text.substr(0, text.find(". This is typically caused"));
  if (text.starts_with("[/")) text = text.substr(std::min(text.size(), text.find("] ") + 2));
  return text.empty() ? "no message" : text;
}

std::byte* Data(const at::Tensor& bytes) {
  return reinterpret_cast<std::byte*>(bytes.mutable_data_ptr());
}

// A thread that is joined if it ends soon after it was told to, and else left to itself: it holds
// all that it uses.
class Helper {
 public:
  template <typename Function>
  explicit Helper(Function function) {
    std::packaged_task<void()> task(std::move(function));
    ended_ = task.get_future();
    thread_ = std::thread(std::move(task));
  }
  Helper(Helper&&) = default;
  ~Helper() {
    if (!thread_.joinable()) return;
    if (ended_.wait_for(std::chrono::seconds(2)) == std::future_status::ready) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }

 private:
  std::future<void> ended_;
  std::thread thread_;
};

// What a lane's helper and the rank share.
struct Lane {
  Lane(BackendPtr backend, std::shared_ptr<Bell> bell, int peer, int tag,
       std::chrono::milliseconds timeout)
      : backend(std::move(backend)),
        bell(std::move(bell)),
        peer(peer),
        tag(tag),
        timeout(timeout) {}

  const BackendPtr backend;
  const std::shared_ptr<Bell> bell;
  const int peer;
  const int tag;  // of first frames; the next one is of second frames
  const std::chrono::milliseconds timeout;

  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  bool stopped = false;
  std::string error;
  std::vector<c10::intrusive_ptr<c10d::Work>> at_work;
  // Sends: messages as frames, and how many are out.
  std::deque<std::vector<at::Tensor>> outgoing;
  uint64_t num_queued = 0, num_sent = 0;
  // Receives: how many bytes of payload were asked for and have come since the beginning.
  uint64_t wanted = 0, arrived = 0;
  struct Payload {
    at::Tensor frame;
    int64_t begin, end;
  };
  std::deque<Payload> incoming;

  void Stop() {
    std::lock_guard lock(mutex);
    stopped = true;
    for (auto& work : at_work) {
      try {
        work->abort();
      } catch (const std::exception&) {
        // A backend that cannot: its thread is left to itself.
      }
    }
    changed.notify_all();
  }

  // Waits for started work outside the lock; false if stopped.
  bool Finish(std::vector<c10::intrusive_ptr<c10d::Work>> works) {
    {
      std::lock_guard lock(mutex);
      if (stopped) {
        for (auto& work : works) work->abort();
        return false;
      }
      at_work = works;
    }
    for (auto& work : works) {
      if (!work->wait(timeout)) return false;
    }
    std::lock_guard lock(mutex);
    at_work.clear();
    return !stopped;
  }

  void SendAll() {
    for (;;) {
      std::vector<at::Tensor> frames;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stopped || !outgoing.empty(); });
        if (stopped) return;
        frames = std::move(outgoing.front());
        outgoing.pop_front();
      }
      std::vector<c10::intrusive_ptr<c10d::Work>> works;
      for (size_t i = 0; i < frames.size(); ++i) {
        std::vector<at::Tensor> one = {frames[i]};
        works.push_back(backend->send(one, peer, tag + static_cast<int>(i)));
      }
      if (!Finish(std::move(works))) return;
      {
        std::lock_guard lock(mutex);
        ++num_sent;
      }
      bell->Ring();
    }
  }

  void ReceiveAll() {
    for (;;) {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stopped || arrived < wanted; });
        if (stopped) return;
      }
      std::vector<at::Tensor> first = {EmptyBytes(kFirstFrameBytes)};
      if (!Finish({backend->recv(first, peer, tag)})) return;
      uint64_t length = 0;
      std::memcpy(&length, Data(first[0]), kLengthBytes);
      const int64_t inside = std::min<uint64_t>(length, kFirstPayload);
      std::vector<at::Tensor> second;
      if (length > uint64_t{kFirstPayload}) {
        second = {EmptyBytes(length - kFirstPayload)};
        if (!Finish({backend->recv(second, peer, tag + 1)})) return;
      }
      {
        std::lock_guard lock(mutex);
        incoming.push_back({first[0], kLengthBytes, kLengthBytes + inside});
        if (!second.empty()) incoming.push_back({second[0], 0, second[0].numel()});
        arrived += length;
      }
      bell->Ring();
    }
  }

  void Run(void (Lane::*loop)()) {
    try {
      (this->*loop)();
    } catch (const std::exception& failure) {
      std::lock_guard lock(mutex);
      error = Brief(failure.what());
    }
    bell->Ring();
  }
};

// The abort record: one key of the store, the first writer wins. A thread with its own connection
// watches it, since a store call may block for long.
class AbortWatch {
 public:
  AbortWatch(StorePtr store, std::string key, std::shared_ptr<Bell> bell,
             std::chrono::milliseconds poll)
      : state_(std::make_shared<State>()), store_(std::move(store)) {
    state_->store = store_->clone();
    state_->key = std::move(key);
    state_->bell = std::move(bell);
    thread_.emplace([state = state_, poll] { Watch(*state, poll); });
  }

  ~AbortWatch() {
    std::lock_guard lock(state_->mutex);
    state_->stopped = true;
    state_->changed.notify_all();
  }

  void Publish(const AbortRecord& record) {
    AbortRecord winner = record;
    try {
      std::lock_guard lock(store_mutex_);
      winner = Parse(store_->compareSet(state_->key, {}, Format(record)));
    } catch (const std::exception&) {
      // The store is gone, and with it the way to the others; this rank still ends.
    }
    state_->Set(winner);
  }

  std::optional<AbortRecord> record() const {
    std::lock_guard lock(state_->mutex);
    return state_->record;
  }

  std::string store_error() const {
    std::lock_guard lock(state_->mutex);
    return state_->error;
  }

  // A peer that fails publishes its record before it closes its connections.
  void LookNow() {
    try {
      std::lock_guard lock(store_mutex_);
      if (store_->check({state_->key})) state_->Set(Parse(store_->get(state_->key)));
    } catch (const std::exception&) {
    }
  }

 private:
  struct State {
    StorePtr store;
    std::string key;
    std::shared_ptr<Bell> bell;

    mutable std::mutex mutex;  // guards the rest
    std::condition_variable changed;
    bool stopped = false;
    std::optional<AbortRecord> record;
    std::string error;

    void Set(const AbortRecord& winner) {
      {
        std::lock_guard lock(mutex);
        if (!record) record = winner;
      }
      bell->Ring();
    }
  };

  static std::vector<uint8_t> Format(const AbortRecord& record) {
    const std::string text = std::to_string(record.rank) + "\n" + record.what;
    return {text.begin(), text.end()};
  }

  static AbortRecord Parse(const std::vector<uint8_t>& bytes) {
    const std::string text(bytes.begin(), bytes.end());
    const size_t end = text.find('\n');
    if (end == std::string::npos) return {-1, text};
    return {std::atoi(text.c_str()), text.substr(end + 1)};
  }

  static void Watch(State& state, std::chrono::milliseconds poll) {
    for (;;) {
      {
        std::unique_lock lock(state.mutex);
        if (state.changed.wait_for(lock, poll, [&] { return state.stopped || state.record; })) {
          return;
        }
      }
      try {
        if (!state.store->check({state.key})) continue;
        state.Set(Parse(state.store->get(state.key)));
      } catch (const std::exception& failure) {
        {
          std::lock_guard lock(state.mutex);
          state.error = Brief(failure.what());
        }
        state.bell->Ring();
        return;
      }
    }
  }

  std::shared_ptr<State> state_;
  std::mutex store_mutex_;
  StorePtr store_;
  std::optional<Helper> thread_;  // ends after the destructor's body told it to
};

class Transfer;

class C10dCommunicator final : public internal::MessageCommunicator {
 public:
  C10dCommunicator(BackendPtr backend, StorePtr store, const C10dOptions& options)
      : backend_(std::move(backend)),
        options_(options),
        transport_(backend_->getBackendName()),
        bell_(std::make_shared<Bell>()),
        abort_(std::move(store), options.name + "/abort", bell_, options.abort_poll) {}

  ~C10dCommunicator() override {
    for (auto& [key, line] : lines_) line.lane->Stop();
  }

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }
  std::string_view transport() const override { return transport_; }
  void Abort(const AbortRecord& record) override { abort_.Publish(record); }
  std::optional<AbortRecord> aborted() const override { return abort_.record(); }

 private:
  friend class Transfer;

  struct Line {
    std::shared_ptr<Lane> lane;
    std::optional<Helper> helper;
    std::deque<Transfer*> receives;
  };

  std::unique_ptr<WaitingOperation> StartSendOn(Channel channel, int peer,
                                                std::vector<ConstBytes> pieces) override;
  std::unique_ptr<WaitingOperation> StartReceiveOn(Channel channel, int peer,
                                                   std::vector<Bytes> pieces) override;

  Line& LineOf(Channel channel, int peer, bool sends) {
    Line& line = lines_[{peer, channel, sends}];
    if (!line.lane) {
      const int tag = 2 * static_cast<int>(channel);
      line.lane = std::make_shared<Lane>(backend_, bell_, peer, tag, options_.operation_timeout);
      line.helper.emplace(
          [lane = line.lane, sends] { lane->Run(sends ? &Lane::SendAll : &Lane::ReceiveAll); });
    }
    return line;
  }

  void AdvanceMessages() override {
    for (auto& [key, line] : lines_) {
      if (!line.receives.empty()) Deliver(line);
    }
  }
  static void Deliver(Line& line);

  uint64_t Ticket() const override { return bell_->count(); }
  void Rest(uint64_t ticket, Clock::time_point, Clock::time_point until) override {
    bell_->Rest(ticket, until, std::chrono::microseconds(0));  // the helpers need the core
  }

  const BackendPtr backend_;
  const C10dOptions options_;
  const std::string transport_;
  const std::shared_ptr<Bell> bell_;
  AbortWatch abort_;
  std::map<std::tuple<int, Channel, bool>, Line> lines_;
};

class Transfer final : public WaitingOperation {
 public:
  // A send: its bytes are in the lane's queue.
  Transfer(C10dCommunicator& ranks, C10dCommunicator::Line* line, int peer, size_t total,
           uint64_t number)
      : WaitingOperation(ranks),
        ranks_(ranks),
        line_(line),
        peer_(peer),
        sends_(true),
        total_(total),
        number_(number) {}
  // A receive.
  Transfer(C10dCommunicator& ranks, C10dCommunicator::Line* line, int peer,
           std::vector<Bytes> pieces)
      : WaitingOperation(ranks),
        ranks_(ranks),
        line_(line),
        peer_(peer),
        sends_(false),
        total_(TotalBytes(pieces)),
        pieces_(std::move(pieces)) {}

  ~Transfer() override {
    if (sends_ || line_ == nullptr || done()) return;
    // Bytes are on their way that nobody will take: the lane cannot go on.
    auto& queue = line_->receives;
    queue.erase(std::remove(queue.begin(), queue.end(), this), queue.end());
    ranks_.Close(CommunicationError(
        Kind::kTransport, peer_,
        "rank " + std::to_string(ranks_.rank()) + " dropped the " + Describe() + " unfinished"));
  }

  bool done() const override {
    if (line_ == nullptr) return true;  // no bytes
    if (!sends_) return moved_ == total_;
    std::lock_guard lock(line_->lane->mutex);
    return line_->lane->num_sent >= number_;
  }

  int peer() const override { return peer_; }

  std::optional<CommunicationError> Problem() override {
    std::string error;
    {
      std::lock_guard lock(line_->lane->mutex);
      error = line_->lane->error;
    }
    const std::string waits =
        "; rank " + std::to_string(ranks_.rank()) + " waits for the " + Describe();
    if (!error.empty()) {
      ranks_.abort_.LookNow();
      const bool gone = error.find("closed") != std::string::npos ||
                        error.find("reset") != std::string::npos ||
                        error.find("refused") != std::string::npos;
      return CommunicationError(
          gone ? Kind::kPeerDied : Kind::kTransport, peer_,
          (gone ? "rank " + std::to_string(peer_) + " is gone (" : "the backend failed (") + error +
              ")" + waits);
    }
    error = ranks_.abort_.store_error();
    if (error.empty()) return std::nullopt;
    return CommunicationError(
        Kind::kPeerDied, -1,
        "the store cannot be reached, its process has probably ended (" + error + ")" + waits);
  }

  std::string Describe() const override {
    std::string text = std::string(sends_ ? "send" : "receive") + " of " + std::to_string(total_) +
                       " bytes " + (sends_ ? "to" : "from") + " rank " + std::to_string(peer_);
    return sends_ ? text : text + " (" + std::to_string(moved_) + " so far)";
  }

  // Takes what fits, returns how much.
  size_t Take(ConstBytes bytes) {
    size_t taken = 0;
    while (moved_ < total_ && taken < bytes.size()) {
      while (pieces_[piece_].size() == offset_) {
        ++piece_;
        offset_ = 0;
      }
      const Bytes rest = pieces_[piece_].subspan(offset_);
      const size_t count = std::min(rest.size(), bytes.size() - taken);
      std::memcpy(rest.data(), bytes.data() + taken, count);
      taken += count;
      offset_ += count;
      moved_ += count;
    }
    return taken;
  }

 private:
  C10dCommunicator& ranks_;
  C10dCommunicator::Line* const line_;  // nodes of a map: they stay
  const int peer_;
  const bool sends_;
  const size_t total_;
  const uint64_t number_ = 0;  // of a send on its lane, from 1
  const std::vector<Bytes> pieces_;
  size_t piece_ = 0, offset_ = 0, moved_ = 0;
};

void C10dCommunicator::Deliver(Line& line) {
  std::lock_guard lock(line.lane->mutex);
  auto& incoming = line.lane->incoming;
  while (!line.receives.empty() && !incoming.empty()) {
    Lane::Payload& payload = incoming.front();
    const ConstBytes bytes(Data(payload.frame) + payload.begin, payload.end - payload.begin);
    payload.begin += line.receives.front()->Take(bytes);
    if (payload.begin == payload.end) incoming.pop_front();
    if (line.receives.front()->done()) line.receives.pop_front();
  }
}

std::unique_ptr<WaitingOperation> C10dCommunicator::StartSendOn(Channel channel, int peer,
                                                                std::vector<ConstBytes> pieces) {
  const size_t total = TotalBytes(pieces);
  if (total == 0) return std::make_unique<Transfer>(*this, nullptr, peer, 0, 0);
  std::vector<at::Tensor> frames = {EmptyBytes(kFirstFrameBytes)};
  const uint64_t length = total;
  std::memcpy(Data(frames[0]), &length, kLengthBytes);
  if (total > size_t{kFirstPayload}) frames.push_back(EmptyBytes(total - kFirstPayload));
  size_t place = 0;  // in the payload
  for (ConstBytes piece : pieces) {
    while (!piece.empty()) {
      const bool first = place < size_t{kFirstPayload};
      const size_t count = first ? std::min(piece.size(), kFirstPayload - place) : piece.size();
      std::byte* to = first ? Data(frames[0]) + kLengthBytes + place
                            : Data(frames[1]) + (place - kFirstPayload);
      std::memcpy(to, piece.data(), count);
      place += count;
      piece = piece.subspan(count);
    }
  }
  // The rest of a short first frame is sent too.
  if (place < size_t{kFirstPayload}) {
    std::memset(Data(frames[0]) + kLengthBytes + place, 0, kFirstPayload - place);
  }
  Line& line = LineOf(channel, peer, true);
  uint64_t number = 0;
  {
    std::lock_guard lock(line.lane->mutex);
    line.lane->outgoing.push_back(std::move(frames));
    number = ++line.lane->num_queued;
    line.lane->changed.notify_all();
  }
  return std::make_unique<Transfer>(*this, &line, peer, total, number);
}

std::unique_ptr<WaitingOperation> C10dCommunicator::StartReceiveOn(Channel channel, int peer,
                                                                   std::vector<Bytes> pieces) {
  const size_t total = TotalBytes(pieces);
  if (total == 0) return std::make_unique<Transfer>(*this, nullptr, peer, 0, 0);
  Line& line = LineOf(channel, peer, false);
  auto transfer = std::make_unique<Transfer>(*this, &line, peer, std::move(pieces));
  line.receives.push_back(transfer.get());
  {
    std::lock_guard lock(line.lane->mutex);
    line.lane->wanted += total;
    line.lane->changed.notify_all();
  }
  return transfer;
}

}  // namespace

std::unique_ptr<Communicator> MakeC10dCommunicator(c10::intrusive_ptr<c10d::Backend> backend,
                                                   c10::intrusive_ptr<c10d::Store> store,
                                                   const C10dOptions& options) {
  return std::make_unique<C10dCommunicator>(std::move(backend), std::move(store), options);
}

}  // namespace autopart
