// Which nodes a stage runs forward again before their backward, so as to hold less meanwhile.
//
// Two steps, after AdaPipe (Sun et al., ASPLOS 2024). While the cut is searched for, a stage
// chooses one of a few nested sets of nodes, the levels: level 0 is none, each next one adds the
// nodes that drop most bytes for a millisecond of the rest, the last has all. A set's time and
// bytes are sums over the stage, so a choice costs O(1) (stage_choice.h). On the final plan each
// stage that recomputes gets its own set, by TrimRecompute.
//
// The smallest thing to recompute is a unit: nodes of one group, and nodes whose outputs share
// memory. What recomputing means for a stage's time and memory is said at Recompute in
// partitioner.h.
#ifndef AUTOPART_PARTITIONER_INTERNAL_RECOMPUTE_H_
#define AUTOPART_PARTITIONER_INTERNAL_RECOMPUTE_H_

#include <vector>

#include "partitioner/cost_graph.h"
#include "partitioner/partition.h"
#include "partitioner/partitioner.h"

namespace autopart::internal {

struct RecomputeLevels {
  int first = 0, end = 1;          // that a stage may choose from
  std::vector<int> level_of_node;  // from which on it is recomputed; `end` for never
};
RecomputeLevels ChooseRecomputeLevels(const CostGraph& graph, Recompute recompute);

// Takes nodes out of each stage's recomputed set while the stage still fits, so that the time saved
// is as large as can be: greedily from the node with most time for its bytes, and by a knapsack on
// byte steps, whichever is better. Only stages that recompute change, and none gets slower.
void TrimRecompute(const CostGraph& graph, const PartitionOptions& options, Partition& partition);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_RECOMPUTE_H_
