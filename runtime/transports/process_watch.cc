#include "runtime/transports/process_watch.h"

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace autopart::internal {
namespace {

// State and start time (fields 3 and 22 of /proc/PID/stat); the name before them may hold anything.
bool ReadStat(pid_t pid, char& state, uint64_t& start_time) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return false;
  std::istringstream fields(text.substr(name_end + 1));
  fields >> state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  return static_cast<bool>(fields >> start_time);
}

}  // namespace

ProcessId ThisProcess() {
  ProcessId self{getpid(), 0};
  char state = 0;
  ReadStat(self.pid, state, self.start_time);
  return self;
}

bool IsRunning(const ProcessId& process) {
  char state = 0;
  uint64_t start_time = 0;
  return ReadStat(process.pid, state, start_time) && start_time == process.start_time &&
         state != 'Z' && state != 'X';
}

ProcessWatch::ProcessWatch(const ProcessId& process) : process_(process) {
#ifdef SYS_pidfd_open
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
#endif
  died_ = !IsRunning(process);
}

ProcessWatch::~ProcessWatch() {
  if (pidfd_ >= 0) close(pidfd_);
}

bool ProcessWatch::Died() {
  if (died_) return true;
  if (pidfd_ >= 0) {
    pollfd descriptor{pidfd_, POLLIN, 0};
    died_ = poll(&descriptor, 1, 0) == 1;
  } else {
    died_ = !IsRunning(process_);
  }
  return died_;
}

}  // namespace autopart::internal
