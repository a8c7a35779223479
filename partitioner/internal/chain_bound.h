// A lower bound on the heaviest stage, by refuting chains of boundaries.
//
// Idea. A partition is a chain of downsets 0 = I_0 <= I_1 <= .. <= I_k = V. Put each I_m into a
// bucket by its work W(I_m). A stage from bucket x to bucket y pays at least
//     pay(x, y) = min over I in x, J in y, I <= J, of the communication of J \ I
// so with all loads at most T, the most work that m stages cover and end in y is
//     h_m(y) = max over x of min(top of y, h_{m-1}(x) + T - pay(x, y)),
// and T is refuted if no chain of buckets covers everything. The work itself is not rounded to
// buckets, so nothing is lost from stage to stage. The profile bound, an earlier form of this
// one, takes a minimum cut for each end of a stage and leaves the interval of W out; cuts then flee
// to the cheap places between the cells of a network, whatever their bucket. Here the interval is
// kept:
//   - pay is found by branch and bound: minimum cuts with the work dualised (downset_cut.h) bound
//     it, and splitting on a node between the two cuts at the best multiplier decides many others.
//   - first for each end alone, where what the other end's bucket decides says which tensors pay;
//     then for both together, splitting on what readers a tensor has inside the stage.
//   - lazily: only for the stages of a chain that still refutes the refutation of T. For T near the
//     bound the buckets that I_m can be in are few, so few pairs are ever looked at.
//
// Source: own construction. The bound of a stage by guessed blocks before and after it is from
// Archer, Fahrbach, Liu, Prabhu (ICML 2024), as a mixed-integer programme; the rest is not.
//
// Validity: pay(x, y) is only replaced by smaller values. A tensor is counted where its first pin
// is before the stage and a reader inside it, or its first pin inside and another behind: never
// both, and whatever pin is taken as first.
//
// Cost: a few hundred to some ten thousand branchings, 0.02 to 0.2 ms each for graphs of 1000
// nodes; measured on one core: NASNet-mobile in 8 stages 1 s for a gap of 6 %, a transformer of
// 10,000 nodes in 64 stages 1 s for 0.2 %, of 100,000 nodes in 256 stages 14 s for 3 %. n^2 / 4
// bytes, or for large graphs the stretches of stretch.h. Effort is counted in steps, for answers
// that do not depend on the machine.
#ifndef AUTOPART_PARTITIONER_INTERNAL_CHAIN_BOUND_H_
#define AUTOPART_PARTITIONER_INTERNAL_CHAIN_BOUND_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "partitioner/internal/problem.h"

namespace autopart::internal {

struct ChainBoundOptions {
  double value_ms = 0;  // of a partition: nothing above it is tried
  double bound_ms = 0;  // known
  // One after another, until steps or time are used up. Empty: by size.
  std::vector<int> buckets_per_stage;
  int max_branchings = std::numeric_limits<int>::max();  // for a pair of buckets
  // Up to that many nodes, the sets of all their ancestors cost less than stretches do (stretch.h).
  size_t largest_whole = 4000;
  int64_t max_steps = std::numeric_limits<int64_t>::max();
  std::function<bool()> stop = [] { return false; };  // asked every millisecond or so
};

// At least bound_ms, at most value_ms. `problem` is acyclic, in topological order.
double ChainBound(const Problem& problem, const ChainBoundOptions& options);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_CHAIN_BOUND_H_
