// Ping-pong between two processes over shared memory, each pinned to a core: round trips of several
// sizes, median and 90th percentile.
//
//   transport_latency [core of rank 0] [core of rank 1]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/transports/shared_memory.h"

namespace autopart {
namespace {

void Pin(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  if (sched_setaffinity(0, sizeof(cores), &cores) != 0) std::perror("sched_setaffinity");
}

void PingPong(Communicator& ranks, size_t bytes, int rounds) {
  const auto deadline = Clock::now() + std::chrono::minutes(2);
  std::vector<std::byte> data(bytes);
  std::vector<double> us;
  for (int round = -rounds / 10; round < rounds; ++round) {
    const auto start = Clock::now();
    if (ranks.rank() == 0) {
      ranks.Send(1, {data}, deadline);
      ranks.Receive(1, {data}, deadline);
    } else {
      ranks.Receive(0, {data}, deadline);
      ranks.Send(0, {data}, deadline);
    }
    const std::chrono::duration<double, std::micro> time = Clock::now() - start;
    if (round >= 0) us.push_back(time.count());
  }
  if (ranks.rank() != 0) return;
  std::sort(us.begin(), us.end());
  std::printf("%10zu bytes  round trip %8.2f us median  %8.2f us p90\n", bytes, us[us.size() / 2],
              us[us.size() * 9 / 10]);
}

int Run(int core0, int core1) {
  const std::string name = "latency-" + std::to_string(getpid());
  const pid_t child = fork();
  const int rank = child == 0 ? 1 : 0;
  Pin(rank == 0 ? core0 : core1);
  {
    auto ranks = JoinSharedMemoryGroup(name, rank, 2);
    for (const size_t bytes :
         {8, 256, 4 << 10, 32 << 10, 128 << 10, 512 << 10, 4 << 20, 32 << 20}) {
      PingPong(*ranks, bytes, bytes <= 4096 ? 20000 : bytes <= 1 << 20 ? 1000 : 30);
    }
  }
  if (rank == 1) _exit(0);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace autopart

int main(int argc, char** argv) {
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  return autopart::Run(argc > 1 ? std::atoi(argv[1]) : 0,
                       argc > 2 ? std::atoi(argv[2]) : 1 % cores);
}
