// When a search has to end: a time limit, or a caller who wants the answer at once.
#ifndef AUTOPART_PARTITIONER_INTERNAL_DEADLINE_H_
#define AUTOPART_PARTITIONER_INTERNAL_DEADLINE_H_

#include <chrono>
#include <cmath>
#include <stop_token>

#include "partitioner/partitioner.h"

namespace autopart::internal {

// The clock starts with the object. Asking is cheap where there is neither limit nor stop.
class Deadline {
 public:
  explicit Deadline(const Effort& effort)
      : has_limit_(!std::isinf(effort.time_limit_s)),
        limit_s_(effort.time_limit_s),
        stop_(effort.stop),
        start_(Clock::now()) {}

  bool IsOver() const { return stop_.stop_requested() || (has_limit_ && left_s() <= 0); }
  bool has_limit() const { return has_limit_; }
  double left_s() const {  // infinity without a limit
    return limit_s_ - std::chrono::duration<double>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool has_limit_;
  double limit_s_;
  std::stop_token stop_;
  Clock::time_point start_;
};

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_DEADLINE_H_
