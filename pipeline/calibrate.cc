#include "pipeline/calibrate.h"

#include "absl/strings/str_format.h"
#include "pipeline/simulate.h"

namespace autopart {
namespace {

constexpr double kLeast = 0.1, kMost = 10;

absl::StatusOr<double> StepMs(const Schedule& schedule, SimulationInput input, double factor) {
  for (StageCost& cost : input.stage_costs) {
    cost.forward_ms *= factor;
    cost.backward_input_ms *= factor;
    cost.backward_weight_ms *= factor;
    cost.recompute_ms *= factor;
  }
  const absl::StatusOr<Simulation> simulation = Simulate(schedule, input);
  if (!simulation.ok()) return simulation.status();
  return simulation->makespan_ms;
}

}  // namespace

absl::StatusOr<double> FindScale(const CostGraph& graph, const Plan& plan,
                                 const RunRecord& record) {
  if (absl::Status status = Validate(plan, graph); !status.ok()) return status;
  if (absl::Status status = Validate(record, plan); !status.ok()) return status;
  Plan costed = plan;
  if (absl::Status status = ComposeCosts(graph, costed); !status.ok()) return status;
  const absl::StatusOr<Schedule> schedule = BuildSchedule(costed);
  if (!schedule.ok()) return schedule.status();
  const SimulationInput input = InputOf(costed);
  const double measured_ms = 1e3 * record.StepQuantile(0.1);

  double low = kLeast, high = kMost;
  for (const double end : {low, high}) {
    const absl::StatusOr<double> step_ms = StepMs(*schedule, input, end);
    if (!step_ms.ok()) return step_ms.status();
    if (end == low ? *step_ms <= measured_ms : *step_ms >= measured_ms) continue;
    return absl::OutOfRangeError(
        absl::StrFormat("the run's step took %.4g ms, and with compute times %g times as long the "
                        "plan's would take %.4g: this is not a matter of one factor. Was the "
                        "machine busy with other work?",
                        measured_ms, end, *step_ms));
  }
  constexpr int kHalvings = 50;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    const absl::StatusOr<double> step_ms = StepMs(*schedule, input, middle);
    if (!step_ms.ok()) return step_ms.status();
    (*step_ms < measured_ms ? low : high) = middle;
  }
  return (low + high) / 2;
}

void ScaleTimes(CostGraph& graph, double factor) {
  for (CostNode& node : graph.nodes) {
    node.forward_ms *= factor;
    node.backward_input_ms *= factor;
    node.backward_weight_ms *= factor;
  }
  graph.scale *= factor;
}

}  // namespace autopart
