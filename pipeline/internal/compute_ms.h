// How long an action keeps a stage's device busy.
#ifndef AUTOPART_PIPELINE_INTERNAL_COMPUTE_MS_H_
#define AUTOPART_PIPELINE_INTERNAL_COMPUTE_MS_H_

#include "pipeline/schedule.h"
#include "pipeline/simulate.h"

namespace autopart::internal {

// Of a compute or the optimizer's step, on the device that the costs are of.
inline double ComputeMs(const StageCost& cost, ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return cost.forward_ms;
    case ActionKind::kBackward:
      return cost.recompute_ms + cost.backward_input_ms + cost.backward_weight_ms;
    case ActionKind::kBackwardInput:
      return cost.recompute_ms + cost.backward_input_ms;
    case ActionKind::kBackwardWeight:
      return cost.backward_weight_ms;
    default:
      return cost.step_ms;
  }
}

// Of one reduction: finer says nothing new.
inline constexpr int kMostReduceBuckets = 64;

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_COMPUTE_MS_H_
