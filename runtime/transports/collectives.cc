#include "runtime/transports/collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

namespace autopart::internal {
namespace {

// Up to here data is exchanged whole: one exchange of small messages beats two.
constexpr size_t kSmallBytes = 16 << 10;
// A member's part of one all-reduce segment; two segments in flight stay in a second-level cache.
constexpr size_t kPartBytes = 256 << 10;

enum class Kind : uint64_t { kBroadcast, kAllGather, kAllReduce, kBarrier };

const char* Name(Kind kind) {
  constexpr const char* kNames[] = {"broadcast", "all-gather", "all-reduce", "barrier"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown collective";
}

// What a member is about to do.
struct Intent {
  Kind kind;
  uint64_t bytes;
  uint64_t element_bytes;
  int64_t root;
  bool operator==(const Intent&) const = default;
};

std::string Describe(const Intent& intent) {
  std::string text =
      std::string(Name(intent.kind)) + " of " + std::to_string(intent.bytes) + " bytes";
  if (intent.kind == Kind::kBroadcast) text += " from rank " + std::to_string(intent.root);
  return text;
}

struct Range {
  size_t begin, size;
};

// The i-th of n nearly equal parts of `count` elements, in bytes.
Range Part(size_t count, size_t element_bytes, size_t i, size_t n) {
  const size_t begin = count * i / n, end = count * (i + 1) / n;
  return {begin * element_bytes, (end - begin) * element_bytes};
}

}  // namespace

// One collective: a list of phases, each of which uses what the phases before received and starts
// the next transfers.
class Collective {
 public:
  Collective(MessageCommunicator& communicator, std::span<const int> group, Intent intent)
      : communicator_(communicator),
        group_(group.begin(), group.end()),
        me_(std::lower_bound(group.begin(), group.end(), communicator.rank()) - group.begin()),
        intent_(intent),
        intents_(group.size(), intent) {
    phases_.push_back([this] {
      ForOthers([this](size_t i) {
        Receive(i, std::as_writable_bytes(std::span(&intents_[i], 1)));
        Send(i, std::as_bytes(std::span(&intent_, 1)));
      });
    });
  }

  void AddBroadcast(Bytes data);
  void AddAllGather(ConstBytes mine, Bytes all);
  void AddAllReduce(Bytes data, Accumulate add);

  // Runs phases as far as transfers have come.
  void Advance();
  bool done() const { return done_; }
  void Drop() { transfers_.clear(); }
  std::optional<CommunicationError> Problem();
  std::string Describe() const {
    return internal::Describe(intent_) + " over " + std::to_string(group_.size()) + " ranks";
  }
  int peer() const {
    for (const auto& transfer : transfers_) {
      if (!transfer->done()) return transfer->peer();
    }
    return -1;
  }

 private:
  template <typename Function>
  void ForOthers(Function function) {
    // Starting with the next member spreads the load.
    for (size_t k = 1; k < group_.size(); ++k) function((me_ + k) % group_.size());
  }
  void Send(size_t member, ConstBytes bytes) {
    if (bytes.empty()) return;
    transfers_.push_back(communicator_.StartSendOn(Channel::kCollectives, group_[member], {bytes}));
  }
  void Receive(size_t member, Bytes bytes) {
    if (bytes.empty()) return;
    transfers_.push_back(
        communicator_.StartReceiveOn(Channel::kCollectives, group_[member], {bytes}));
  }
  void Compare();
  void ReduceInOrder(Bytes mine, std::vector<std::vector<std::byte>>& received,
                     const Accumulate& add) const;

  MessageCommunicator& communicator_;
  const std::vector<int> group_;
  const size_t me_;  // index in the group
  const Intent intent_;
  std::vector<Intent> intents_;
  std::optional<std::string> disagreement_;

