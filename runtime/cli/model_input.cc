#include "runtime/cli/model_input.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "partitioner/device.h"
#include "profiler/batches.h"
#include "profiler/cost.h"
#include "profiler/graph_file.h"
#include "profiler/model.h"
#include "profiler/program_times.h"
#include "runtime/cli/cores.h"
#include "runtime/machine.h"

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

namespace {

absl::StatusOr<std::vector<InputSpec>> InputsOf(const ModelFlags& flags) {
  std::vector<InputSpec> inputs;
  for (const std::string& text : flags.inputs) {
    absl::StatusOr<InputSpec> input = ParseInputSpec(text);
    if (!input.ok()) return input.status();
    inputs.push_back(*std::move(input));
  }
  return inputs;
}

}  // namespace

int ThreadsAtOnce(int num_ranks) {
  constexpr int kMost = 8;
  const int cores = static_cast<int>(UsableCores().size());
  return std::max(1, std::min({num_ranks, cores, kMost}));
}

absl::StatusOr<Model> ReadModel(const ModelFlags& flags) {
  const absl::StatusOr<std::vector<InputSpec>> inputs = InputsOf(flags);
  if (!inputs.ok()) return inputs.status();
  absl::StatusOr<Model> model = LoadModelFile(flags.path, *inputs);
  if (!model.ok()) return In(flags.path, model.status());
  return model;
}

namespace {

// A captured graph is a model without tensors.
absl::StatusOr<Model> ReadModelOrGraph(const ModelFlags& flags) {
  if (!IsGraphFile(flags.path)) return ReadModel(flags);
  const absl::StatusOr<std::vector<InputSpec>> inputs = InputsOf(flags);
  if (!inputs.ok()) return inputs.status();
  absl::StatusOr<OpGraph> graph = LoadGraphFile(flags.path, *inputs);
  if (!graph.ok()) return In(flags.path, graph.status());
  return Model{*std::move(graph), {}};
}

// Gives each of so many threads a core, as autopart run does.
std::function<void(int)> CoreOf(int num_threads) {
  const absl::StatusOr<std::vector<int>> cores = ChooseCores("auto", num_threads, UsableCores());
  if (!cores.ok() || cores->empty()) return nullptr;
  return [cores = *cores](int thread) { PinThisThread(cores[thread]); };
}

absl::StatusOr<ProgramTimes> MeasureInOrder(const Model& model, const ModelFlags& flags) {
  ProgramPassOptions options;
  options.at_once = flags.at_once;
  options.training = flags.training;
  options.on_thread = CoreOf(flags.at_once);
  try {
    const Batches batches = RandomBatches(model.graph, 1, /*seed=*/0);
    return MeasureProgram(model, batches.Of(0)[0], options);
  } catch (const std::invalid_argument& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace

absl::StatusOr<CostGraph> LoadCostGraph(const ModelFlags& flags, Streams streams) {
  CostOptions options;
  options.training = flags.training;
  options.estimate_for = flags.estimate_for;
  if (!options.estimate_for && !flags.device.empty() && flags.device != "auto") {
    absl::StatusOr<DeviceSpec> device = FindDevice(flags.device);
    if (!device.ok()) return device.status();
    options.estimate_for = *device;
  }
  const absl::StatusOr<Model> model = ReadModelOrGraph(flags);
  if (!model.ok()) return model.status();
  if (!options.estimate_for) {
    streams.err << "measuring " << model->graph.nodes.size() << " operators on this CPU, "
                << (flags.at_once > 0 ? "in order" : "each kind once")
                << " (--device NAME estimates instead)\n";
    if (flags.at_once > 0) {
      absl::StatusOr<ProgramTimes> times = MeasureInOrder(*model, flags);
      if (times.ok()) {
        options.in_order = *std::move(times);
      } else {
        streams.err << "the model does not run as a whole, so each kind of operator is measured "
                       "alone: "
                    << times.status().message() << "\n";
      }
    }
  }
  absl::StatusOr<CostGraph> cost = BuildCostGraph(model->graph, options);
  if (!cost.ok()) return In(flags.path, cost.status());
  if (options.in_order) {
    MachineOptions machine;
    machine.at_once = flags.at_once;
    machine.on_thread = CoreOf(flags.at_once);
    cost->machine = MeasureMachine(*model, machine);
  }
  return cost;
}

absl::Status In(const std::string& where, const absl::Status& status) {
  const std::string message(status.message());
  if (absl::StrContains(message, where)) return status;
  return absl::Status(status.code(), absl::StrCat(where, ": ", message));
}

}  // namespace autopart
