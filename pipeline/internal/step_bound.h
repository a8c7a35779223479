// What no plan can be faster than: on these devices, of one shape.
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

// Work of a micro-batch, ms.
struct PipelineWork {
  double total_ms = 0;
  double heaviest_ms = 0;  // of a node, or of nodes that stay together
  double path_ms = 0;      // the most along which it goes forwards and its gradient backwards
};

PipelineWork WorkOf(const CostGraph& graph, bool training);

// Of one pipeline that runs `own` micro-batches, over all splits of the graph into at most
// `stages`: one stage has at least total / stages, and at least what is heaviest.
double PipelineBoundMs(const PipelineWork& work, int stages, int own);

// The same where each forward and each backward of a stage is done at once (GPipe, 1F1B): the
// stages of the longest path, with c_1, c_2, ... of it, wait for one another twice, so that the
// step takes at least own c_i + c_1 + ... + c_(i-1), for each i, which is least where all are
// equal: path / (1 - (1 - 1 / own)^stages).
double AtOncePipelineBoundMs(const PipelineWork& work, int stages, int own);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_STEP_BOUND_H_
