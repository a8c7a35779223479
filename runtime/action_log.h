// When each action of one rank began and ended, step by step.
//
// RankExecutor fills it on the rank's thread (two looks at the clock an action, about 50 ns each;
// nothing where there is no log). Read it between steps. Times are of the steady clock, which the
// processes of one host share.
#ifndef AUTOPART_RUNTIME_ACTION_LOG_H_
#define AUTOPART_RUNTIME_ACTION_LOG_H_

#include <chrono>
#include <cstddef>
#include <vector>

namespace autopart {

struct TimeSpan {
  std::chrono::steady_clock::time_point begin, end;

  double seconds() const { return std::chrono::duration<double>(end - begin).count(); }
};

class ActionLog {
 public:
  struct Step {
    TimeSpan whole;
    std::vector<TimeSpan> actions;  // by index into the rank's list
  };

  void BeginStep(size_t num_actions) {
    steps_.emplace_back();
    steps_.back().actions.resize(num_actions);
    steps_.back().whole.begin = std::chrono::steady_clock::now();
  }
  void BeginAction(size_t index) {
    steps_.back().actions[index].begin = std::chrono::steady_clock::now();
  }
  void EndAction(size_t index) {
    steps_.back().actions[index].end = std::chrono::steady_clock::now();
  }
  void EndStep() { steps_.back().whole.end = std::chrono::steady_clock::now(); }

  const std::vector<Step>& steps() const { return steps_; }
  void Clear() { steps_.clear(); }

 private:
  std::vector<Step> steps_;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_ACTION_LOG_H_
