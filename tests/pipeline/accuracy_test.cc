#include "pipeline/accuracy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/pipeline/small_plan.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;

// A run in which everything took `factor` times as long as the simulation says.
RunRecord AsSimulated(const Plan& plan, double factor) {
  RunRecord record;
  record.plan_hash = PlanHash(plan);
  record.model_hash = plan.model.hash;
  const Simulation simulation = *SimulatePlan(plan);
  const Schedule schedule = *BuildSchedule(plan);
  record.step_s = {factor * simulation.makespan_ms / 1e3};
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    RunRank rank;
    rank.rank = static_cast<int>(r);
    rank.peak_bytes = simulation.ranks[r].peak_bytes;
    for (const Action& action : schedule.ranks[r]) rank.actions.push_back({action, 0, 0, 0, 0});
    record.ranks.push_back(rank);
  }
  for (const Event& event : simulation.events) {
    RunAction& action = record.ranks[event.rank].actions[event.action_index];
    action.start_s = factor * event.start_ms / 1e3;
    action.end_s = factor * event.end_ms / 1e3;
    action.p10_s = action.median_s = action.end_s - action.start_s;
  }
  return record;
}

Plan PlanWithMemory() {
  Plan plan = SmallPlan();
  const Simulation simulation = *SimulatePlan(plan);
  for (PlanStage& stage : plan.stages) {
    stage.peak_memory_bytes = simulation.ranks[stage.ranks[0]].peak_bytes;
  }
  return plan;
}

TEST(Accuracy, OfARunThatWasAsSimulatedIsExact) {
  const Plan plan = PlanWithMemory();
  const absl::StatusOr<Accuracy> accuracy = CompareRun(plan, AsSimulated(plan, 1));
  ASSERT_TRUE(accuracy.ok()) << accuracy.status();
  EXPECT_NEAR(accuracy->step_ms.error(), 0, 1e-9);
  for (const StageAccuracy& stage : accuracy->stages) {
    EXPECT_NEAR(stage.forward_ms.error(), 0, 1e-6);
    EXPECT_NEAR(stage.backward_ms.error(), 0, 1e-6);
    EXPECT_NEAR(stage.optimizer_ms.error(), 0, 1e-6);
    EXPECT_EQ(stage.peak_memory_bytes.error(), 0);
  }
  EXPECT_NEAR(accuracy->measured.compute_ms, plan.breakdown.compute_ms, 1e-9);
  EXPECT_NEAR(accuracy->measured.bubble_ms, plan.breakdown.bubble_ms, 1e-9);
  EXPECT_NEAR(accuracy->measured.total(), accuracy->step_ms.measured, 1e-9);
}

TEST(Accuracy, ErrorsAreSharesOfTheMeasured) {
  const Plan plan = PlanWithMemory();
  RunRecord record = AsSimulated(plan, 2);
  record.ranks[1].peak_bytes = plan.stages[1].peak_memory_bytes * 4;
  const absl::StatusOr<Accuracy> accuracy = CompareRun(plan, record);
  ASSERT_TRUE(accuracy.ok()) << accuracy.status();
  EXPECT_NEAR(accuracy->step_ms.error(), -0.5, 1e-9);
  EXPECT_NEAR(accuracy->stages[0].forward_ms.error(), -0.5, 1e-9);
  EXPECT_NEAR(accuracy->stages[0].peak_memory_bytes.error(), 0, 1e-9);
  EXPECT_NEAR(accuracy->stages[1].peak_memory_bytes.error(), -0.75, 1e-9);
  EXPECT_EQ((Compared{1, 0}).error(), 0);
}

TEST(Accuracy, TextAndJsonSayTheSame) {
  const Plan plan = PlanWithMemory();
  const Accuracy accuracy = *CompareRun(plan, AsSimulated(plan, 2));
  const std::string text = AccuracyText(accuracy);
  EXPECT_THAT(text, HasSubstr("-50.0 %"));
  EXPECT_THAT(text, HasSubstr("stage 1  peak memory"));
  EXPECT_THAT(text, HasSubstr("50 % of the predicted compute had been measured"));
  const nlohmann::json json = nlohmann::json::parse(AccuracyJson(accuracy));
  EXPECT_NEAR(json["step_ms"]["error"].get<double>(), -0.5, 1e-9);
  EXPECT_EQ(json["stages"].size(), 2);
  EXPECT_EQ(json["stages"][1]["forward_ms"]["predicted"], plan.stages[1].forward_ms);
}

TEST(Accuracy, OfARunOfAnotherPlanIsRefused) {
  const Plan plan = PlanWithMemory();
  Plan other = plan;
  other.schedule = "gpipe";
  EXPECT_EQ(CompareRun(other, AsSimulated(plan, 1)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace autopart
