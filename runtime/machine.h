// What a machine does beside operators, measured: updates of parameters, and messages between
// ranks.
#ifndef AUTOPART_RUNTIME_MACHINE_H_
#define AUTOPART_RUNTIME_MACHINE_H_

#include <functional>

#include "partitioner/cost_graph.h"
#include "profiler/model.h"

namespace autopart {

struct MachineOptions {
  int at_once = 2;          // threads that do the same side by side
  double budget_ms = 1500;  // about so long for each optimizer
  // Called with its number on each thread before it starts: to give it a core. May be empty.
  std::function<void(int)> on_thread;
};

// Updates of the model's own trained parameters, with this library's optimizers, by as many threads
// at once as there will be ranks; messages between two threads of this process. Copies the trained
// parameters (with gradients and the optimizer's state) for each thread.
CostMachine MeasureMachine(const Model& model, const MachineOptions& options);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_MACHINE_H_
