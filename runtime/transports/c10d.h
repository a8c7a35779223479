// Ranks over a c10d backend (Gloo) and store, which the launcher's Python side has made.
#ifndef AUTOPART_RUNTIME_TRANSPORTS_C10D_H_
#define AUTOPART_RUNTIME_TRANSPORTS_C10D_H_

#include <chrono>
#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "runtime/communicator.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace autopart {

struct C10dOptions {
  // Names the group's keys in the store. A group that takes the place of a failed one needs another
  // name (and another backend).
  std::string name = "autopart";
  // How late another rank's abort record may be noticed.
  std::chrono::milliseconds abort_poll{100};
  // No single operation of the backend is given longer than this; the deadlines of waits rule. A
  // rank that is silent for longer is given up.
  std::chrono::milliseconds operation_timeout{std::chrono::hours(24)};
};

// A communicator of this rank over `backend`, which must be used for nothing else and be able to
// send and receive CPU tensors. The store holds the abort record.
std::unique_ptr<Communicator> MakeC10dCommunicator(c10::intrusive_ptr<c10d::Backend> backend,
                                                   c10::intrusive_ptr<c10d::Store> store,
                                                   const C10dOptions& options = {});

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_TRANSPORTS_C10D_H_
