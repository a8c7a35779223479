#include "pipeline/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/small_plan.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;

RunRecord StepsOf(const Plan& plan, double step_ms) {
  RunRecord record;
  record.plan_hash = PlanHash(plan);
  record.model_hash = plan.model.hash;
  record.step_s = {step_ms / 1e3};
  const Schedule schedule = *BuildSchedule(plan);
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    RunRank rank;
    rank.rank = static_cast<int>(r);
    for (const Action& action : schedule.ranks[r]) rank.actions.push_back({action, 0, 0, 0, 0});
    record.ranks.push_back(rank);
  }
  return record;
}

TEST(Calibrate, OneFactorMakesTheStepAsLongAsTheRun) {
  const Plan plan = SmallPlan();
  CostGraph graph = SmallGraph();
  const double measured_ms = 1.3 * plan.predicted_step_ms;
  const absl::StatusOr<double> factor = FindScale(graph, plan, StepsOf(plan, measured_ms));
  ASSERT_TRUE(factor.ok()) << factor.status();
  EXPECT_GT(*factor, 1.3);  // messages take what they took
  ScaleTimes(graph, *factor);
  EXPECT_EQ(graph.scale, *factor);
  Plan scaled = plan;
  ASSERT_TRUE(ComposeCosts(graph, scaled).ok());
  EXPECT_NEAR(SimulatePlan(scaled)->makespan_ms, measured_ms, 1e-6);
  EXPECT_EQ(scaled.costs_scale, *factor);
  // Once more gives nothing more.
  EXPECT_NEAR(*FindScale(graph, scaled, StepsOf(scaled, measured_ms)), 1, 1e-6);
}

TEST(Calibrate, RefusesWhatDoesNotBelongTogether) {
  const Plan plan = SmallPlan();
  Plan other = plan;
  other.schedule = "gpipe";
  EXPECT_THAT(FindScale(SmallGraph(), other, StepsOf(plan, 10)).status().ToString(),
              HasSubstr("another plan"));
  CostGraph graph = SmallGraph();
  graph.model_hash = "large";
  EXPECT_FALSE(FindScale(graph, plan, StepsOf(plan, 10)).ok());
}

TEST(Calibrate, SaysHowFarOffARunIsThatNoFactorExplains) {
  const Plan plan = SmallPlan();
  EXPECT_THAT(FindScale(SmallGraph(), plan, StepsOf(plan, 1e5)).status().ToString(),
              HasSubstr("the run's step took 1e+05 ms"));
}

TEST(Calibrate, TheMeasuredRateOfAnOptimizerReplacesTheEstimate) {
  Plan plan = SmallPlan();
  CostGraph graph = SmallGraph();
  graph.machine.updates = {{"sgd", 1000}, {"adam", 10}};
  ASSERT_TRUE(ComposeCosts(graph, plan).ok());
  EXPECT_EQ(plan.stages[0].optimizer_ms, plan.stages[0].held.gradient_bytes / 10.0);
}

}  // namespace
}  // namespace autopart
