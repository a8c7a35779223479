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

namespace autopart {

struct CostOptions {
  // Empty: measure on this CPU (one thread), cached under $XDG_CACHE_HOME/autopart.
  // Else a roofline estimate.
  std::optional<DeviceSpec> estimate_for;
  bool training = true;
  int repeats = 5;  // median of so many timings
};

// Node i and value i of the result are the graph's own. The graph must have shapes.
absl::StatusOr<CostGraph> BuildCostGraph(const OpGraph& graph, const CostOptions& options);

}  // namespace autopart

#endif  // AUTOPART_PROFILER_COST_H_
