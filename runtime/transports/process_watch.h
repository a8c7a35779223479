// Notices the death of processes on this host.
//
// A pidfd names one process for ever, so a reused pid cannot fool it; the start time in /proc tells
// whether the pid still meant that process when the pidfd was opened. Where the kernel has no
// pidfds, the start time alone is compared at every look.
#ifndef AUTOPART_RUNTIME_TRANSPORTS_PROCESS_WATCH_H_
#define AUTOPART_RUNTIME_TRANSPORTS_PROCESS_WATCH_H_

#include <cstdint>

#include <sys/types.h>

namespace autopart::internal {

struct ProcessId {
  pid_t pid = 0;
  uint64_t start_time = 0;  // clock ticks after boot
};

ProcessId ThisProcess();
// True for a process that runs, false for one that has ended, reaped or not.
bool IsRunning(const ProcessId& process);

class ProcessWatch {
 public:
  explicit ProcessWatch(const ProcessId& process);
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  bool Died();  // stays true

 private:
  const ProcessId process_;
  int pidfd_ = -1;
  bool died_ = false;
};

}  // namespace autopart::internal

#endif  // AUTOPART_RUNTIME_TRANSPORTS_PROCESS_WATCH_H_
