// One rank's part of a run that is measured: trains by the plan for some steps, with the plan's
// optimizer, and tells what happened.
#ifndef AUTOPART_RUNTIME_RANK_RUN_H_
#define AUTOPART_RUNTIME_RANK_RUN_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>

#include "absl/status/status.h"
#include "pipeline/plan.h"
#include "pipeline/run_record.h"
#include "profiler/batches.h"
#include "profiler/model.h"
#include "runtime/communicator.h"
#include "runtime/rank_memory_observer.h"

namespace autopart {

struct RankRunOptions {
  int steps = 20;
  int warm_up_steps = 3;  // before those: memory is being taken for the first time, caches fill
  std::chrono::milliseconds deadline{300000};  // of every single wait
  uint64_t seed = 0;
  bool check_finite = false;
  double learning_rate = 1e-3;
  std::shared_ptr<RankMemoryObserver> memory;  // of all ranks of this process; must be there
  std::stop_token stop;                        // asked for on any rank, all end after their step
  // Called after every counted step with its number, from 1. May be empty.
  std::function<void(int)> after_step;
};

// What this runtime does not run: UNIMPLEMENTED for schedules, recomputation, sharded optimizers
// and overlapped reductions; FAILED_PRECONDITION for another model, or one without a loss where the
// plan trains.
absl::Status CheckRuns(const Plan& plan, const OpGraph& graph);

// Called on every rank of the communicator's group, each on a thread of its own. The steps of all
// ranks begin together. The model's tensors are copied, so that replicas and threads have their
// own, and are left as they are. Rank 0 gets the record (the caller fills in the processor, pinning
// and autopart's version); other ranks get nothing. Throws what RankExecutor throws; peers are
// unblocked.
std::optional<RunRecord> RunSteps(const Model& model, const Plan& plan, const Batches& batches,
                                  Communicator& communicator, const RankRunOptions& options);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_RANK_RUN_H_
