// A graph and a plan small enough to check by hand, for the tests of plans and reports.
#ifndef AUTOPART_TESTS_PIPELINE_SMALL_PLAN_H_
#define AUTOPART_TESTS_PIPELINE_SMALL_PLAN_H_

#include "pipeline/breakdown.h"
#include "pipeline/plan.h"
#include "pipeline/simulate.h"

namespace autopart {

//   input 0 -> node 0 -> value 1 -> node 1 -> value 2 -> node 3 -> value 4 (the loss)
//   node 2 -> value 3, copyable ------------------------^
// Node 0 uses parameter 0, node 3 parameters 0 (tied) and 1; nobody uses parameter 2.
inline CostGraph SmallGraph() {
  CostGraph graph;
  graph.model_hash = "small";
  graph.device = "h100";
  graph.parameters = {{"tied", 10, 40, true}, {"head", 5, 20, true}, {"spare", 3, 12, false}};
  graph.values = {
      {"input", kModelInput, {0}, 64, 0, kNoView, 0},
      {"v1", 0, {1}, 128, 128, kNoView, 128},
      {"v2", 1, {3}, 128, 128, 1, 0},  // a view of v1
      {"v3", 2, {3}, 0, 0, kNoView, 0},
      {"loss", 3, {}, 4, 4, kNoView, 4},
  };
  graph.nodes.resize(4);
  graph.nodes[0] = {"aten::linear", "first", 1, 1, 1, {0}, {0, 1}, 8, 100, kNoGroup, false, true};
  graph.nodes[1] = {"aten::relu_", "act", 0.5, 0.5, 0, {}, {2}, 0, 0, kNoGroup, false, true};
  graph.nodes[2] = {"aten::mul", "size", 0, 0, 0, {}, {}, 0, 0, kNoGroup, true, true};
  graph.nodes[3] = {"aten::linear", "last", 2, 2, 2, {0, 1}, {2}, 0, 50, kNoGroup, false, false};
  graph.results = {4};
  graph.loss = 4;
  return graph;
}

// Times and memory of the stages from the graph, the step from a simulation.
inline void Cost(Plan& plan) {
  if (!ComposeCosts(SmallGraph(), plan).ok()) std::abort();
  plan.breakdown = *BreakDown(plan);
  plan.predicted_step_ms = SimulatePlan(plan)->makespan_ms;
}

// Nodes 0, 1, 2 on stage 0 and node 3 on stage 1, each on one device.
inline Plan SmallPlan() {
  Plan plan;
  plan.model = {"small.pt", "small", 18, 4, 72, true};
  plan.cluster = *UniformCluster("h100", 2);
  plan.cluster.hosts[0].link = plan.cluster.hosts[0].network = {1024, 0.25, false};
  plan.memory_bytes = 4096;
  plan.optimizer = "adam";
  plan.schedule = "1f1b";
  plan.micro_batches = 4;
  plan.bound_ms = 20;
  plan.bound_kind = "work";
  plan.measured_fraction = 0.5;
  plan.seed = 18446744073709551615u;
  plan.stages.resize(2);
  PlanStage& a = plan.stages[0];
  a.ranks = {0};
  a.nodes = {0, 1, 2};
  a.owned_parameters = {0, 2};
  a.first_module = "first";
  a.last_module = "act";
  a.operators = 3;
  a.parameters = 13;
  a.send_bytes = 128;
  a.peak_memory_bytes = 1000;
  a.memory = {100, 50, 200, 600, 50};
  a.idle_fraction = 0.25;
  PlanStage& b = plan.stages[1];
  b.index = 1;
  b.ranks = {1};
  b.nodes = {3};
  b.copied_nodes = {2};
  b.owned_parameters = {1};
  b.copied_parameters = {0};
  b.first_module = b.last_module = "last";
  b.operators = 1;
  b.parameters = 5;
  b.copied_operators = 1;
  b.copied_parameters_count = 10;
  b.send_bytes = 128;
  b.peak_memory_bytes = 900;
  b.memory = {100, 50, 100, 600, 50};
  plan.edges = {{0, 1, {2}, true, 128, 128}};
  plan.alternatives = {{1, 4, 2, 0, "1f1b", "none", false, 33.5, "slower"}};
  Cost(plan);
  return plan;
}

}  // namespace autopart

#endif  // AUTOPART_TESTS_PIPELINE_SMALL_PLAN_H_
