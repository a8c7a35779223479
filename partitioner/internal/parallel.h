// Runs independent tasks on several threads.
#ifndef AUTOPART_PARTITIONER_INTERNAL_PARALLEL_H_
#define AUTOPART_PARTITIONER_INTERNAL_PARALLEL_H_

#include <functional>

namespace autopart::internal {

// task(0) .. task(count - 1), each once, on at most `threads` threads with the caller's own among
// them; 0: as many as the machine has. Returns when all have ended. The tasks share nothing that
// any of them writes. What a task throws is thrown here, the lowest task's first.
void RunInParallel(int count, int threads, const std::function<void(int)>& task);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_PARALLEL_H_
