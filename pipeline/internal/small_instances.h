// Every way to place a graph that is small enough for all of them.
#ifndef AUTOPART_PIPELINE_INTERNAL_SMALL_INSTANCES_H_
#define AUTOPART_PIPELINE_INTERNAL_SMALL_INSTANCES_H_

#include <string>
#include <vector>

#include "partitioner/cost_graph.h"
#include "pipeline/internal/shape.h"
#include "pipeline/planner.h"

namespace autopart::internal {

struct PlacedNodes {
  std::vector<int> stage_of_node;
  Shape shape;
  std::vector<std::vector<int>> ranks;  // by stage; empty: as the schedule puts its chunks
  int chunks = 1;
};

// Every assignment of nodes to stages in which no value flows back and groups stay whole, with
// every share of the devices among the stages, within the user's wishes and with chunks where a
// schedule has them. Empty where there are more than a few thousand.
std::vector<PlacedNodes> AllPlacements(const CostGraph& graph, int devices,
                                       const std::vector<std::string>& schedules,
                                       const PlannerOptions& options);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_SMALL_INSTANCES_H_
