// Searches stages x replicas x schedule x micro-batches x recomputation x optimizer sharding; the
// simulator judges.
#ifndef AUTOPART_PIPELINE_PLANNER_H_
#define AUTOPART_PIPELINE_PLANNER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/cost_graph.h"
#include "pipeline/cluster.h"
#include "pipeline/plan.h"

namespace autopart {

// What the planner may choose by itself.
enum class SearchSpace {
  kExecutable,  // what the runtime executes today; the rest where it is asked for
  kAll,         // every schedule, recomputation, optimizer sharding, overlapped reductions
};

// What the user fixes stays fixed; what is empty is searched.
struct PlannerOptions {
  std::optional<int> stages, replicas, micro_batches;
  std::optional<int64_t> batch;  // samples in a step
  std::optional<std::string> schedule;
  std::optional<std::string> recompute;  // "none", "all", "auto": the least that fits
  std::optional<bool> shard_optimizer;   // over the replicas of a stage (ZeRO-1)
  std::optional<int64_t> memory_bytes;   // per device, instead of the device's own
  std::string dtype = "fp32";            // that the costs are of
  std::string optimizer = "adam";        // "sgd", "sgd-momentum", "adam", "adamw"
  bool training = true;
  // Nodes forced onto stages (manual placement); empty, or one entry per node, -1 for free: it then
  // follows what it reads.
  std::vector<int> pinned_stage_of_node;
  // Modules (by path; what is inside comes along) forced onto stages, the rest balanced around.
  std::vector<std::pair<std::string, int>> pins;
  std::vector<std::vector<std::string>> same_stage;  // modules that share a stage

  SearchSpace search = SearchSpace::kExecutable;
  int iterations = 32;  // of the partitioner
  uint64_t seed = 0;
  std::stop_token stop;                                   // ends with the best plan so far
  std::function<void(const std::string&)> progress = {};  // one line at a time
};

// The graphs are one model's, one for each size of micro-batch to choose from (`samples`); their
// times are of the cluster's first kind of device.
//
// INVALID_ARGUMENT: impossible wishes (more stages than operators, stages * replicas != devices, no
// size that divides the batch...). RESOURCE_EXHAUSTED: nothing fits; says what is nearest, by how
// many bytes, and a change that fits. CANCELLED: stopped before anything fitted.
absl::StatusOr<Plan> MakePlan(std::span<const CostGraph> sizes, const Cluster& cluster,
                              const PlannerOptions& options);
absl::StatusOr<Plan> MakePlan(const CostGraph& graph, const Cluster& cluster,
                              const PlannerOptions& options);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_PLANNER_H_
