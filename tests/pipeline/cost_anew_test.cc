#include "pipeline/cost_anew.h"

#include <gtest/gtest.h>

#include "pipeline/planner.h"
#include "pipeline/run_record.h"
#include "tests/pipeline/small_plan.h"

namespace autopart {
namespace {

TEST(CostAnew, DecidesNothingAndPredictsByTheNewCosts) {
  CostGraph graph = SmallGraph();
  PlannerOptions options;
  options.stages = 2;
  options.micro_batches = 4;
  const Plan plan = *MakePlan(graph, *UniformCluster("h100", 2), options);
  const absl::StatusOr<Plan> same = CostAnew(graph, plan);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_DOUBLE_EQ(same->predicted_step_ms, plan.predicted_step_ms);
  EXPECT_EQ(same->stages, plan.stages);
  for (CostNode& node : graph.nodes) node.forward_ms *= 3;
  const absl::StatusOr<Plan> slower = CostAnew(graph, plan);
  ASSERT_TRUE(slower.ok()) << slower.status();
  EXPECT_EQ(PlanHash(*slower), PlanHash(plan));
  EXPECT_GT(slower->predicted_step_ms, plan.predicted_step_ms);
  EXPECT_TRUE(slower->alternatives.empty());
  graph.model_hash = "another";
  EXPECT_FALSE(CostAnew(graph, plan).ok());
}

}  // namespace
}  // namespace autopart
