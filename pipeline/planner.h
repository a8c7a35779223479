// Searches stages x equal replicas x schedule x micro-batches; the simulator judges.
#ifndef AUTOPART_PIPELINE_PLANNER_H_
#define AUTOPART_PIPELINE_PLANNER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/cost_graph.h"
#include "pipeline/cluster.h"
#include "pipeline/plan.h"

namespace autopart {

// What the user fixes stays fixed; what is empty is searched.
struct PlannerOptions {
  std::optional<int> stages, replicas, micro_batches;
  std::optional<std::string> schedule;
  std::optional<int64_t> memory_bytes;  // per device, instead of the device's own
  std::string optimizer = "adam";       // "sgd", "adam": optimizer state per parameter
  bool training = true;
  // Nodes forced onto stages (manual placement); empty, or one entry per node, -1 for free.
  std::vector<int> pinned_stage_of_node;
  int iterations = 32;
  uint64_t seed = 0;
};

// The cost graph's times are of one micro-batch of the traced size.
// INVALID_ARGUMENT: impossible wishes (more stages than operators, stages * replicas !=
// devices...). RESOURCE_EXHAUSTED: nothing fits; says what is nearest and by how many bytes.
absl::StatusOr<Plan> MakePlan(const CostGraph& graph, const Cluster& cluster,
                              const PlannerOptions& options);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_PLANNER_H_
