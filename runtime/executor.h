// Trains or serves a model by a plan.
//
//   auto model = autopart::LoadModel("model.pt");
//   auto plan  = autopart::LoadPlan("plan.json");
//   autopart::Executor executor(plan, model, {});
//   autopart::StepResult r = executor.Step({input, target});
#ifndef AUTOPART_RUNTIME_EXECUTOR_H_
#define AUTOPART_RUNTIME_EXECUTOR_H_

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
#include "profiler/model.h"
#include "runtime/action_log.h"
#include "runtime/host_stage.h"
#include "runtime/rank_memory_observer.h"

namespace autopart {

// Throw std::invalid_argument (Python: ValueError) with the planning half's message.
Model LoadModel(const std::string& path);
Plan LoadPlan(const std::string& path);

struct StepResult {
  at::Tensor loss;  // sum of w_j * loss_j, detached; undefined without a loss
  // outputs[j][o]: output o of micro-batch j, detached.
  std::vector<std::vector<at::IValue>> outputs;
  double step_ms = 0;
  // By rank, with a memory observer: the most that the step held at once, beyond what was there.
  std::vector<int64_t> peak_bytes;
};

struct ExecutorOptions {
  enum class Mode {
    kThreads,    // a thread per rank, in-process transport
    kOneThread,  // all ranks' actions on the calling thread, in the simulator's order (oracle 1)
  };
  Mode mode = Mode::kThreads;
  std::chrono::milliseconds deadline{300000};
  uint64_t seed = 0;  // of dropout and other random operators
  bool check_finite = false;
  // Fills StepResult::peak_bytes; made for the plan's number of ranks. May be null.
  std::shared_ptr<RankMemoryObserver> memory;
  std::map<int, HostStage> host_stages;          // by stage
  std::vector<std::shared_ptr<ActionLog>> logs;  // by rank; empty: no times are kept
  // Called after every action, on the rank's thread. May be empty.
  std::function<void(int rank, int action_index, const Action& action)> after_action;
};

// All ranks of a plan in this process. Each rank of a stage holds its own copy of the stage's
// parameters; the first replica of a parameter's owner uses the model's own tensor, and what an
// optimizer changes there is copied to the others before the next step. After a step the summed
// gradient is in .grad on every rank that holds the parameter.
// Throws std::invalid_argument when plan and model do not fit, std::runtime_error naming rank,
// stage and action when a step fails; after that the executor is closed. Not thread-safe.
class Executor {
 public:
  Executor(Plan plan, Model model, const ExecutorOptions& options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // One training step over the whole batch: forward, backward, gradients summed over micro-batches
  // and replicas into .grad. inputs: one per graph input, whole batch; split along batch_axis into
  // the plan's micro-batches.
  StepResult Step(const std::vector<at::IValue>& inputs);
  // Uneven micro-batches or other splits: inputs[j][i] is input i of micro-batch j.
  StepResult StepMicroBatches(const std::vector<std::vector<at::IValue>>& inputs);
  // Forward only, no autograd: outputs joined over micro-batches along axis 0 (scalars stacked).
  std::vector<at::Tensor> Forward(const std::vector<at::IValue>& inputs);

  // By global name, replica 0's.
  std::map<std::string, at::Tensor> Parameters() const;
  // Parameters held by one rank, by global name.
  std::map<std::string, at::Tensor> RankParameters(int rank) const;
  void ZeroGrad();
  const Plan& plan() const;

  // State that a checkpoint needs beside parameters.
  uint64_t step_count() const;
  void set_step_count(uint64_t count);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_EXECUTOR_H_
