// The same decisions with other costs: a plan that was made by one profile, predicted by another.
#ifndef AUTOPART_PIPELINE_COST_ANEW_H_
#define AUTOPART_PIPELINE_COST_ANEW_H_

#include "absl/status/statusor.h"
#include "partitioner/cost_graph.h"
#include "pipeline/plan.h"

namespace autopart {

// Times, memory and the predicted step by this graph. What was proven or weighed by the old costs
// (bound, optimality, alternatives) goes. FAILED_PRECONDITION where the plan is not of this graph.
absl::StatusOr<Plan> CostAnew(const CostGraph& graph, Plan plan);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_COST_ANEW_H_
