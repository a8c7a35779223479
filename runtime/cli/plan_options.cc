#include "runtime/cli/plan_options.h"

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "partitioner/byte_size.h"
#include "runtime/cli/saved_plan.h"

namespace autopart {

void DeclarePlanFlags(CLI::App& app, PlanFlags& flags) {
  const std::string schedules = absl::StrJoin(ScheduleNames(), ", ");
  app.add_option(
         "input", flags.input,
         "model.pt, model.graph.json of autopart capture, or a cost graph (JSON, plain or gzip)")
      ->required();
  app.add_option("--input", flags.input_specs,
                 "dtype, shape and bound of each input of a model that was saved without, for "
                 "example 'int64[8,128]<50257'")
      ->allow_extra_args(false)
      ->group("Model");
  app.add_option("--gpus", flags.gpus, "number of devices, in hosts of eight")->group("Cluster");
  app.add_option("--cluster", flags.cluster,
                 "hosts, devices and links instead (YAML or JSON, see docs/clusters.md)")
      ->excludes("--gpus")
      ->group("Cluster");
  app.add_option("--device", flags.device,
                 absl::StrCat("kind of device: ", absl::StrJoin(DeviceNames(), ", ")))
      ->excludes("--cluster")
      ->group("Cluster");
  app.add_option("--memory", flags.memory, "bytes a device may use, for example 40GiB")
      ->group("Cluster");
  app.add_option("--micro-batches", flags.micro_batches,
                 "micro-batches in a step, of the size that the model was traced with")
      ->group("Limits");
  app.add_option("--stages", flags.stages, "number of pipeline stages")->group("Limits");
  app.add_option("--replicas", flags.replicas, "copies of each stage")->group("Limits");
  app.add_option("--schedule", flags.schedule,
                 absl::StrCat(
                     schedules,
                     " (forward: inference; interleaved, zb-h1, zb-v: to compare, not to run yet)"))
      ->group("Limits");
  app.add_option("--optimizer", flags.optimizer, "sgd, sgd-momentum, adam, adamw")
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--batch", flags.batch, "samples in a step")->group("Limits");
  app.add_option("--recompute", flags.recompute,
                 "forward work done again to hold less: none, all, auto (the least that fits); to "
                 "compare, not to run yet")
      ->group("Limits");
  app.add_flag("--shard-optimizer", flags.shard_optimizer,
               "spread the optimizer's state over the replicas of a stage; to compare, not to run "
               "yet")
      ->group("Limits");
  app.add_option("--pin", flags.pins,
                 "MODULE=STAGE: a module, with all inside it, on a stage, for example "
                 "'transformer.h.0=0'; may be given several times")
      ->allow_extra_args(false)
      ->group("Limits");
  app.add_option("--same-stage", flags.same_stage,
                 "MODULE,MODULE,..: on one stage, whichever; may be given several times")
      ->allow_extra_args(false)
      ->group("Limits");
  app.add_option("--search", flags.search,
                 "executable: what can be run today; all: every schedule, recomputation, sharded "
                 "optimizers, overlapped reductions")
      ->check(CLI::IsMember({"executable", "all"}))
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--iterations", flags.iterations, "rounds of search of the partitioner")
      ->check(CLI::Range(0, 1000000000))
      ->group("Limits");
  app.add_option("--seed", flags.seed, "of the search")->group("Limits");
  app.add_option("-o,--output", flags.output, "where the plan is saved")
      ->capture_default_str()
      ->group("Output");
  DeclareReportFormat(app, flags.format);
}

namespace {

absl::StatusOr<std::pair<std::string, int>> ParsePin(const std::string& text) {
  const size_t equals = text.rfind('=');
  int stage = 0;
  if (equals == std::string::npos || equals == 0 ||
      !absl::SimpleAtoi(text.substr(equals + 1), &stage)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--pin takes a module and a stage, for example transformer.h.0=0, not '", text, "'"));
  }
  return std::pair(text.substr(0, equals), stage);
}

}  // namespace

absl::StatusOr<PlannerOptions> PlannerOptionsOf(const PlanFlags& flags) {
  PlannerOptions options;
  options.stages = flags.stages;
  options.replicas = flags.replicas;
  options.micro_batches = flags.micro_batches;
  options.batch = flags.batch;
  options.schedule = flags.schedule;
  options.recompute = flags.recompute;
  if (flags.shard_optimizer) options.shard_optimizer = true;
  options.search = flags.search == "all" ? SearchSpace::kAll : SearchSpace::kExecutable;
  for (const std::string& text : flags.pins) {
    absl::StatusOr<std::pair<std::string, int>> pin = ParsePin(text);
    if (!pin.ok()) return pin.status();
    options.pins.push_back(*std::move(pin));
  }
  for (const std::string& text : flags.same_stage) {
    options.same_stage.push_back(absl::StrSplit(text, ','));
    if (options.same_stage.back().size() < 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--same-stage takes two or more modules with commas between them, not '", text, "'"));
    }
  }
  options.optimizer = flags.optimizer;
  options.training = Trains(flags);
  if (flags.iterations) options.iterations = *flags.iterations;
  options.seed = flags.seed;
  if (!flags.memory.empty()) {
    absl::StatusOr<int64_t> memory = ParseByteSize(flags.memory);
    if (!memory.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--memory: ", memory.status().message()));
    }
    if (*memory < 1) return absl::InvalidArgumentError("--memory must be at least 1 byte");
    options.memory_bytes = *memory;
  }
  return options;
}

absl::StatusOr<Cluster> ClusterOf(const PlanFlags& flags, const std::string& device_of_costs) {
  if (!flags.cluster.empty()) return ReadCluster(flags.cluster);
  if (!flags.gpus) {
    return absl::InvalidArgumentError("say which devices: --gpus N, or --cluster FILE");
  }
  if (*flags.gpus < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--gpus must be at least 1, not ", *flags.gpus));
  }
  const std::string& device = flags.device.empty() ? device_of_costs : flags.device;
  if (device.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("say the kind of device, --device ", absl::StrJoin(DeviceNames(), "|")));
  }
  return UniformCluster(device, *flags.gpus);
}

}  // namespace autopart
