// One run from a problem to an answer with its certificate; the same for every source of problems:
//
//   reduce -> cheap bounds -> heuristic search -> costly bounds -> exact search -> certificate
//
// Each phase has its own file. A phase is skipped once value and bound meet.
#ifndef AUTOPART_PARTITIONER_INTERNAL_SOLVE_H_
#define AUTOPART_PARTITIONER_INTERNAL_SOLVE_H_

#include <optional>
#include <string>
#include <vector>

#include "partitioner/internal/problem.h"

namespace autopart::internal {

// An assignment in terms of the source.
struct Placement {
  std::vector<int> stage_of_element;
  std::vector<bool> is_cpu;          // by stage
  std::vector<StageChoice> choices;  // by stage
};

struct Solution {
  // Empty where nothing was found that fits; then `nearest` is the placement found that needs least
  // memory, itself empty where memory is not the reason (see SearchResult).
  std::optional<Placement> best;
  Placement nearest;
  bool nothing_fits = false;      // is proven
  bool nearest_is_least = false;  // nothing fits into less memory than `nearest`, proven

  double value_ms = 0;          // heaviest stage of `best`
  double bound_ms = 0;          // no partition is below; at most value_ms
  std::string bound_kind;       // which bound that is
  bool optimal = false;         // value_ms is proven best, within rounding
  bool time_limit_hit = false;  // or stopped: with more time the answer or its bound may be better
};

// `problem` has been through GlueCycles, and has at least as many nodes as stages unless stages may
// be empty.
Solution Solve(const Problem& problem, const Effort& effort);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_SOLVE_H_
