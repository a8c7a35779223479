#include "partitioner/internal/solve.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "partitioner/internal/bounds.h"
#include "partitioner/internal/exact.h"
#include "partitioner/internal/reduce.h"
#include "partitioner/internal/search.h"

namespace autopart::internal {
namespace {

// Value and bound are sums of the same costs in different orders.
constexpr double kRounding = 1e-9;

// Of a time limit; the rest is for proof.
constexpr double kSearchShare = 0.4;

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

Placement Place(const Problem& problem, Assignment assignment) {
  if (assignment.stage_of_node.empty()) return {};
  return {StageOfElement(problem, assignment.stage_of_node), std::move(assignment.is_cpu),
          std::move(assignment.choices)};
}

bool IsProven(const Solution& solution) {
  return solution.value_ms <= solution.bound_ms * (1 + kRounding);
}

// Nothing was found that fits: is there anything? If not, the least memory for which there is.
void FindAnyOrLeastMemory(const Problem& problem, SearchResult& found, Solution& solution) {
  ExactOptions options;
  options.below_ms = std::numeric_limits<double>::infinity();
  options.any_will_do = true;
  ExactResult exact = SearchExactly(problem, options);
  if (exact.better) {
    found.best = std::move(exact.better);
    found.value_ms = exact.value_ms;
  }
  solution.nothing_fits = exact.finished;
  if (!exact.finished || found.nearest.stage_of_node.empty() || problem.HasStageOptions()) return;
  options.max_steps -= exact.steps;
  LeastMemory least =
      FindLeastMemory(problem, {std::move(found.nearest), found.nearest_bytes}, options);
  found.nearest = std::move(least.assignment);
  found.nearest_bytes = least.bytes;
  solution.nearest_is_least = least.proven;
}

}  // namespace

Solution Solve(const Problem& problem, const Effort& effort) {
  const auto start = Clock::now();
  const bool limited = !std::isinf(effort.time_limit_s);
  Solution solution;
  const LowerBound bound = BoundOf(problem);
  solution.bound_ms = bound.value_ms;
  solution.bound_kind = bound.kind;

  const Problem reduced = MergeFreeLeaves(problem);
  Effort search_effort = effort;
  if (effort.prove) search_effort.time_limit_s *= kSearchShare;
  SearchResult found = Search(reduced, {search_effort, bound.value_ms});
  if (!found.best && effort.prove) FindAnyOrLeastMemory(reduced, found, solution);
  if (!found.best) {
    solution.nearest = Place(reduced, std::move(found.nearest));
    return solution;
  }
  solution.value_ms = found.value_ms;
  if (effort.prove && !IsProven(solution)) {
    ExactResult exact = SearchExactly(reduced, {.below_ms = solution.value_ms});
    if (exact.better) {
      found.best = std::move(exact.better);
      solution.value_ms = exact.value_ms;
    }
    if (exact.bound_ms > solution.bound_ms) {
      solution.bound_ms = exact.bound_ms;
      solution.bound_kind = "exhaustive";
    }
  }
  if (effort.prove && !IsProven(solution)) {
    BoundEffort how{.value_ms = solution.value_ms};
    if (limited) {
      how.stop = [&] {
        return effort.stop.stop_requested() || Seconds(start) > effort.time_limit_s;
      };
    }
    const LowerBound better = BetterBound(reduced, {solution.bound_ms, solution.bound_kind}, how);
    solution.bound_ms = better.value_ms;
    solution.bound_kind = better.kind;
  }
  solution.best = Place(reduced, *std::move(found.best));

  // A stage may still recompute less than its level, once the cut is known.
  const bool one_place =
      problem.num_stages + problem.num_cpus == 1 && problem.num_recompute_levels == 1;
  if (one_place) solution.bound_ms = solution.value_ms;
  solution.optimal = IsProven(solution);
  solution.bound_ms = std::min(solution.bound_ms, solution.value_ms);
  return solution;
}

}  // namespace autopart::internal
