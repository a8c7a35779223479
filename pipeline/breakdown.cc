#include "pipeline/breakdown.h"

#include <algorithm>

#include "pipeline/simulate.h"

namespace autopart {
namespace {

// The same work, spread evenly over all stages of a rank and all ranks.
void MakeEqual(SimulationInput& input) {
  const int m = input.placement.micro_batches;
  StageCost total;
  std::vector<int> stages_of(input.placement.num_ranks);
  for (int s = 0; s < input.placement.num_stages(); ++s) {
    const std::vector<int>& ranks = input.placement.ranks[s];
    for (const int rank : ranks) ++stages_of[rank];
    for (int j = 0; j < m; ++j) {
      const int rank = input.placement.RankOf(s, j);
      const double factor = input.rank_slowness.empty() ? 1 : input.rank_slowness[rank];
      const StageCost& cost = input.stage_costs[s];
      total.forward_ms += factor * cost.forward_ms;
      total.backward_input_ms += factor * cost.backward_input_ms;
      total.backward_weight_ms += factor * cost.backward_weight_ms;
      total.recompute_ms += factor * cost.recompute_ms;
    }
    for (const int rank : ranks) {
      const double factor = input.rank_slowness.empty() ? 1 : input.rank_slowness[rank];
      total.step_ms += factor * input.stage_costs[s].step_ms;
    }
  }
  for (int s = 0; s < input.placement.num_stages(); ++s) {
    double share = 0;  // of all micro-batches' work
    for (const int rank : input.placement.ranks[s]) {
      share += 1.0 / stages_of[rank] / input.placement.num_ranks;
    }
    input.stage_costs[s] = {total.forward_ms * share / m, total.backward_input_ms * share / m,
                            total.backward_weight_ms * share / m, total.recompute_ms * share / m,
                            total.step_ms * share / input.placement.ranks[s].size()};
  }
  input.rank_slowness.clear();
}

}  // namespace

absl::StatusOr<StepBreakdown> BreakDown(const Plan& plan) {
  const absl::StatusOr<Schedule> schedule = BuildSchedule(plan);
  if (!schedule.ok()) return schedule.status();
  SimulationInput input = InputOf(plan);
  const absl::StatusOr<Simulation> whole = Simulate(*schedule, input);
  if (!whole.ok()) return whole.status();

  StepBreakdown parts;
  for (const RankUse& use : whole->ranks) {
    const double share = 1.0 / whole->ranks.size();
    parts.compute_ms += share * (use.busy_ms - use.recompute_ms - use.optimizer_ms);
    parts.recompute_ms += share * use.recompute_ms;
    parts.optimizer_ms += share * use.optimizer_ms;
  }
  // A list schedule may get slower when a cost goes away; then nothing is the fault of that cost.
  double left = whole->makespan_ms;
  const double busy = parts.compute_ms + parts.recompute_ms + parts.optimizer_ms;
  const auto take = [&](double& part) -> absl::Status {
    const absl::StatusOr<Simulation> without = Simulate(*schedule, input);
    if (!without.ok()) return without.status();
    const double now = std::max(busy, std::min(left, without->makespan_ms));
    part = left - now;
    left = now;
    return absl::OkStatus();
  };
  input.reductions.clear();
  if (absl::Status s = take(parts.reduce_ms); !s.ok()) return s;
  input.cluster = {};
  if (absl::Status s = take(parts.messages_ms); !s.ok()) return s;
  MakeEqual(input);
  if (absl::Status s = take(parts.imbalance_ms); !s.ok()) return s;
  parts.bubble_ms = left - busy;
  return parts;
}

}  // namespace autopart
