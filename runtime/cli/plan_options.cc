#include "runtime/cli/plan_options.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "partitioner/byte_size.h"
#include "partitioner/read_file.h"
#include "pipeline/cluster_file.h"
#include "pipeline/report.h"

namespace autopart {

void DeclarePlanFlags(CLI::App& app, PlanFlags& flags) {
  const std::string schedules = absl::StrJoin(ScheduleNames(), ", ");
  const std::string formats = absl::StrJoin(ReportFormats(), ", ");
  app.add_option("input", flags.input, "model.pt, or a cost graph (JSON, plain or gzip)")
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
  app.add_option(
         "--schedule", flags.schedule,
         absl::StrCat(schedules, " (forward: inference; zb-h1: to compare, not to run yet)"))
      ->group("Limits");
  app.add_option("--optimizer", flags.optimizer, "sgd, sgd-momentum, adam, adamw")
      ->capture_default_str()
      ->group("Limits");
  app.add_option("--iterations", flags.iterations, "rounds of search of the partitioner")
      ->check(CLI::Range(0, 1000000000))
      ->group("Limits");
  app.add_option("--seed", flags.seed, "of the search")->group("Limits");
  app.add_option("-o,--output", flags.output, "where the plan is saved")
      ->capture_default_str()
      ->group("Output");
  app.add_option("--format", flags.format, absl::StrCat("of stdout: ", formats))
      ->check(CLI::IsMember(ReportFormats()))
      ->group("Output");
}

absl::StatusOr<PlannerOptions> PlannerOptionsOf(const PlanFlags& flags) {
  PlannerOptions options;
  options.stages = flags.stages;
  options.replicas = flags.replicas;
  options.micro_batches = flags.micro_batches;
  options.schedule = flags.schedule;
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
  if (!flags.cluster.empty()) {
    const absl::StatusOr<std::string> text = ReadFile(flags.cluster);
    if (!text.ok()) return text.status();
    absl::StatusOr<Cluster> cluster = ClusterFromYaml(*text);
    if (cluster.ok()) return cluster;
    return absl::Status(cluster.status().code(),
                        absl::StrCat(flags.cluster, ": ", cluster.status().message()));
  }
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
