// Ctrl-C during a search that can give an answer at any time: the first asks for the answer found
// so far, a second one ends the process as usual.
//
// SIGINT is blocked while an Interrupt lives, and a thread of its own waits for it, so nothing runs
// in a signal handler. Threads that are made meanwhile have it blocked too. Where SIGINT is ignored
// it stays so.
#ifndef AUTOPART_RUNTIME_CLI_INTERRUPT_H_
#define AUTOPART_RUNTIME_CLI_INTERRUPT_H_

#include <csignal>
#include <stop_token>
#include <thread>

namespace autopart {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  std::stop_token token() const { return source_.get_token(); }
  bool came() const { return source_.stop_requested(); }

 private:
  void Wait();

  std::stop_source source_;
  sigset_t previous_;  // mask of the thread that made it
  int signals_ = -1;   // readable after a SIGINT
  int end_ = -1;       // readable when this goes
  std::thread waiter_;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_INTERRUPT_H_
