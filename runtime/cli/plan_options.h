// The flags of `autopart plan`, for both programs: this one (cost graphs) and autopart-model.
#ifndef AUTOPART_RUNTIME_CLI_PLAN_OPTIONS_H_
#define AUTOPART_RUNTIME_CLI_PLAN_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/cluster.h"
#include "pipeline/planner.h"

namespace CLI {
class App;
}

namespace autopart {

struct PlanFlags {
  std::string input;                     // a model, or a cost graph
  std::vector<std::string> input_specs;  // of a model that does not say its inputs itself
  std::optional<int> gpus;
  std::string cluster;  // a file, instead of gpus and device
  std::string device;   // empty: that of the costs
  std::optional<int> stages, replicas, micro_batches;
  std::optional<std::string> schedule;
  std::optional<int64_t> batch;
  std::optional<std::string> recompute;
  bool shard_optimizer = false;
  std::vector<std::string> pins;        // MODULE=STAGE
  std::vector<std::string> same_stage;  // MODULE,MODULE
  std::string search = "executable";
  std::string memory;
  std::string optimizer = "adam";
  std::optional<int> iterations;
  uint64_t seed = 0;
  std::string output = "plan.json";
  std::string format = "text";
};

// --schedule forward plans inference.
inline bool Trains(const PlanFlags& flags) { return flags.schedule != "forward"; }

void DeclarePlanFlags(CLI::App& app, PlanFlags& flags);

// INVALID_ARGUMENT names the flag.
absl::StatusOr<PlannerOptions> PlannerOptionsOf(const PlanFlags& flags);
absl::StatusOr<Cluster> ClusterOf(const PlanFlags& flags, const std::string& device_of_costs);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_PLAN_OPTIONS_H_
