#include "partitioner/internal/solve.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <thread>
#include <utility>

#include "partitioner/internal/bounds.h"
#include "partitioner/internal/deadline.h"
#include "partitioner/internal/exact.h"
#include "partitioner/internal/parallel.h"
#include "partitioner/internal/reduce.h"
#include "partitioner/internal/refine.h"
#include "partitioner/internal/search.h"

namespace autopart::internal {
namespace {

// Value and bound are sums of the same costs in different orders.
constexpr double kRounding = 1e-9;

Placement Place(const Problem& problem, Assignment assignment) {
  if (assignment.stage_of_node.empty()) return {};
  return {StageOfElement(problem, assignment.stage_of_node), std::move(assignment.is_cpu),
          std::move(assignment.choices)};
}

bool IsProven(const Solution& solution) {
  return solution.value_ms <= solution.bound_ms * (1 + kRounding);
}

// A pass of refinement is quadratic in the readers of a tensor.
constexpr size_t kRefinedAtOnce = 20'000;  // nodes

// Beyond this, exact search is for those who have given it time.
constexpr size_t kProvenAtOnce = 2000;  // nodes

// The phases between reduction and certificate, and what they know by now.
class Solver {
 public:
  Solver(const Problem& reduced, const LowerBound& bound, const Effort& effort)
      : problem_(reduced), effort_(effort), deadline_(effort) {
    solution_.bound_ms = bound.value_ms;
    solution_.bound_kind = bound.kind;
  }

  Solution Run() {
    // With a time limit and no number of rounds: first as without, for most problems are proven
    // then; the limit is for the others.
    const bool may_go_on = deadline_.has_limit() && !effort_.iterations;
    SearchFor(deadline_.left_s(), may_go_on && effort_.prove ? kRoundsAtOnce : effort_.iterations);
    if (effort_.prove) {
      Prove();
      if (may_go_on && !IsDone()) SearchFor(kSearchShare * deadline_.left_s(), std::nullopt);
      if (deadline_.has_limit() && !IsDone()) ProveUntilTheEnd();
    }
    solution_.time_limit_hit = solution_.time_limit_hit || (deadline_.IsOver() && !IsDone());
    if (best_) {
      solution_.best = Place(problem_, *std::move(best_));
    } else {
      solution_.nearest = Place(problem_, std::move(nearest_.assignment));
    }
    return std::move(solution_);
  }

 private:
  static constexpr int kRoundsAtOnce = 32;
  // Of the time left; the rest is for proof. And of that, the rest is for exact search.
  static constexpr double kSearchShare = 0.4, kBoundShare = 0.8;

  bool IsDone() const { return best_ ? IsProven(solution_) : solution_.nothing_fits; }

  void SearchFor(double seconds, std::optional<int> iterations) {
    Effort effort = effort_;
    effort.time_limit_s = std::max(0.0, seconds);
    effort.iterations = iterations;
    SearchResult found = Search(problem_, {effort, solution_.bound_ms});
    const bool may_refine = problem_.nodes.size() <= kRefinedAtOnce && IsRefinable(problem_);
    if (found.best && may_refine) Polish(found);
    if (found.best && (!best_ || found.value_ms < solution_.value_ms)) {
      best_ = std::move(found.best);
      solution_.value_ms = found.value_ms;
    } else if (!best_ && !found.nearest.stage_of_node.empty()) {
      if (nearest_.assignment.stage_of_node.empty() || found.nearest_bytes < nearest_.bytes) {
        nearest_ = {std::move(found.nearest), found.nearest_bytes};
      }
    }
  }

  // Slicing moves whole stretches of an order; nodes that belong on the other side are left.
  void Polish(SearchResult& found) const {
    constexpr int kMaxPasses = 20;  // most end after 2 to 4
    Refined refined = Refine(problem_, *found.best, kMaxPasses);
    if (refined.value_ms >= found.value_ms) return;
    found.best = std::move(refined.assignment);
    found.value_ms = refined.value_ms;
  }

