#include "tests/runtime/transports/ranks.h"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/transports/in_process.h"
#include "runtime/transports/shared_memory.h"

namespace autopart {
namespace {

void RunRank(Communicator& communicator, const RankFunction& function) {
  try {
    function(communicator);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << communicator.rank() << ": " << error.what();
    communicator.Abort({communicator.rank(), error.what()});
  }
}

using Join = std::function<std::unique_ptr<Communicator>(int rank)>;

void RunThreads(int size, const RankFunction& function, const Join& join) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Communicator> communicator = join(rank);
      RunRank(*communicator, function);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void RunProcesses(int size, const RankFunction& function, const Join& join, int killed) {
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      {
        const std::unique_ptr<Communicator> communicator = join(rank);
        RunRank(*communicator, function);
      }
      std::fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    if (rank == killed) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "rank " << rank;
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "rank " << rank << " failed, wait status " << status;
    }
  }
}

}  // namespace

const char* Name(Transport transport) {
  switch (transport) {
    case Transport::kThreads:
      return "Threads";
    case Transport::kSharedMemoryThreads:
      return "SharedMemoryThreads";
    case Transport::kSharedMemoryProcesses:
      return "SharedMemoryProcesses";
  }
  return "";
}

std::string UniqueGroupName() {
  static std::atomic<int> count{0};
  return "test-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

void RunRanks(Transport transport, int size, const RankFunction& function, int killed) {
  const std::string name = UniqueGroupName();
  auto in_process = MakeInProcessGroup(size);
  const Join take = [&](int rank) { return std::move(in_process[rank]); };
  const Join join = [&](int rank) { return JoinSharedMemoryGroup(name, rank, size); };
  switch (transport) {
    case Transport::kThreads:
      return RunThreads(size, function, take);
    case Transport::kSharedMemoryThreads:
      return RunThreads(size, function, join);
    case Transport::kSharedMemoryProcesses:
      return RunProcesses(size, function, join, killed);
  }
}

}  // namespace autopart
