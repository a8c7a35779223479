// A signal handler may do next to nothing, and what is worth saying (the current action, the abort
// record, dead peers) needs locks and memory. So the handler only wakes a thread that stands by,
// gives it half a second, and passes the signal on. If the interrupted thread holds a lock that the
// description needs, the half second passes and nothing is said.
#include "runtime/termination.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <mutex>
#include <thread>
#include <vector>

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

namespace autopart {

// One for the process, made at the first report and never destroyed: signals know no owner.
class TerminationReporter {
 public:
  static TerminationReporter& Get() {
    static TerminationReporter* const reporter = new TerminationReporter;
    instance_.store(reporter, std::memory_order_release);
    return *reporter;
  }

  void Add(TerminationReport* report) {
    std::lock_guard lock(mutex_);
    reports_.push_back(report);
    if (reports_.size() > 1) return;
    struct sigaction ours = {};
    ours.sa_sigaction = OnSignal;
    ours.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGTERM, &ours, &previous_);
  }

  void Remove(TerminationReport* report) {
    std::lock_guard lock(mutex_);
    reports_.erase(std::find(reports_.begin(), reports_.end(), report));
    if (!reports_.empty()) return;
    struct sigaction current = {};
    sigaction(SIGTERM, nullptr, &current);
    // Who has set a handler since then keeps it.
    const bool ours = (current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == OnSignal;
    if (ours) sigaction(SIGTERM, &previous_, nullptr);
  }

 private:
  TerminationReporter() {
    sem_init(&wanted_, 0, 0);
    // The thread must not be the one that the signal interrupts.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] { StandBy(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void StandBy() {
    for (;;) {
      while (sem_wait(&wanted_) != 0) {
      }
      std::string text = "autopart: SIGTERM during a step\n";
      {
        std::lock_guard lock(mutex_);
        for (const TerminationReport* report : reports_) {
          try {
            text += "  " + report->describe_() + "\n";
          } catch (...) {
            text += "  (no description)\n";
          }
        }
      }
      const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
      (void)written;
      num_answered_.fetch_add(1, std::memory_order_release);
    }
  }

  static void OnSignal(int signal, siginfo_t* info, void* context) {
    const int saved_errno = errno;
    TerminationReporter* const self = instance_.load(std::memory_order_acquire);
    const uint32_t answered = self->num_answered_.load(std::memory_order_acquire);
    sem_post(&self->wanted_);
    for (int ms = 0; ms < 500; ++ms) {
      if (self->num_answered_.load(std::memory_order_acquire) != answered) break;
      const timespec nap{0, 1000000};
      nanosleep(&nap, nullptr);
    }
    errno = saved_errno;
    PassOn(self->previous_, signal, info, context);
  }

  static void PassOn(const struct sigaction& previous, int signal, siginfo_t* info, void* context) {
    if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, info, context);
    if (previous.sa_handler == SIG_IGN) return;
    if (previous.sa_handler != SIG_DFL) return previous.sa_handler(signal);
    sigaction(signal, &previous, nullptr);
    raise(signal);  // blocked until the handler returns
  }

  static inline std::atomic<TerminationReporter*> instance_{nullptr};

  std::mutex mutex_;
  std::vector<TerminationReport*> reports_;
  struct sigaction previous_ = {};
  sem_t wanted_;
  std::atomic<uint32_t> num_answered_{0};
};

TerminationReport::TerminationReport(std::function<std::string()> describe)
    : describe_(std::move(describe)) {
  TerminationReporter::Get().Add(this);
}

TerminationReport::~TerminationReport() { TerminationReporter::Get().Remove(this); }

}  // namespace autopart