  std::vector<std::function<void()>> phases_;
  size_t next_phase_ = 0;
  std::vector<std::unique_ptr<WaitingOperation>> transfers_;
  std::vector<std::vector<std::byte>> received_;
  bool done_ = false;
};

void Collective::Advance() {
  if (done_ || disagreement_) return;
  for (;;) {
    for (const auto& transfer : transfers_) {
      if (!transfer->done()) return;
    }
    transfers_.clear();
    if (next_phase_ == 1) Compare();
    if (disagreement_) return;
    if (next_phase_ == phases_.size()) {
      done_ = true;
      return;
    }
    phases_[next_phase_++]();
  }
}

void Collective::Compare() {
  for (size_t i = 0; i < group_.size(); ++i) {
    if (intents_[i] == intent_) continue;
    disagreement_ = "rank " + std::to_string(group_[me_]) + " called " +
                    internal::Describe(intent_) + ", rank " + std::to_string(group_[i]) + " " +
                    internal::Describe(intents_[i]) +
                    ": all members must call the same collectives in the same order";
    return;
  }
}

std::optional<CommunicationError> Collective::Problem() {
  if (disagreement_) {
    return CommunicationError(CommunicationError::Kind::kTransport, -1, *disagreement_);
  }
  for (const auto& transfer : transfers_) {
    if (transfer->done()) continue;
    if (auto problem = transfer->Problem()) {
      return CommunicationError(problem->kind(), problem->peer(),
                                std::string(problem->what()) + ", part of the " + Describe());
    }
  }
  return std::nullopt;
}

void Collective::AddBroadcast(Bytes data) {
  const size_t n = group_.size();
  const size_t root =
      std::lower_bound(group_.begin(), group_.end(), static_cast<int>(intent_.root)) -
      group_.begin();
  if (data.size() <= kSmallBytes || n == 2) {
    phases_.push_back([=, this] {
      if (me_ != root) return Receive(root, data);
      ForOthers([&](size_t i) { Send(i, data); });
    });
    return;
  }
  const auto part = [=](size_t i) {
    const Range range = Part(data.size(), 1, i, n);
    return data.subspan(range.begin, range.size);
  };
  phases_.push_back([=, this] {
    if (me_ != root) return Receive(root, part(me_));
    ForOthers([&](size_t i) { Send(i, part(i)); });
  });
  phases_.push_back([=, this] {
    ForOthers([&](size_t i) {
      if (i != root) Send(i, part(me_));
      if (me_ != root) Receive(i, part(i));
    });
  });
}

void Collective::AddAllGather(ConstBytes mine, Bytes all) {
  phases_.push_back([=, this] {
    const size_t size = mine.size();
    if (size != 0) std::memmove(all.data() + me_ * size, mine.data(), size);
    ForOthers([&](size_t i) {
      Receive(i, all.subspan(i * size, size));
      Send(i, mine);
    });
  });
}

// mine <- the sum in the group's order of mine and received[i], i != me.
void Collective::ReduceInOrder(Bytes mine, std::vector<std::vector<std::byte>>& received,
                               const Accumulate& add) const {
  if (mine.empty()) return;
  const Bytes sum = me_ == 0 ? mine : Bytes(received[0]).first(mine.size());
  for (size_t i = 1; i < group_.size(); ++i) {
    add(sum, i == me_ ? ConstBytes(mine) : ConstBytes(received[i]).first(mine.size()));
  }
  if (me_ != 0) std::memcpy(mine.data(), sum.data(), sum.size());
}

void Collective::AddAllReduce(Bytes data, Accumulate add) {
  const size_t n = group_.size();
  if (n == 1 || data.empty()) return;
  received_.resize(n);
  if (data.size() <= kSmallBytes) {
    phases_.push_back([=, this] {
      ForOthers([&](size_t i) {
        received_[i].resize(data.size());
        Receive(i, received_[i]);
        Send(i, data);
      });
    });
    phases_.push_back([=, this] { ReduceInOrder(data, received_, add); });
    return;
  }
  const size_t element = intent_.element_bytes;
  const size_t count = data.size() / element;
  const size_t segment = std::max<size_t>(1, kPartBytes / element) * n;
  const size_t num_segments = (count + segment - 1) / segment;
  // The part of member i in segment s.
  const auto part = [=](size_t s, size_t i) {
    const Range range = Part(std::min(segment, count - s * segment), element, i, n);
    return data.subspan(s * segment * element + range.begin, range.size);
  };
  // Phase s sums segment s - 1 and gathers it, and scatters segment s.
  for (size_t s = 0; s <= num_segments; ++s) {
    phases_.push_back([=, this] {
      if (s > 0) ReduceInOrder(part(s - 1, me_), received_, add);
      ForOthers([&](size_t i) {
        if (s > 0) {
          Receive(i, part(s - 1, i));
          Send(i, part(s - 1, me_));
        }
        if (s < num_segments) {
          received_[i].resize(part(s, me_).size());
          Receive(i, received_[i]);
          Send(i, part(s, i));
        }
      });
    });
  }
}

class CollectiveOperation final : public WaitingOperation {
 public:
  CollectiveOperation(MessageCommunicator& communicator, std::shared_ptr<Collective> collective)
      : WaitingOperation(communicator),
        messages_(communicator),
        collective_(std::move(collective)) {}

