// One factor a model, from one run of one plan: on the compute times of its cost graph.
#ifndef AUTOPART_PIPELINE_CALIBRATE_H_
#define AUTOPART_PIPELINE_CALIBRATE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "partitioner/cost_graph.h"
#include "pipeline/plan.h"
#include "pipeline/run_record.h"

namespace autopart {

// The factor with which the simulated step of the plan, costed by this graph, takes as long as the
// 10th percentile of the run. Messages, reductions and the optimizer are not scaled.
// FAILED_PRECONDITION: plan, graph and record do not belong together. OUT_OF_RANGE: no factor from
// 0.1 to 10 does it, so something else is wrong, and the message says how far off it is.
absl::StatusOr<double> FindScale(const CostGraph& graph, const Plan& plan, const RunRecord& record);

// Multiplies the times of all nodes, and says so in the graph's scale.
void ScaleTimes(CostGraph& graph, double factor);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_CALIBRATE_H_
