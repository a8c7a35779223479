#include "runtime/transports/waiting_communicator.h"

#include <algorithm>
#include <utility>

namespace autopart::internal {
namespace {

std::string Seconds(Clock::duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  std::string text = std::to_string(seconds);
  return text.substr(0, text.find('.') + 2) + " s";
}

}  // namespace

bool WaitingOperation::Poll() { return communicator_.Poll(*this); }

void WaitingOperation::Wait(Clock::time_point deadline) { communicator_.Wait(*this, deadline); }

void WaitingCommunicator::CheckOpen() {
  if (first_cause_) throw *first_cause_;
  if (const std::optional<AbortRecord> record = aborted()) FailAborted(*record);
}

void WaitingCommunicator::Close(CommunicationError error) {
  if (!first_cause_) first_cause_ = std::move(error);
}

void WaitingCommunicator::Fail(CommunicationError error) {
  Close(std::move(error));
  throw *first_cause_;
}

void WaitingCommunicator::FailAborted(const AbortRecord& record) {
  Fail(CommunicationError(CommunicationError::Kind::kAborted, record.rank,
                          "rank " + std::to_string(record.rank) + " failed: " + record.what));
}

bool WaitingCommunicator::Poll(WaitingOperation& operation) {
  if (first_cause_) throw *first_cause_;
  if (operation.done()) return true;
  Advance();
  if (operation.done()) return true;
  CheckOpen();
  if (const auto problem = operation.Problem()) {
    Advance();
    if (operation.done()) return true;
    CheckOpen();
    Fail(*problem);
  }
  return operation.done();
}

void WaitingCommunicator::Wait(WaitingOperation& operation, Clock::time_point deadline) {
  if (first_cause_) throw *first_cause_;
  if (operation.done()) return;
  struct Rested {
    WaitingCommunicator& communicator;
    ~Rested() { communicator.StopResting(); }
  } rested{*this};
  std::optional<Clock::time_point> start;
  for (;;) {
    const uint64_t ticket = Ticket();
    if (Poll(operation)) return;
    const Clock::time_point now = Clock::now();
    if (!start) start = now;
    if (now >= deadline) {
      Fail(CommunicationError(CommunicationError::Kind::kDeadline, operation.peer(),
                              "deadline passed: rank " + std::to_string(rank()) + " waited " +
                                  Seconds(now - *start) + " for the " + operation.Describe() +
                                  " over " + std::string(transport())));
    }
    Rest(ticket, now, deadline);
  }
}

void WaitingCommunicator::CheckPeer(int peer) const {
  if (peer >= 0 && peer < size() && peer != rank()) return;
  throw std::invalid_argument("rank " + std::to_string(rank()) + " of " + std::to_string(size()) +
                              " cannot exchange messages with rank " + std::to_string(peer));
}

void WaitingCommunicator::CheckGroup(std::span<const int> group) const {
  const bool ascending =
      std::adjacent_find(group.begin(), group.end(), std::greater_equal<int>()) == group.end();
  const bool member = std::find(group.begin(), group.end(), rank()) != group.end();
  if (ascending && member && group.front() >= 0 && group.back() < size()) return;
  throw std::invalid_argument("a group must list ranks of 0.." + std::to_string(size() - 1) +
                              " in ascending order, rank " + std::to_string(rank()) + " included");
}

void WaitingCommunicator::CheckBroadcast(std::span<const int> group, int root) const {
  CheckGroup(group);
  if (std::find(group.begin(), group.end(), root) != group.end()) return;
  throw std::invalid_argument("broadcast: root " + std::to_string(root) + " is not in the group");
}

void WaitingCommunicator::CheckAllGather(std::span<const int> group, ConstBytes mine,
                                         Bytes all) const {
  CheckGroup(group);
  if (all.size() == mine.size() * group.size()) return;
  throw std::invalid_argument("all-gather: the result has " + std::to_string(all.size()) +
                              " bytes, " + std::to_string(group.size()) + " parts of " +
                              std::to_string(mine.size()) + " bytes need " +
                              std::to_string(mine.size() * group.size()));
}

void WaitingCommunicator::CheckAllReduce(std::span<const int> group, Bytes data,
                                         size_t element_bytes) const {
  CheckGroup(group);
  if (element_bytes != 0 && data.size() % element_bytes == 0) return;
  throw std::invalid_argument("all-reduce: " + std::to_string(data.size()) +
                              " bytes are not whole elements of " + std::to_string(element_bytes) +
                              " bytes");
}

size_t TotalBytes(std::span<const ConstBytes> pieces) {
  size_t total = 0;
  for (const ConstBytes& piece : pieces) total += piece.size();
  return total;
}

size_t TotalBytes(std::span<const Bytes> pieces) {
  size_t total = 0;
  for (const Bytes& piece : pieces) total += piece.size();
  return total;
}

}  // namespace autopart::internal
