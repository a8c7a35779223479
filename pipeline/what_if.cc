#include "pipeline/what_if.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "pipeline/breakdown.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/judge.h"
#include "pipeline/simulate.h"

namespace autopart {
namespace {

constexpr char kInference[] = "forward";

absl::Status ChangeSchedule(const std::string& schedule, Plan& plan) {
  if ((schedule == kInference) != (plan.schedule == kInference)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a plan for ", plan.schedule == kInference ? "inference" : "training",
                     " (schedule ", plan.schedule, ") cannot become one with schedule ", schedule,
                     ": make another with `autopart plan --schedule ", schedule, "`"));
  }
  plan.schedule = schedule;
  return absl::OkStatus();
}

// Of one device's times, that the other takes for the same.
double Slowness(const Cluster& one, const Cluster& other, const std::string& dtype) {
  HostGroup host;
  host.devices = {{one.hosts[0].devices[0].device, 1}, {other.hosts[0].devices[0].device, 1}};
  Cluster both;
  both.hosts = {host};
  const std::vector<double> slowness = RankSlowness(both, dtype);
  return slowness.empty() ? 1 : slowness[1];
}

absl::Status ChangeCluster(const Cluster& cluster, Plan& plan) {
  if (absl::Status s = Validate(cluster); !s.ok()) return s;
  if (cluster.num_devices() != plan.num_devices()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan is for ", plan.num_devices(), " devices, the cluster has ",
                     cluster.num_devices(), ": make a plan for it with `autopart plan --cluster`"));
  }
  const double factor = Slowness(plan.cluster, cluster, plan.dtype);
  for (PlanStage& stage : plan.stages) {
    for (double* ms : {&stage.forward_ms, &stage.backward_ms, &stage.backward_weight_ms,
                       &stage.recompute_ms, &stage.optimizer_ms}) {
      *ms *= factor;
    }
  }
  plan.cluster = cluster;
  plan.memory_bytes = 0;
  return absl::OkStatus();
}

absl::Status Apply(const PlanChange& change, Plan& plan) {
  if (change.empty()) return absl::OkStatus();
  if (change.micro_batches) {
    if (*change.micro_batches < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("a step has at least 1 micro-batch, not ", *change.micro_batches));
    }
    plan.micro_batches = *change.micro_batches;
  }
  if (change.schedule) {
    if (absl::Status s = ChangeSchedule(*change.schedule, plan); !s.ok()) return s;
  }
  if (change.cluster) {
    if (absl::Status s = ChangeCluster(*change.cluster, plan); !s.ok()) return s;
  }
  if (change.memory_bytes) plan.memory_bytes = *change.memory_bytes;
  plan.bound_ms = 0;
  plan.bound_kind.clear();
  plan.optimal = false;
  plan.alternatives.clear();
  return Validate(plan);
}

}  // namespace

absl::StatusOr<WhatIf> SimulateAgain(Plan plan, const PlanChange& change) {
  if (absl::Status s = Apply(change, plan); !s.ok()) return s;
  absl::StatusOr<internal::Judgement> judged =
      internal::Judge(std::move(plan), internal::Precision::kExact);
  if (!judged.ok()) return judged.status();
  WhatIf result;
  result.plan = std::move(judged->plan);
  const absl::StatusOr<StepBreakdown> breakdown = BreakDown(result.plan);
  if (!breakdown.ok()) return breakdown.status();
  result.plan.breakdown = *breakdown;
  if (!judged->fits()) {
    const int64_t needs = result.plan.stages[judged->worst_stage].peak_memory_bytes;
    result.misfit = absl::StrCat("stage ", judged->worst_stage, " needs ",
                                 internal::BytesOf(needs, needs - judged->over_bytes));
  }
  return result;
}

}  // namespace autopart
