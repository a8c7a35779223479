// What `autopart plan` does once it has costs: cost graph -> plan -> file and report.
#ifndef AUTOPART_RUNTIME_CLI_PLAN_GRAPH_H_
#define AUTOPART_RUNTIME_CLI_PLAN_GRAPH_H_

#include <chrono>

#include "partitioner/cost_graph.h"
#include "runtime/cli/command.h"
#include "runtime/cli/plan_options.h"

namespace autopart {

// Plans, saves the plan to flags.output, reports to stdout. start: when the command began, for the
// time shown. Returns the exit status.
int PlanGraph(const CostGraph& graph, const PlanFlags& flags,
              std::chrono::steady_clock::time_point start, Streams streams);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_PLAN_GRAPH_H_
