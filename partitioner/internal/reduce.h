// Makes a problem smaller without changing its optimum.
#ifndef AUTOPART_PARTITIONER_INTERNAL_REDUCE_H_
#define AUTOPART_PARTITIONER_INTERNAL_REDUCE_H_

#include "partitioner/internal/problem.h"

namespace autopart::internal {

// Nodes that wait for each other, directly or through others, become one: no chain of stages can
// part them. The result is acyclic and its nodes are in a topological order. Linear time.
Problem GlueCycles(const Problem& problem);

// Nodes without time and memory that touch one other node only join it. Public operator graphs are
// full of them (sizes, constants), and each doubles the number of places to cut. Only where stages
// may be empty: else a free node may be worth a stage. Linear time.
Problem MergeFreeLeaves(const Problem& problem);

// Both.
Problem Reduce(const Problem& problem);

// Unlike the above, this keeps only assignments in which no load exceeds `limit_ms`. A tensor that
// with its producer alone, or with one of its readers alone, is more than that is not cut between
// them: they become one, as do cycles that this closes, and heavier nodes glue further tensors.
// Linear time a round; a few rounds.
Problem GlueDearTensors(const Problem& problem, double limit_ms);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_REDUCE_H_
