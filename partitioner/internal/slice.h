// The best way to cut one order of the nodes into a chain of stages (Kernighan 1971, with each
// tensor paid once per stage as in Tarnawski et al. 2020, and the memory of each stage exact).
//
//   best[s][i]  of the nodes from position i on, over s stages
//            =  min over j of  max(load(i, j), best[s - 1][j])
//
// From the LAST stage backwards, because a stage's memory depends on how many stages are behind it
// (1F1B keeps one more micro-batch per stage). For each end j the start i walks down while the work
// stays under the bound; a tensor's first node adds its time, its last node takes it off again, so
// a step costs the node's degree. Positions that no state within the bound can reach are skipped.
// About n^2 / stages * degree steps, less the tighter the bound.
//
// Orders longer than max_blocks are cut only where least crosses, one place in each of max_blocks
// stretches of equal work.
#ifndef AUTOPART_PARTITIONER_INTERNAL_SLICE_H_
#define AUTOPART_PARTITIONER_INTERNAL_SLICE_H_

#include <limits>
#include <optional>

#include "partitioner/internal/order.h"
#include "partitioner/internal/problem.h"

namespace autopart::internal {

enum class SliceGoal {
  kBottleneck,     // least maximum load
  kEvenLoads,      // least sum of (load / bound)^24: nearly the least maximum, and slack elsewhere
  kCommunication,  // least total communication within the bound; even loads among equals
  kMemory,         // least maximum memory, whatever the load and the limit
};

struct SliceOptions {
  SliceGoal goal = SliceGoal::kBottleneck;
  double bound_ms = std::numeric_limits<double>::infinity();  // on every load, inclusive
  int max_blocks = 2000;
};

struct Slicing {
  double value = 0;        // by the goal
  double max_load_ms = 0;  // of its stages
  int heaviest_stage = 0;
  Assignment assignment;
};

// Empty where no slicing keeps to the bound and to the memory limit.
std::optional<Slicing> Slice(const Problem& problem, const Order& order,
                             const SliceOptions& options);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_SLICE_H_
