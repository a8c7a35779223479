#include "runtime/termination.h"

#include <chrono>
#include <csignal>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace autopart {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  int status;
  std::string stderr_text;
};

// Runs `function` in a child process and collects its stderr.
Ended InChild(const std::function<void()>& function) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    function();
    _exit(0);
  }
  close(ends[1]);
  Ended ended;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    ended.stderr_text.append(buffer, got);
  }
  close(ends[0]);
  waitpid(child, &ended.status, 0);
  return ended;
}

TEST(TerminationTest, SigtermDuringAStepSaysWhatWasGoingOnAndEndsTheProcess) {
  const Ended ended = InChild([] {
    TerminationReport zero([] { return std::string("rank 0: stage 0, 0F2"); });
    TerminationReport one([] { return std::string("rank 1: stage 1, RECV_F2 from rank 0"); });
    raise(SIGTERM);
  });
  EXPECT_TRUE(WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGTERM);
  EXPECT_THAT(ended.stderr_text, HasSubstr("rank 0: stage 0, 0F2\n"));
  EXPECT_THAT(ended.stderr_text, HasSubstr("rank 1: stage 1, RECV_F2 from rank 0\n"));
}

TEST(TerminationTest, TheHandlerThatWasThereBeforeRunsAfterwards) {
  const Ended ended = InChild([] {
    std::signal(SIGTERM, [](int) { _exit(write(STDERR_FILENO, "before\n", 7) == 7 ? 42 : 1); });
    TerminationReport report([] { return std::string("rank 0: 0F0"); });
    raise(SIGTERM);
  });
  EXPECT_TRUE(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 42);
  EXPECT_THAT(ended.stderr_text, HasSubstr("rank 0: 0F0\nbefore\n"));
}

TEST(TerminationTest, OutsideOfStepsNothingIsSaid) {
  const Ended ended = InChild([] {
    for (int step = 0; step < 3; ++step) {
      TerminationReport report([] { return std::string("rank 0: 0F0"); });
    }
    raise(SIGTERM);
  });
  EXPECT_TRUE(WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGTERM);
  EXPECT_THAT(ended.stderr_text, Not(HasSubstr("rank 0")));
}

TEST(TerminationTest, ADescriptionThatBlocksDoesNotHoldUpTheSignal) {
  const auto start = std::chrono::steady_clock::now();
  const Ended ended = InChild([] {
    std::mutex held;
    std::lock_guard lock(held);
    TerminationReport report([&] {
      std::lock_guard never(held);
      return std::string("never");
    });
    raise(SIGTERM);
  });
  EXPECT_TRUE(WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGTERM);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

TEST(TerminationTest, AnyThreadMayTakeTheSignal) {
  const Ended ended = InChild([] {
    TerminationReport report([] { return std::string("rank 0: 0B1"); });
    std::thread other([] { raise(SIGTERM); });
    other.join();
  });
  EXPECT_TRUE(WIFSIGNALED(ended.status));
  EXPECT_THAT(ended.stderr_text, HasSubstr("0B1"));
}

}  // namespace
}  // namespace autopart
