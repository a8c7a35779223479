// Ranks as threads of one program (or as one thread that plays them all). Torch-free.
#ifndef AUTOPART_RUNTIME_TRANSPORTS_IN_PROCESS_H_
#define AUTOPART_RUNTIME_TRANSPORTS_IN_PROCESS_H_

#include <chrono>
#include <memory>
#include <vector>

#include "runtime/communicator.h"

namespace autopart {

struct InProcessOptions {
  // How long a wait looks again and again before the thread sleeps.
  std::chrono::microseconds spin{20};
};

// One communicator for each rank, in rank order. A message is copied once, from the sender's
// buffers into the receiver's, by whichever of the two comes second; a send is done when its bytes
// were received. A rank whose communicator is destroyed has left: peers that wait for it fail.
std::vector<std::unique_ptr<Communicator>> MakeInProcessGroup(int size,
                                                              const InProcessOptions& options = {});

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_TRANSPORTS_IN_PROCESS_H_
