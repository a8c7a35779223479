// Times of every operator where it stands: whole passes over a model, forward and backward, in the
// order in which it runs, on as many threads at once as there will be ranks.
//
// An operator alone finds its operands in the cache, memory that was just freed and the other core
// idle: its times alone were 0.64 to 1.24 of those in a running model. What is measured here adds
// up to the pass: a node's forward is its call, its backward all that the autograd engine does from
// the begin of its first gradient function to the begin of the next node's, gradients of parameters
// being added up included.
#ifndef AUTOPART_PROFILER_PROGRAM_TIMES_H_
#define AUTOPART_PROFILER_PROGRAM_TIMES_H_

#include <functional>
#include <vector>

#include <ATen/core/ivalue.h>
#include <absl/status/statusor.h>

#include "profiler/model.h"

namespace autopart {

struct ProgramPassOptions {
  int passes = 20;          // on each thread; fewer where they take long, at least 5
  double budget_ms = 8000;  // no further pass is begun after so long
  int at_once = 1;          // threads that run the same passes side by side
  bool training = true;     // backward too
  // Called with its number on each thread before it starts: to give it a core. May be empty.
  std::function<void(int)> on_thread;
};

// By node of the graph. Means over the quicker quarter of all passes, as what disturbs a pass makes
// it longer: they add up to a pass that was not disturbed.
struct ProgramTimes {
  std::vector<double> forward_ms;
  std::vector<double> backward_ms;
  int passes = 0;  // that were run
};

// inputs: one per input of the graph, one micro-batch. Copies the model's tensors for each thread.
// FAILED_PRECONDITION: a tensor of the model has no values. INTERNAL, naming the operator: it
// fails.
absl::StatusOr<ProgramTimes> MeasureProgram(const Model& model,
                                            const std::vector<at::IValue>& inputs,
                                            const ProgramPassOptions& options);

}  // namespace autopart

#endif  // AUTOPART_PROFILER_PROGRAM_TIMES_H_
