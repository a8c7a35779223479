// Lower bounds on the heaviest stage, straight from the problem.
#ifndef AUTOPART_PARTITIONER_INTERNAL_BOUNDS_H_
#define AUTOPART_PARTITIONER_INTERNAL_BOUNDS_H_

#include "partitioner/internal/problem.h"
#include "partitioner/lower_bound.h"

namespace autopart::internal {

// The better of: all work spread evenly over all devices, fractionally; the heaviest node. The
// problem's nodes have to be sets that no partition can split.
LowerBound BoundOf(const Problem& problem);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_BOUNDS_H_
