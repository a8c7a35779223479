// One rank's part of a plan: what Executor runs on each thread and what every process of a
// launched job runs.
#ifndef AUTOPART_RUNTIME_RANK_EXECUTOR_H_
#define AUTOPART_RUNTIME_RANK_EXECUTOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "pipeline/plan.h"
#include "profiler/op_graph.h"
#include "runtime/action_log.h"
#include "runtime/communicator.h"
#include "runtime/host_stage.h"
#include "runtime/rank_memory_observer.h"

namespace autopart {

struct RankExecutorOptions {
  std::chrono::milliseconds deadline{300000};  // of every single wait
  uint64_t seed = 0;                           // of random operators; the same on all ranks
  bool check_finite = false;                   // fail on a loss or gradient that is not finite
  // Counts what the rank allocates (costs about 0.1 us a block) and fills
  // RankStepOutput::peak_bytes. Made for at least rank + 1 ranks; may be null.
  std::shared_ptr<RankMemoryObserver> memory;
  bool one_thread = false;
  std::map<int, HostStage> host_stages;  // by stage
  std::shared_ptr<ActionLog> log;        // gets the times of every action; may be null
  // Called in the rank's last STEP of a training step, on its thread, when the gradients are there:
  // an optimizer over the rank's own parameters. May be empty; not called with one_thread.
  std::function<void()> update;
  // Called on the rank's thread after every action (memory tests, traces). May be empty.
  std::function<void(int action_index, const Action& action)> after_action;
};

struct RankStepInput {
  uint64_t step = 0;     // keys random numbers
  bool training = true;  // dropout and BatchNorm mode
  bool backward = true;  // false: the forward-only schedule, no autograd, whatever the plan's is
  // inputs[j][i] for each micro-batch j that this rank does on stage 0; entries of other
  // micro-batches are empty. Ignored on ranks without stage 0.
  std::vector<std::vector<at::IValue>> inputs;
  std::vector<double> weights;  // w_j of every micro-batch: seed of the backward
};

struct RankStepOutput {
  // outputs[j][o]: detached results produced on this rank; None elsewhere.
  std::vector<std::vector<at::IValue>> outputs;
  int64_t peak_bytes = 0;  // with a memory observer: the most that the step held at once
  double step_ms = 0;
};

// Borrows the communicator for its lifetime. parameters: by global name, those of this rank's
// stages (shared with the caller: gradients arrive in their .grad). Gradients that are there before
// a step are kept and added to, as backward() does.
// Sets the number of intra-op threads of the calling thread to one: results then do not depend on
// the machine.
// On failure throws std::runtime_error naming rank, stage, action, operator and module, after
// aborting the communicator with that record; ranks hit by a peer's failure name the first cause.
// After a failure every call throws the same again.
class RankExecutor {
 public:
  RankExecutor(const OpGraph& graph, const Plan& plan, int rank,
               std::map<std::string, at::Tensor> parameters, Communicator& communicator,
               const RankExecutorOptions& options);
  ~RankExecutor();
  RankExecutor(const RankExecutor&) = delete;
  RankExecutor& operator=(const RankExecutor&) = delete;

  RankStepOutput Step(const RankStepInput& input);

  // One action at a time, for the one-thread mode: Begin, RunAction(0), RunAction(1), ..., End.
  // Begin borrows the input until End.
  void Begin(const RankStepInput& input);
  void RunAction(int action_index);
  RankStepOutput End();

  // Of the step begun last (before the first: of the plan's own schedule).
  const std::vector<Action>& actions() const;
  // "rank 1: action 7 of 24, 1RECV_F2<0, for 3.2 s, waits for rank 0": for hang reports, from any
  // thread.
  std::string Describe() const;

 private:
  friend void FinishStepOnOneThread(std::span<RankExecutor* const> ranks);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What REDUCE and STEP do, for all ranks of a plan (in rank order) on one thread: between the last
// RunAction and End.
void FinishStepOnOneThread(std::span<RankExecutor* const> ranks);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_RANK_EXECUTOR_H_