  // What is proven at once, by counted steps: mostly exact search is, else there is a bound.
  void Prove() {
    ExactOptions options;
    options.stop = [this] { return deadline_.IsOver(); };
    if (problem_.nodes.size() > kProvenAtOnce) options.max_steps = 0;
    if (!best_) FindAny(options);
    if (!best_) return;
    options.below_ms = solution_.value_ms;
    options.bound_ms = solution_.bound_ms;
    if (!IsDone()) Take(SearchExactly(problem_, options));
    if (!IsDone()) Take(BoundUntil({}));
  }

  // With the time that is left. Bounds get better on all problems, exact search ends on small ones;
  // each on its own thread, if there are two.
  void ProveUntilTheEnd() {
    ExactOptions options;
    options.max_steps = std::numeric_limits<int64_t>::max();
    if (!best_)
      FindAny({.max_steps = options.max_steps, .stop = [this] { return deadline_.IsOver(); }});
    if (!best_) return;
    options.below_ms = solution_.value_ms;
    options.bound_ms = solution_.bound_ms;
    const bool is_small = problem_.nodes.size() <= kProvenAtOnce;
    const bool together = effort_.threads != 1 && std::thread::hardware_concurrency() > 1;
    const double until = deadline_.left_s() * (together ? 0 : 1 - (is_small ? kBoundShare : 0.95));
    std::atomic<bool> is_proven = false;
    LowerBound bound;
    ExactResult exact;
    RunInParallel(2, effort_.threads, [&](int task) {
      if (task == 0) {
        bound = BoundUntil(
            [&] { return is_proven || deadline_.IsOver() || deadline_.left_s() < until; });
        if (bound.value_ms >= options.below_ms * (1 - kRounding)) is_proven = true;
      } else {
        options.stop = [&] { return is_proven || deadline_.IsOver(); };
        exact = SearchExactly(problem_, options);
        if (exact.finished) is_proven = true;
      }
    });
    Take(std::move(exact));
    Take(bound);
  }

  // Reads only.
  LowerBound BoundUntil(std::function<bool()> stop) const {
    BoundEffort effort;
    effort.value_ms = solution_.value_ms;
    effort.stop = std::move(stop);
    return BetterBound(problem_, {solution_.bound_ms, solution_.bound_kind}, effort);
  }

  void Take(const LowerBound& bound) {
    if (bound.value_ms <= solution_.bound_ms) return;
    solution_.bound_ms = bound.value_ms;
    solution_.bound_kind = bound.kind;
  }

  void Take(ExactResult exact) {
    if (exact.better) {
      best_ = std::move(exact.better);
      solution_.value_ms = exact.value_ms;
    }
    Take(LowerBound{exact.bound_ms, "exhaustive"});
  }

  // Nothing was found that fits: is there anything? If not, the least memory for which there is.
  void FindAny(ExactOptions options) {
    options.below_ms = std::numeric_limits<double>::infinity();
    options.any_will_do = true;
    ExactResult exact = SearchExactly(problem_, options);
    options.max_steps -= exact.steps;
    solution_.nothing_fits = exact.finished;
    if (exact.better) {
      best_ = std::move(exact.better);
      solution_.value_ms = exact.value_ms;
    } else if (exact.finished && !nearest_.assignment.stage_of_node.empty() &&
               !problem_.HasStageOptions()) {
      nearest_ = FindLeastMemory(problem_, std::move(nearest_), options);
      solution_.nearest_is_least = nearest_.proven;
    }
  }

  const Problem& problem_;
  const Effort& effort_;
  const Deadline deadline_;
  Solution solution_;
  std::optional<Assignment> best_;
  LeastMemory nearest_;  // while there is no best
};

}  // namespace

Solution Solve(const Problem& problem, const Effort& effort) {
  Solution solution = Solver(MergeFreeLeaves(problem), BoundOf(problem), effort).Run();
  if (!solution.best) return solution;
  // A stage may still recompute less than its level, once the cut is known.
  const bool one_place =
      problem.num_stages + problem.num_cpus == 1 && problem.num_recompute_levels == 1;
  if (one_place) solution.bound_ms = solution.value_ms;
  solution.optimal = IsProven(solution);
  solution.bound_ms = std::min(solution.bound_ms, solution.value_ms);
  return solution;
}

}  // namespace autopart::internal
