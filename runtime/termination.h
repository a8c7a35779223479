// Says what a step was doing when SIGTERM came: launchers send it to the survivors when a rank has
// died, and without a word a user sees only that the job is gone.
#ifndef AUTOPART_RUNTIME_TERMINATION_H_
#define AUTOPART_RUNTIME_TERMINATION_H_

#include <functional>
#include <string>

namespace autopart {

// While it lives, a SIGTERM prints describe() to stderr and then goes on to the handler that was
// there before (by default it ends the process). Several may live at once, one for each rank of
// the process. `describe` may be called from another thread, at any time until the destructor has
// returned; if it takes longer than half a second the signal goes on without it.
//
//   TerminationReport report([&] { return executor.Describe() + "; " + ranks.DescribeFailure(); });
class TerminationReport {
 public:
  explicit TerminationReport(std::function<std::string()> describe);
  ~TerminationReport();
  TerminationReport(const TerminationReport&) = delete;
  TerminationReport& operator=(const TerminationReport&) = delete;

 private:
  std::function<std::string()> describe_;
  friend class TerminationReporter;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_TERMINATION_H_
