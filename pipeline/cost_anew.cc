#include "pipeline/cost_anew.h"

#include <utility>

#include "pipeline/breakdown.h"
#include "pipeline/internal/judge.h"
#include "pipeline/simulate.h"

namespace autopart {

absl::StatusOr<Plan> CostAnew(const CostGraph& graph, Plan plan) {
  if (absl::Status status = Validate(plan, graph); !status.ok()) return status;
  if (absl::Status status = ComposeCosts(graph, plan); !status.ok()) return status;
  plan.costs_device = graph.device;
  plan.bound_ms = 0;
  plan.bound_kind.clear();
  plan.optimal = false;
  plan.alternatives.clear();
  absl::StatusOr<internal::Judgement> judgement =
      internal::Judge(std::move(plan), internal::Precision::kExact);
  if (!judgement.ok()) return judgement.status();
  Plan costed = std::move(judgement->plan);
  const absl::StatusOr<StepBreakdown> breakdown = BreakDown(costed);
  if (!breakdown.ok()) return breakdown.status();
  costed.breakdown = *breakdown;
  return costed;
}

}  // namespace autopart
