#include "runtime/cli/interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace autopart {
namespace {

sigset_t OnlyInterrupt() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

Interrupt::Interrupt() {
  const sigset_t interrupt = OnlyInterrupt();
  signals_ = signalfd(-1, &interrupt, SFD_CLOEXEC);
  end_ = eventfd(0, EFD_CLOEXEC);
  pthread_sigmask(SIG_SETMASK, nullptr, &previous_);
  if (signals_ < 0 || end_ < 0) return;  // out of descriptors: Ctrl-C ends the process as usual
  pthread_sigmask(SIG_BLOCK, &interrupt, nullptr);
  waiter_ = std::thread([this] { Wait(); });
}

Interrupt::~Interrupt() {
  if (waiter_.joinable()) {
    eventfd_write(end_, 1);
    waiter_.join();
  }
  if (signals_ >= 0) close(signals_);
  if (end_ >= 0) close(end_);
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

void Interrupt::Wait() {
  constexpr int kForever = -1;
  pollfd either[] = {{end_, POLLIN, 0}, {signals_, POLLIN, 0}};
  while (poll(either, 2, kForever) < 0) continue;  // another signal came
  if (either[0].revents != 0) return;
  signalfd_siginfo taken;  // so that it is not pending any more
  if (read(signals_, &taken, sizeof taken) != sizeof taken) return;
  source_.request_stop();
  const sigset_t interrupt = OnlyInterrupt();
  pthread_sigmask(SIG_UNBLOCK, &interrupt, nullptr);  // the next one is this thread's, and ends all
  while (poll(either, 1, kForever) < 0) continue;
}

}  // namespace autopart
