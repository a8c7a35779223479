// One rank's part of a plan: what Executor runs on each thread and what every process of a
// launched job runs.
#ifndef AUTOPART_RUNTIME_RANK_EXECUTOR_H_
#define AUTOPART_RUNTIME_RANK_EXECUTOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "pipeline/plan.h"
#include "profiler/op_graph.h"
#include "runtime/communicator.h"

namespace autopart {

struct RankExecutorOptions {
  std::chrono::milliseconds deadline{300000};
  uint64_t seed = 0;
  bool check_finite = false;
  // Called on the rank's thread after every action (memory tests, traces). May be empty.
  std::function<void(int action_index, const Action& action)> after_action;
};

struct RankStepInput {
  uint64_t step = 0;     // keys random numbers
  bool training = true;  // dropout and BatchNorm mode
  bool backward = true;  // false: forward-only schedule, no autograd
  // inputs[j][i] for each micro-batch j that this rank does on stage 0; entries of other
  // micro-batches are empty. Ignored on ranks without stage 0.
  std::vector<std::vector<at::IValue>> inputs;
  std::vector<double> weights;  // w_j of every micro-batch: seed of the backward
};

struct RankStepOutput {
  // outputs[j][o]: detached results produced on this rank; None elsewhere.
  std::vector<std::vector<at::IValue>> outputs;
  int64_t peak_bytes = 0;
  double step_ms = 0;
};

// Borrows the communicator for its lifetime. parameters: by global name, those of this rank's
// stages (shared with the caller: gradients arrive in their .grad).
// On failure throws std::runtime_error naming rank, stage, action, operator and module, after
// aborting the communicator with that record; ranks hit by a peer's failure name the first cause.
class RankExecutor {
 public:
  RankExecutor(const OpGraph& graph, const Plan& plan, int rank,
               std::map<std::string, at::Tensor> parameters, Communicator& communicator,
               const RankExecutorOptions& options);
  ~RankExecutor();

  RankStepOutput Step(const RankStepInput& input);

  // One action at a time, for the one-thread mode: Begin, RunAction(0), RunAction(1), ..., End.
  void Begin(const RankStepInput& input);
  void RunAction(int action_index);
  RankStepOutput End();

  const std::vector<Action>& actions() const;
  std::string Describe() const;  // current action, waiting since, peer: for hang reports, any thread

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_RANK_EXECUTOR_H_
