// Progress of a long command, for people: now and then one line on stderr.
#ifndef AUTOPART_RUNTIME_CLI_PROGRESS_H_
#define AUTOPART_RUNTIME_CLI_PROGRESS_H_

#include <chrono>
#include <ostream>
#include <string>

namespace autopart {

// Silent for the first seconds, then a line every so often: the latest, with the time passed. One
// thread.
class Progress {
 public:
  explicit Progress(std::ostream& err, std::chrono::milliseconds every = std::chrono::seconds(2));

  void Say(const std::string& line);

 private:
  std::ostream& err_;
  const std::chrono::milliseconds every_;
  const std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_PROGRESS_H_
