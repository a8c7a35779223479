#include "runtime/cli/progress.h"

#include "absl/strings/str_format.h"

namespace autopart {

Progress::Progress(std::ostream& err, std::chrono::milliseconds every)
    : err_(err), every_(every), start_(std::chrono::steady_clock::now()), next_(start_ + every) {}

void Progress::Say(const std::string& line) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + every_;
  err_ << absl::StrFormat("%4.0f s  %s\n", std::chrono::duration<double>(now - start_).count(),
                          line)
       << std::flush;
}

}  // namespace autopart
