// Makes a large problem small for the search: groups of nodes become one node each. Unlike
// reduction (reduce.h) this can lose the optimum; what it never loses is the absence of cycles.
//
// Two ways to group, after the clusterings of dagP (Herrmann et al., SISC 2019):
// - Along arcs that are the only way out of a node or the only way into one. A cycle through such a
//   group would have to leave or enter it by that arc, which is inside. Heaviest tensors are what
//   such arcs carry in operator graphs, and branches that run side by side stay apart.
// - Stretches of one topological order, cut where least crosses. All arcs then run forward. For
//   what the first leaves, and for graphs without such arcs.
// Heavy-edge matching over other arcs would need a check for cycles at every step; not done.
// O(nodes + arcs) for the first, an order and a sort of the arcs for the second.
#ifndef AUTOPART_PARTITIONER_INTERNAL_COARSEN_H_
#define AUTOPART_PARTITIONER_INTERNAL_COARSEN_H_

#include <vector>

#include "partitioner/internal/problem.h"

namespace autopart::internal {

struct Coarsening {
  Problem problem;  // acyclic, its nodes in a topological order
  std::vector<int> group_of_node;
};

// At most `max_groups` groups, and hardly fewer than half of that where there are as many nodes.
// `problem` is acyclic, its nodes in a topological order.
Coarsening Coarsen(const Problem& problem, int max_groups);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_COARSEN_H_
