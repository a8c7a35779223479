#include "pipeline/what_if.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/small_plan.h"

namespace autopart {
namespace {

TEST(SimulateAgain, LeavesAConfirmedPlanAsItIs) {
  const Plan once = SimulateAgain(SmallPlan(), {})->plan;
  const WhatIf twice = *SimulateAgain(once, {});
  EXPECT_EQ(twice.plan, once);
  EXPECT_EQ(twice.misfit, "");
  EXPECT_EQ(once.predicted_step_ms, SmallPlan().predicted_step_ms);
}

TEST(SimulateAgain, GivesPartsThatAddUpToTheStep) {
  for (const int m : {1, 3, 8}) {
    PlanChange change;
    change.micro_batches = m;
    const WhatIf result = *SimulateAgain(SmallPlan(), change);
    EXPECT_NEAR(result.plan.breakdown.total(), result.plan.predicted_step_ms, 1e-9);
  }
}

TEST(SimulateAgain, DropsTheBoundOfAnotherRequest) {
  PlanChange change;
  change.micro_batches = 8;
  const Plan plan = SimulateAgain(SmallPlan(), change)->plan;
  EXPECT_EQ(plan.bound_kind, "");
  EXPECT_EQ(plan.bound_ms, 0);
  EXPECT_TRUE(plan.alternatives.empty());
  EXPECT_EQ(SimulateAgain(SmallPlan(), {})->plan.bound_ms, SmallPlan().bound_ms);
}

TEST(SimulateAgain, ScalesTimesToAnotherDevice) {
  PlanChange change;
  change.cluster = SmallPlan().cluster;
  DeviceSpec& device = change.cluster->hosts[0].devices[0].device;
  device.name = "half";
  device.fp32_flops_per_ms /= 2;
  const Plan plan = SimulateAgain(SmallPlan(), change)->plan;
  EXPECT_DOUBLE_EQ(plan.stages[0].forward_ms, 2 * SmallPlan().stages[0].forward_ms);
  EXPECT_DOUBLE_EQ(plan.breakdown.compute_ms, 2 * SmallPlan().breakdown.compute_ms);
}

TEST(SimulateAgain, NamesTheStageThatDoesNotFit) {
  PlanChange change;
  change.memory_bytes = 100;
  const WhatIf result = *SimulateAgain(SmallPlan(), change);
  EXPECT_EQ(result.misfit, "stage 1 needs 772 of 100 B");
}

}  // namespace
}  // namespace autopart
