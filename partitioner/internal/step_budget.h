// How much a search may cost: steps that it counts itself, so that the answer does not depend on
// the machine, or a stop from outside.
#ifndef AUTOPART_PARTITIONER_INTERNAL_STEP_BUDGET_H_
#define AUTOPART_PARTITIONER_INTERNAL_STEP_BUDGET_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

namespace autopart::internal {

class StepBudget {
 public:
  // `stop` may be empty; it is asked every hundred thousand steps.
  StepBudget(int64_t max_steps, std::function<bool()> stop)
      : max_steps_(max_steps), stop_(std::move(stop)) {}

  void Count(int64_t steps) { left_ -= steps; }
  bool IsOver() { return left_ < 0 && !Refill(); }
  int64_t spent() const { return given_ - left_; }

 private:
  bool Refill() {
    while (left_ < 0) {
      const int64_t more = std::min<int64_t>(100'000, max_steps_ - given_);
      if (more <= 0 || (stop_ && stop_())) return false;
      given_ += more;
      left_ += more;
    }
    return true;
  }

  const int64_t max_steps_;
  const std::function<bool()> stop_;
  int64_t given_ = 0, left_ = 0;
};

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_STEP_BUDGET_H_
