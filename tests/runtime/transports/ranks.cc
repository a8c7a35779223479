#include "tests/runtime/transports/ranks.h"

#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/transports/in_process.h"

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

void RunThreads(int size, const RankFunction& function) {
  auto ranks = MakeInProcessGroup(size);
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&function, &rank] { RunRank(*rank, function); });
  }
  for (std::thread& thread : threads) thread.join();
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

void RunRanks(Transport transport, int size, const RankFunction& function, int) {
  switch (transport) {
    case Transport::kThreads:
      return RunThreads(size, function);
    default:
      FAIL() << "no such transport";
  }
}

}  // namespace autopart
