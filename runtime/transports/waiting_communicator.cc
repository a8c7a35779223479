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

void WaitingCommunicator::Fail(CommunicationError error) {
  if (!first_cause_) first_cause_ = std::move(error);
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
  operation.Check();
  return operation.done();
}

void WaitingCommunicator::Wait(WaitingOperation& operation, Clock::time_point deadline) {
  if (first_cause_) throw *first_cause_;
  std::optional<Clock::time_point> start;
  for (;;) {
    const uint64_t ticket = Ticket();
    if (operation.done()) return;
    Advance();
    if (operation.done()) return;
    CheckOpen();
    operation.Check();
    const Clock::time_point now = Clock::now();
    if (!start) start = now;
    if (now >= deadline) {
      Fail(CommunicationError(CommunicationError::Kind::kDeadline, operation.peer(),
                              "deadline passed: rank " + std::to_string(rank()) + " waited " +
                                  Seconds(now - *start) + " for the " + operation.Describe() +
                                  " over " + std::string(transport())));
    }
    Rest(ticket, deadline);
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
