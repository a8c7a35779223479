// Runs a function as every rank of a group, over any transport.
#ifndef AUTOPART_TESTS_RUNTIME_TRANSPORTS_RANKS_H_
#define AUTOPART_TESTS_RUNTIME_TRANSPORTS_RANKS_H_

#include <functional>
#include <string>

#include "runtime/communicator.h"

namespace autopart {

enum class Transport { kThreads, kSharedMemoryThreads, kSharedMemoryProcesses };

const char* Name(Transport transport);

std::string UniqueGroupName();

using RankFunction = std::function<void(Communicator&)>;

// Ranks are threads or forked processes. An assertion that fails or an exception that escapes in
// any rank fails the test; a rank that is killed by `function` itself is expected to be, if its
// number is `killed`. A failing rank aborts the group, so the others end too.
void RunRanks(Transport transport, int size, const RankFunction& function, int killed = -1);

}  // namespace autopart

#endif  // AUTOPART_TESTS_RUNTIME_TRANSPORTS_RANKS_H_
