// Topological orders of a problem's nodes: what the slice dynamic programme (slice.h) cuts.
//
// A partition into a chain of stages is always a slicing of some order, so the search for a
// partition is a search for an order. Each mode is Kahn's algorithm with another choice among the
// nodes that are ready; O(n log n).
#ifndef AUTOPART_PARTITIONER_INTERNAL_ORDER_H_
#define AUTOPART_PARTITIONER_INTERNAL_ORDER_H_

#include <vector>

#include "partitioner/internal/problem.h"
#include "partitioner/internal/random.h"

namespace autopart::internal {

using Order = std::vector<int>;  // node at each position

enum class ReadyRule {
  kDepthFirst,         // last ready, first out: finish a branch before the next
  kBreadthFirst,       // first ready, first out: branches side by side
  kRandom,             // any
  kLeastCommunication  // the node that adds least to what crosses the cut behind it
};

struct OrderOptions {
  ReadyRule rule = ReadyRule::kDepthFirst;
  bool from_sinks = false;  // built from the end
  // Nodes of a lower rank come first as far as arcs allow (parts of METIS, stages of a partition);
  // empty: no ranks.
  std::vector<int> rank;
  // Equals and near-equals in random order; 0 is none, 1 as random as the rule allows.
  double noise = 0;
};

Order MakeOrder(const Problem& problem, const OrderOptions& options, Random& random);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_ORDER_H_
