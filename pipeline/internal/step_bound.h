// What no plan on these devices can be faster than.
#ifndef AUTOPART_PIPELINE_INTERNAL_STEP_BOUND_H_
#define AUTOPART_PIPELINE_INTERNAL_STEP_BOUND_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "partitioner/cost_graph.h"
#include "pipeline/cluster.h"

namespace autopart::internal {

struct StepBound {
  double ms = 0;
  std::string kind;  // "work", "indivisible", "path"
};

// shapes: the (stages, replicas) that are allowed, beside unequal replicas.
StepBound ComputeStepBound(const CostGraph& graph, const Cluster& cluster, std::string_view dtype,
                           const std::vector<std::pair<int, int>>& shapes, int micro_batches,
                           bool training);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_STEP_BOUND_H_
