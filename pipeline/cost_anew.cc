#include "pipeline/cost_anew.h"

#include <utility>

#include "pipeline/simulate.h"
#include "pipeline/what_if.h"

namespace autopart {

absl::StatusOr<Plan> CostAnew(const CostGraph& graph, Plan plan) {
  if (absl::Status status = Validate(plan, graph); !status.ok()) return status;
  if (absl::Status status = ComposeCosts(graph, plan); !status.ok()) return status;
  plan.costs_device = graph.device;
  plan.bound_ms = 0;
  plan.bound_kind.clear();
  plan.optimal = false;
  plan.alternatives.clear();
  absl::StatusOr<WhatIf> again = SimulateAgain(std::move(plan), {});
  if (!again.ok()) return again.status();
  return std::move(again->plan);
}

}  // namespace autopart
