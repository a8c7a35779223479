// Exact search: is there a chain of stages, each with a load below a given value? The answer "no"
// proves the value optimal. See exact.cc for how.
#ifndef AUTOPART_PARTITIONER_INTERNAL_EXACT_H_
#define AUTOPART_PARTITIONER_INTERNAL_EXACT_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "partitioner/internal/problem.h"

namespace autopart::internal {

struct ExactOptions {
  // No answer is wanted at this value or above (infinity: any that fits into memory).
  double below_ms = 0;
  double bound_ms = 0;  // known; lower limits are not tried
  // Decisions on a node and what they touch, all told; 20 to 50 ns each. The answer depends on
  // them, not on the machine.
  int64_t max_steps = 15'000'000;
  bool any_will_do = false;    // rather than the best
  std::function<bool()> stop;  // may be empty
};

struct ExactResult {
  std::optional<Assignment> better;  // the best found below `below_ms`
  double value_ms = 0;               // its heaviest stage
  double bound_ms = 0;               // no assignment is below this, within rounding
  bool finished = false;             // then it is `value_ms`, or `below_ms` where nothing is better
  int64_t steps = 0;
};

// `problem` is acyclic, its nodes in a topological order; beyond 20,000 nodes nothing is tried.
// Where stages choose among recompute levels, which are not all that they may recompute, the bound
// is that of the problem without memory limits, where nothing has to be. Where they may have other
// numbers of replicas than the problem's, there is no bound.
ExactResult SearchExactly(const Problem& problem, const ExactOptions& options);

struct LeastMemory {
  Assignment assignment;  // fits into `bytes` a stage
  double bytes = 0;
  bool proven = false;  // nothing fits into less, within rounding
};

// For a problem that has no assignment within its memory limit. `known` fits into known.bytes.
LeastMemory FindLeastMemory(const Problem& problem, LeastMemory known, const ExactOptions& options);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_EXACT_H_
