// Messages of a rank to itself: two stages on one rank exchange by the same actions as any others.
#ifndef AUTOPART_RUNTIME_INTERNAL_LOOPBACK_H_
#define AUTOPART_RUNTIME_INTERNAL_LOOPBACK_H_

#include <algorithm>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <vector>

#include "runtime/communicator.h"

namespace autopart::internal {

// A byte stream. Sent pieces are borrowed until they are received.
class Loopback {
 public:
  void Send(std::vector<ConstBytes> pieces) {
    for (const ConstBytes& piece : pieces) {
      if (!piece.empty()) stream_.push_back(piece);
    }
  }

  void Receive(const std::vector<Bytes>& pieces) {
    for (Bytes piece : pieces) {
      while (!piece.empty()) {
        if (stream_.empty()) {
          throw std::runtime_error("a receive from the same rank stands before its send");
        }
        const size_t count = std::min(piece.size(), stream_.front().size());
        std::memcpy(piece.data(), stream_.front().data(), count);
        piece = piece.subspan(count);
        stream_.front() = stream_.front().subspan(count);
        if (stream_.front().empty()) stream_.pop_front();
      }
    }
  }

 private:
  std::deque<ConstBytes> stream_;
};

}  // namespace autopart::internal

#endif  // AUTOPART_RUNTIME_INTERNAL_LOOPBACK_H_
