// From an assignment of nodes to stages and ranks to a plan.
#ifndef AUTOPART_PIPELINE_INTERNAL_ASSIGN_H_
#define AUTOPART_PIPELINE_INTERNAL_ASSIGN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/cost_graph.h"
#include "pipeline/plan.h"

namespace autopart::internal {

struct StageAssignment {
  std::vector<int> stage_of_node;
  std::vector<std::vector<int>> ranks;  // by stage: one a replica
  std::vector<int> recomputed;          // nodes that run forward again, ascending
};

// `settings` (cluster, memory, dtype, optimizer and its sharding, schedule, buckets, seed) with the
// stages, edges and costs that follow from the assignment. Where the schedule is "forward" nothing
// is saved and no gradient flows. INVALID_ARGUMENT: an optimizer that is not known.
// Cost: O(graph x stages).
absl::StatusOr<Plan> AssignPlan(const CostGraph& graph, Plan settings,
                                const StageAssignment& assignment);

// Places what the user left free (-1): after all that it reads, at the earliest stage; what reads
// nothing goes where it is first read. Groups go together. INVALID_ARGUMENT names pins that
// contradict each other.
absl::StatusOr<std::vector<int>> CompletePins(const CostGraph& graph, const std::vector<int>& pins,
                                              int stages);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_ASSIGN_H_
