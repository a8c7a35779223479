// Plans made by hand, for tests that want a certain cut rather than a good one.
#ifndef AUTOPART_TESTS_TESTING_PLAN_FROM_STAGES_H_
#define AUTOPART_TESTS_TESTING_PLAN_FROM_STAGES_H_

#include <string>
#include <vector>

#include "partitioner/cost_graph.h"
#include "pipeline/plan.h"
#include "profiler/op_graph.h"

namespace autopart::testing {

// The graph's structure with bytes and no times.
CostGraph StructureOf(const OpGraph& graph);

struct HandPlan {
  std::vector<int> stage_of_node;  // one per node
  std::vector<int> replicas;       // by stage; empty: one each
  std::string schedule = "1f1b";
  int micro_batches = 1;
};

// Ranks are numbered stage by stage. Throws std::runtime_error if the result is not valid.
Plan PlanFromStages(const OpGraph& graph, const HandPlan& hand);
Plan PlanFromStages(const OpGraph& graph, const CostGraph& costs, const HandPlan& hand);

// num_stages stages with nearly equal numbers of nodes, in graph order. Groups (in-place writes and
// what sees them) are kept whole.
std::vector<int> EvenStages(const OpGraph& graph, int num_stages);

}  // namespace autopart::testing

#endif  // AUTOPART_TESTS_TESTING_PLAN_FROM_STAGES_H_
