#include "runtime/cli/model_input.h"

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "partitioner/device.h"
#include "profiler/cost.h"
#include "profiler/graph_file.h"
#include "profiler/model.h"

namespace autopart {

void DeclareModel(CLI::App& app, ModelFlags& flags) {
  app.add_option("model", flags.path,
                 "TorchScript file, as autopart.save or torch.jit.save writes it, or a graph, as "
                 "autopart capture does")
      ->required();
  app.add_option("--input", flags.inputs,
                 "dtype, shape and bound of one input of forward(), for example "
                 "'int64[8,128]<50257'; once for each, in order. Default: what the file says")
      ->take_all();
}

void DeclareDevice(CLI::App& app, ModelFlags& flags) {
  app.add_option("--device", flags.device,
                 absl::StrCat("estimate for this device (", absl::StrJoin(DeviceNames(), ", "),
                              "); auto: measure on this CPU. Default: auto"));
}

absl::StatusOr<CostGraph> LoadCostGraph(const ModelFlags& flags, Streams streams) {
  CostOptions options;
  options.training = flags.training;
  options.estimate_for = flags.estimate_for;
  if (!options.estimate_for && !flags.device.empty() && flags.device != "auto") {
    absl::StatusOr<DeviceSpec> device = FindDevice(flags.device);
    if (!device.ok()) return device.status();
    options.estimate_for = *device;
  }
  std::vector<InputSpec> inputs;
  for (const std::string& text : flags.inputs) {
    absl::StatusOr<InputSpec> input = ParseInputSpec(text);
    if (!input.ok()) return input.status();
    inputs.push_back(*std::move(input));
  }
  const absl::StatusOr<OpGraph> graph = LoadGraphFile(flags.path, inputs);
  if (!graph.ok()) return In(flags.path, graph.status());
  if (!options.estimate_for) {
    streams.err << "measuring " << graph->nodes.size()
                << " operators on this CPU, each kind once (--device NAME estimates instead)\n";
  }
  absl::StatusOr<CostGraph> cost = BuildCostGraph(*graph, options);
  if (!cost.ok()) return In(flags.path, cost.status());
  return cost;
}

absl::Status In(const std::string& where, const absl::Status& status) {
  const std::string message(status.message());
  if (absl::StrContains(message, where)) return status;
  return absl::Status(status.code(), absl::StrCat(where, ": ", message));
}

}  // namespace autopart
