#include "runtime/cli/plan_model_command.h"

#include <chrono>

#include "CLI/CLI.hpp"
#include "partitioner/byte_size.h"
#include "partitioner/cost_graph.h"
#include "runtime/cli/model_input.h"
#include "runtime/cli/plan_graph.h"
#include "runtime/cli/plan_options.h"

namespace autopart {

int PlanModelCommand(const Args& args, Streams streams) {
  const auto start = std::chrono::steady_clock::now();
  PlanFlags flags;
  CLI::App app(
      "Example: autopart plan model.pt --gpus 8 --device h100 -o plan.json\n\n"
      "Finds the fastest way to train a model on N devices, and says why.",
      "autopart plan");
  DeclarePlanFlags(app, flags);
  if (const std::optional<int> status = ParseFlags(app, args, streams)) return *status;
  if (flags.device == "auto") flags.device.clear();

  // What is wrong with the flags is said before the model is loaded.
  const absl::StatusOr<PlannerOptions> options = PlannerOptionsOf(flags);
  if (!options.ok()) return Fail(options.status(), streams);
  const absl::StatusOr<Cluster> cluster = ClusterOf(flags, "cpu");
  if (!cluster.ok()) return Fail(cluster.status(), streams);
  if (flags.device.empty() && flags.cluster.empty()) {
    streams.err << "no --device: planning for processes on CPUs like this one, with "
                << FormatByteSize(options->memory_bytes.value_or(
                       cluster->hosts[0].devices[0].device.memory_bytes))
                << " each\n";
  }

  ModelFlags model;
  model.path = flags.input;
  model.inputs = flags.input_specs;
  if (flags.cluster.empty()) {
    model.device = flags.device;
  } else {
    model.estimate_for = cluster->hosts[0].devices[0].device;
  }
  model.training = Trains(flags);
  // Where times are measured: as many ranks at once as there will be here.
  model.at_once = ThreadsAtOnce(cluster->num_devices());
  const absl::StatusOr<CostGraph> graph = LoadCostGraph(model, streams);
  if (!graph.ok()) return Fail(graph.status(), streams);
  return PlanGraph(*graph, flags, start, streams);
}

}  // namespace autopart
