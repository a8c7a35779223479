// Where the step of a plan goes.
#ifndef AUTOPART_PIPELINE_BREAKDOWN_H_
#define AUTOPART_PIPELINE_BREAKDOWN_H_

#include "absl/status/statusor.h"
#include "pipeline/plan.h"

namespace autopart {

// By taking one cost away after the other and simulating what is left: reductions, messages, and
// the differences between stages. What then remains of waiting is the schedule's bubble. Costs four
// simulations.
absl::StatusOr<StepBreakdown> BreakDown(const Plan& plan);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_BREAKDOWN_H_
