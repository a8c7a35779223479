// Looks for the order whose best slicing is best: a few deterministic orders, then re-order and
// slice around the best partition so far, as Archer et al. (ICML 2024) search orders, but from the
// partition instead of by a population. Large problems are searched coarse (coarsen.h) and the
// answer sliced again at full size.
//
// The search runs as a fixed number of islands, each with its own random numbers, that tell each
// other their best at barriers after a fixed number of rounds. So the answer depends on seed and
// rounds only; threads only share the islands out. An order and its slicing cost about
// O(nodes * degree * log nodes + places^2 / stages * degree).
#ifndef AUTOPART_PARTITIONER_INTERNAL_SEARCH_H_
#define AUTOPART_PARTITIONER_INTERNAL_SEARCH_H_

#include <optional>

#include "partitioner/internal/problem.h"

namespace autopart::internal {

struct SearchOptions {
  Effort effort;
  double bound_ms = 0;  // no partition is better: reaching it ends the search
};

struct SearchResult {
  // Empty where nothing was found within the memory limit; then `nearest` is the partition found
  // that needs least, and `nearest_bytes` what its largest stage needs. `nearest` is empty too
  // where memory is not the reason: nodes that only a CPU runs lie too far apart for the CPUs.
  std::optional<Assignment> best;
  double value_ms = 0;          // heaviest stage of `best`
  bool time_limit_hit = false;  // or stopped: only that it is valid is promised
  Assignment nearest;
  double nearest_bytes = 0;
};

// `problem` is reduced, acyclic, and has at least as many nodes as stages unless stages may be
// empty.
SearchResult Search(const Problem& problem, const SearchOptions& options);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_SEARCH_H_
