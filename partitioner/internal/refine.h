// Makes a partition better by moving nodes over the boundaries between neighbouring stages.
//
// Idea: Kernighan and Lin (1970) on a chain of stages. A node may go to the next stage with all of
// its descendants that are in its own (or to the stage before, with its ancestors there), so arcs
// never come to point backwards and no cycle has to be looked for (Moreira, Popp, Schulz, SEA 2017,
// keep to the same legal range). A move is taken where it lowers
//     sum over stages of (load / heaviest load) ^ 24,
// which is nearly the maximum, and yet sees progress where several stages are equally heavy.
//
// Cost: a pass over all nodes looks at the tensors of each set that could move, of at most
// kMostTogether nodes; passes end with the first that moves nothing.
//
// Not done: problems where bytes decide, or where stages choose devices, are returned as they are.
#ifndef AUTOPART_PARTITIONER_INTERNAL_REFINE_H_
#define AUTOPART_PARTITIONER_INTERNAL_REFINE_H_

#include "partitioner/internal/problem.h"

namespace autopart::internal {

struct Refined {
  Assignment assignment;
  double value_ms = 0;  // its heaviest stage
  int moves = 0;
};

// `assignment` is valid for the problem; the answer is too, and no worse.
Refined Refine(const Problem& problem, const Assignment& assignment, int max_passes);

// Can Refine do anything for such a problem?
bool IsRefinable(const Problem& problem);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_REFINE_H_