  ~CollectiveOperation() override {
    if (done()) return;
    auto& pending = messages_.collectives_;
    const auto place = std::find(pending.begin(), pending.end(), collective_);
    if (place == pending.end()) return;  // the communicator is gone
    pending.erase(place);
    messages_.Close(CommunicationError(
        CommunicationError::Kind::kTransport, -1,
        "rank " + std::to_string(messages_.rank()) + " dropped the " + Describe() + " unfinished"));
    collective_->Drop();
  }

  bool done() const override { return collective_->done(); }
  std::optional<CommunicationError> Problem() override {
    return messages_.collectives_.front()->Problem();
  }
  std::string Describe() const override { return collective_->Describe(); }
  int peer() const override { return collective_->peer(); }

 private:
  MessageCommunicator& messages_;
  std::shared_ptr<Collective> collective_;
};

MessageCommunicator::~MessageCommunicator() = default;

std::unique_ptr<Operation> MessageCommunicator::StartSend(int peer,
                                                          std::vector<ConstBytes> pieces) {
  CheckPeer(peer);
  CheckOpen();
  return StartSendOn(Channel::kMessages, peer, std::move(pieces));
}

std::unique_ptr<Operation> MessageCommunicator::StartReceive(int peer, std::vector<Bytes> pieces) {
  CheckPeer(peer);
  CheckOpen();
  return StartReceiveOn(Channel::kMessages, peer, std::move(pieces));
}

std::unique_ptr<Operation> MessageCommunicator::StartBroadcast(std::span<const int> group, int root,
                                                               Bytes data) {
  CheckBroadcast(group, root);
  auto collective =
      std::make_shared<Collective>(*this, group, Intent{Kind::kBroadcast, data.size(), 1, root});
  collective->AddBroadcast(data);
  return Start(std::move(collective));
}

std::unique_ptr<Operation> MessageCommunicator::StartAllGather(std::span<const int> group,
                                                               ConstBytes mine, Bytes all) {
  CheckAllGather(group, mine, all);
  auto collective =
      std::make_shared<Collective>(*this, group, Intent{Kind::kAllGather, mine.size(), 1, -1});
  collective->AddAllGather(mine, all);
  return Start(std::move(collective));
}

std::unique_ptr<Operation> MessageCommunicator::StartAllReduce(std::span<const int> group,
                                                               Bytes data, size_t element_bytes,
                                                               Accumulate add) {
  CheckAllReduce(group, data, element_bytes);
  auto collective = std::make_shared<Collective>(
      *this, group, Intent{Kind::kAllReduce, data.size(), element_bytes, -1});
  collective->AddAllReduce(data, std::move(add));
  return Start(std::move(collective));
}

std::unique_ptr<Operation> MessageCommunicator::StartBarrier(std::span<const int> group) {
  CheckGroup(group);
  return Start(std::make_shared<Collective>(*this, group, Intent{Kind::kBarrier, 0, 1, -1}));
}

std::unique_ptr<Operation> MessageCommunicator::Start(std::shared_ptr<Collective> collective) {
  CheckOpen();
  collectives_.push_back(collective);
  auto operation = std::make_unique<CollectiveOperation>(*this, std::move(collective));
  Advance();
  return operation;
}

void MessageCommunicator::Advance() {
  AdvanceMessages();
  while (!collectives_.empty()) {
    collectives_.front()->Advance();
    if (!collectives_.front()->done()) return;
    collectives_.pop_front();
  }
}

}  // namespace autopart::internal
