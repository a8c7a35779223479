// Lower bounds on the heaviest stage, straight from the problem.
#ifndef AUTOPART_PARTITIONER_INTERNAL_BOUNDS_H_
#define AUTOPART_PARTITIONER_INTERNAL_BOUNDS_H_

#include <functional>

#include "partitioner/internal/problem.h"
#include "partitioner/lower_bound.h"

namespace autopart::internal {

// The better of: all work spread evenly over all devices, fractionally; the heaviest node. The
// problem's nodes have to be sets that no partition can split.
LowerBound BoundOf(const Problem& problem);

// What a bound may cost.
struct BoundEffort {
  double value_ms = 0;  // of a partition; a bound that reaches it is a proof
  // Empty: a count of steps that ends within about a tenth of a second, so that the bound is the
  // same on every machine. Else the bound is raised until stop() says so.
  std::function<bool()> stop;
};

// `known`, or a better bound at a cost. `problem` is acyclic, its nodes in a topological order.
LowerBound BetterBound(const Problem& problem, const LowerBound& known, const BoundEffort& effort);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_BOUNDS_H_
