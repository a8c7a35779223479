// METIS (Karypis and Kumar 1998) as a guide to topological orders.
//
// It cuts undirected graphs: its parts follow the cheap cuts of the graph but wait for each other
// in cycles, know no limit on a stage's load, and pay a tensor per edge. So they are never the
// answer; they rank the nodes for order.h.
#ifndef AUTOPART_PARTITIONER_INTERNAL_METIS_H_
#define AUTOPART_PARTITIONER_INTERNAL_METIS_H_

#include <cstdint>
#include <vector>

#include "partitioner/internal/problem.h"

namespace autopart::internal {

// METIS's own form: neighbours of node n are adjacent[begin[n]] .. adjacent[begin[n + 1] - 1].
struct UndirectedGraph {
  int num_constraints = 1;
  std::vector<int32_t> begin, adjacent, edge_weight;
  std::vector<int32_t> node_weight;  // num_constraints for each node
};

// Each tensor as edges from its producer to its readers. Parallel edges are one, each edge stands
// at both ends, and weights are scaled so that their totals fit into 32 bits with room to spare.
// Constraints: work, and bytes where there is a limit on them.
UndirectedGraph MakeUndirected(const Problem& problem);

// No loops, no repeats, symmetric, weights positive where METIS wants them.
bool IsSound(const UndirectedGraph& graph);

// A part in 0..num_parts-1 for each node. The same problem always gives the same parts.
std::vector<int> MetisParts(const Problem& problem, int num_parts);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_METIS_H_
