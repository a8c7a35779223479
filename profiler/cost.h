// OpGraph -> CostGraph: measured on this machine's CPU, or estimated for a named device.
#ifndef AUTOPART_PROFILER_COST_H_
#define AUTOPART_PROFILER_COST_H_

#include <optional>
#include <string>

#include <absl/status/statusor.h>

#include "partitioner/cost_graph.h"
#include "partitioner/device.h"
#include "profiler/model.h"
#include "profiler/op_graph.h"
#include "profiler/program_times.h"
#include "profiler/saved.h"

namespace autopart {

struct CostOptions {
  // Empty: measure on this CPU (one thread), cached under $XDG_CACHE_HOME/autopart.
  // Else a roofline estimate.
  std::optional<DeviceSpec> estimate_for;
  // Times of all nodes where they stand (MeasureProgram), instead of each alone. What each alone
  // took then only says how a backward is shared between inputs and weights.
  std::optional<ProgramTimes> in_order;
  bool training = true;
  int repeats = 5;                               // median of so many timings
  ObserveOn observe_on = ObserveOn::kAutomatic;  // how saved values are found
};

// Node i, value i and parameter i of the result are the graph's own. Buffers have bytes but no
// elements, since they are no parameters. Values that are parameters have no consumers, as nodes
// list them as parameters; those that are constants have none, as every stage has all constants.
// Values that are no tensors have no bytes. The name of a control-flow node ends in "(data
// dependent)", as its cost is that of one example run.
//
// saved_values and saved_bytes are exact: what a stage's nodes save together (each storage once,
// through view_of) is what is alive when a forward has ended and only the gradient edges of its
// results are kept. The graph must have shapes (PropagateShapes).
absl::StatusOr<CostGraph> BuildCostGraph(const OpGraph& graph, const CostOptions& options);

}  // namespace autopart

#endif  // AUTOPART_PROFILER_COST_H_
