// Balanced stages around nodes that are forced onto some.
#ifndef AUTOPART_PIPELINE_INTERNAL_PINNED_SLICES_H_
#define AUTOPART_PIPELINE_INTERNAL_PINNED_SLICES_H_

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/cost_graph.h"

namespace autopart::internal {

// Slices of the node order: stage s has the nodes of [cuts[s], cuts[s + 1]), the heaviest as light
// as such slices can be. pinned: a stage, or -1 for free, by node. Groups stay whole.
// INVALID_ARGUMENT: no such slices, as a node is pinned before one that stands earlier in the
// order. Cost: O(nodes x stages) for each of 50 halvings of the bottleneck.
absl::StatusOr<std::vector<int>> PinnedSlices(const CostGraph& graph,
                                              const std::vector<int>& pinned, int stages);

// Nodes of modules -> stage by node. A module's path names all that is inside it.
// INVALID_ARGUMENT: a module that the graph does not have (with the nearest that it has), a node
// with two stages, a stage below 0.
absl::StatusOr<std::vector<int>> PinsOfModules(
    const CostGraph& graph, const std::vector<std::pair<std::string, int>>& pins);

// The graph with the nodes of each list of modules in one group.
absl::StatusOr<CostGraph> WithSameStages(CostGraph graph,
                                         const std::vector<std::vector<std::string>>& same_stage);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_PINNED_SLICES_H_
