// Sums gradients over the ranks that hold the same parameter: replicas of a stage, and stages that
// share a parameter.
//
// Each rank has summed over its own micro-batches; the sum over ranks runs in ascending rank order,
// so it is the same on every rank and in every run. A rank whose replica did no micro-batch, or
// whose micro-batches did not touch a parameter, adds zeros; a parameter that no rank touched keeps
// an undefined gradient everywhere. One message of presence flags a group of ranks, then one
// all-reduce a parameter.
#ifndef AUTOPART_RUNTIME_REDUCER_H_
#define AUTOPART_RUNTIME_REDUCER_H_

#include <map>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pipeline/plan.h"
#include "profiler/op_graph.h"
#include "runtime/communicator.h"

namespace autopart {

// Trained parameters held by the same ranks (two or more).
struct ReduceGroup {
  std::vector<int> ranks;       // ascending
  std::vector<int> parameters;  // indices into the graph's, ascending
};

// In an order that all ranks share, so that blocking collectives in this order never hang.
std::vector<ReduceGroup> FindReduceGroups(const OpGraph& graph, const Plan& plan);

// One group, called by each of its ranks. parameters: the rank's tensors, in the group's order;
// reads and writes their gradients.
void ReduceGradients(const ReduceGroup& group, std::span<const at::Tensor> parameters,
                     Communicator& communicator, Clock::time_point deadline);
// The same sum for ranks that live on one thread: parameters[r] are those of the r-th rank.
void ReduceGradientsOnOneThread(std::span<const std::vector<at::Tensor>> parameters);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_REDUCER_H_
