#include "runtime/cli/partition_command.h"

#include <chrono>
#include <cmath>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "partitioner/byte_size.h"
#include "partitioner/cost_graph.h"
#include "partitioner/dnn_instance.h"
#include "partitioner/metrics.h"
#include "partitioner/partitioner.h"
#include "partitioner/piper_instance.h"
#include "partitioner/read_file.h"
#include "runtime/cli/interrupt.h"
#include "runtime/cli/partition_flags.h"

namespace autopart {
namespace {

using Json = nlohmann::ordered_json;

// What all kinds of graph come to.
struct StageRow {
  std::string name;
  int nodes = 0;
  int replicas = 1;  // devices, of a Piper plan: replicas times tensor degree
  int device_type = 0;
  double compute_ms = 0, load_ms = 0;
  double bytes = 0;
};

struct Outcome {
  Partition partition;
  std::vector<StageRow> stages;
  bool has_replicas = false, has_types = false;  // columns of the table
  bool interrupted = false;                      // by Ctrl-C; the best answer until then
  std::string file;                              // for -o
};

absl::StatusOr<Outcome> PartitionInstance(const std::string& text, const PartitionFlags& flags) {
  const auto status = CheckUnused(
      flags,
      {{"--devices", "an instance has one device a stage: say --stages"},
       {"--device-type", "an instance brings its own devices; --stages and --memory change them"},
       {"--bandwidth", "an instance brings its own transfer times"},
       {"--micro-batches", "an instance counts the bytes of a whole sample"},
       {"--schedule", "an instance counts the bytes of a whole sample"},
       {"--recompute", "an instance does not say what recomputing would cost"}});
  if (!status.ok()) return status;
  absl::StatusOr<DnnInstance> instance = DnnInstanceFromJson(text);
  if (!instance.ok()) return instance.status();
  if (flags.stages) instance->max_accelerators = *flags.stages;
  if (!flags.memory.empty()) {
    absl::StatusOr<int64_t> memory = SizeOf("--memory", flags.memory);
    if (!memory.ok()) return memory.status();
    instance->accelerator_bytes = static_cast<double>(*memory);
  }
  DnnOptions options;
  options.objective = ObjectiveOf(flags, Objective::kSum);
  options.effort = EffortOf(flags);
  const Interrupt interrupt;
  options.effort.stop = interrupt.token();
  absl::StatusOr<DnnPartition> partition = PartitionDnnInstance(*instance, options);
  if (!partition.ok()) return partition.status();

  Outcome outcome;
  outcome.partition = partition->partition;
  outcome.interrupted = interrupt.came();
  int accelerators = 0, cpus = 0;
  const std::vector<DnnLoad> loads = DnnLoads(*instance, *partition, options.objective);
  for (size_t s = 0; s < loads.size(); ++s) {
    const bool is_cpu = partition->is_cpu[s];
    const std::string name = is_cpu ? absl::StrCat("cpu ", cpus++) : absl::StrCat(accelerators++);
    outcome.stages.push_back(
        {name, loads[s].nodes, 1, 0, loads[s].compute_ms, loads[s].load_ms, loads[s].bytes});
  }
  outcome.file = ToJson(*instance, *partition, options.objective);
  return outcome;
}

absl::StatusOr<Outcome> PartitionPiper(const std::string& text, const PartitionFlags& flags) {
  constexpr char kOneWay[] = "a Piper instance is planned in one way, there is no search to direct";
  const auto status = CheckUnused(
      flags,
      {{"--stages", "a Piper instance is cut into as many stages as are best for --devices"},
       {"--device-type", "a Piper instance has equal devices: say --devices and --memory"},
       {"--schedule", "a Piper instance counts micro-batches in flight by a rule of its own"},
       {"--recompute", "a Piper instance brings its configurations"},
       {"--objective", "a Piper instance adds up compute and communication"},
       {"--time-limit", kOneWay},
       {"--iterations", kOneWay},
       {"--seed", kOneWay},
       {"--threads", kOneWay}});
  if (!status.ok()) return status;
  absl::StatusOr<PiperInstance> instance = PiperInstanceFromJson(text);
  if (!instance.ok()) return instance.status();
  if (flags.devices) instance->max_devices = *flags.devices;
  if (flags.micro_batches) instance->micro_batches = *flags.micro_batches;
  if (!flags.memory.empty()) {
    absl::StatusOr<int64_t> memory = SizeOf("--memory", flags.memory);
    if (!memory.ok()) return memory.status();
    instance->memory_bytes = static_cast<double>(*memory);
  }
  if (!flags.bandwidth.empty()) {
    absl::StatusOr<int64_t> bandwidth = SizeOf("--bandwidth", flags.bandwidth);
    if (!bandwidth.ok()) return bandwidth.status();
    instance->bandwidth = static_cast<double>(*bandwidth);
  }
  absl::StatusOr<PiperPlan> plan = PlanPiperInstance(*instance);
  if (!plan.ok()) return plan.status();

  Outcome outcome;
  outcome.partition.value = plan->value;
  outcome.partition.bound = plan->bound;
  outcome.partition.bound_kind = plan->bound_kind;
  outcome.partition.optimal = plan->optimal;
  const std::vector<PiperStageMetrics> metrics = PiperMetrics(*instance, *plan);
  for (size_t s = 0; s < metrics.size(); ++s) {
    const PiperStage& stage = plan->stages[s];
    outcome.stages.push_back({absl::StrCat(s), static_cast<int>(stage.nodes.size()),
                              stage.replicas * stage.tensor_degree, 0, metrics[s].compute,
                              metrics[s].load, metrics[s].memory_bytes});
  }
  outcome.has_replicas = true;
  outcome.file = ToJson(*instance, *plan);
  return outcome;
}

absl::StatusOr<Outcome> PartitionCostGraph(const std::string& text, const PartitionFlags& flags) {
  absl::StatusOr<CostGraph> graph = CostGraphFromJson(text);
  if (!graph.ok()) return graph.status();
  absl::StatusOr<PartitionOptions> options = PartitionOptionsOf(flags);
  if (!options.ok()) return options.status();
  const Interrupt interrupt;
  options->effort.stop = interrupt.token();
  absl::StatusOr<Partition> partition = PartitionGraph(*graph, *options);
  if (!partition.ok()) return partition.status();

  Outcome outcome;
  outcome.partition = *partition;
  outcome.interrupted = interrupt.came();
  const PartitionMetrics metrics = ComputeMetrics(*graph, *partition, *options);
  for (size_t s = 0; s < metrics.stages.size(); ++s) {
    const StageMetrics& stage = metrics.stages[s];
    const auto nodes =
        std::count(partition->stage_of_node.begin(), partition->stage_of_node.end(), s);
    const int type = partition->stages.empty() ? 0 : partition->stages[s].device_type;
    outcome.stages.push_back({absl::StrCat(s), static_cast<int>(nodes), stage.replicas, type,
                              stage.compute_ms + stage.recompute_ms, stage.load_ms,
                              static_cast<double>(stage.memory_bytes)});
  }
  outcome.has_replicas = options->num_devices > 0 || !options->device_types.empty();
  outcome.has_types = options->device_types.size() > 1;
  outcome.file = ToJson(*partition);
  return outcome;
}

// Digits that tell a gap from none.
std::string GapText(const Partition& partition) {
  const double percent = 100 * partition.gap();
  if (std::isinf(percent)) return "not known";
  if (!partition.optimal && percent < 0.01) return "< 0.01 %";
  return absl::StrFormat("%.2f %%", percent);
}

void PrintText(const Outcome& outcome, double seconds, std::ostream& out) {
  const Partition& partition = outcome.partition;
  const auto devices = [&](const std::string& replicas, const std::string& type) {
    return absl::StrCat(outcome.has_replicas ? absl::StrFormat(" %8s", replicas) : "",
                        outcome.has_types ? absl::StrFormat(" %4s", type) : "");
  };
  out << "stage   nodes" << devices("replicas", "type")
      << "      compute         load        memory\n";
  for (const StageRow& stage : outcome.stages) {
    out << absl::StrFormat("%-6s %6d%s %12.6g %12.6g %13s%s\n", stage.name, stage.nodes,
                           devices(absl::StrCat(stage.replicas), absl::StrCat(stage.device_type)),
                           stage.compute_ms, stage.load_ms,
                           FormatByteSize(static_cast<int64_t>(stage.bytes)),
                           stage.load_ms == partition.value ? "  <- heaviest" : "");
  }
  out << absl::StrFormat("value   %.10g\n", partition.value)
      << absl::StrFormat("bound   %.10g (%s)\n", partition.bound, partition.bound_kind)
      << "gap     " << GapText(partition) << "\noptimal "
      << (partition.optimal ? "yes" : "not proven") << "\n"
      << absl::StrFormat("time    %.3f s%s\n", seconds,
                         outcome.interrupted        ? ", interrupted"
                         : partition.time_limit_hit ? ", the time limit was hit"
                                                    : "");
}

void PrintJson(const Outcome& outcome, double seconds, std::ostream& out) {
  const Partition& partition = outcome.partition;
  Json stages = Json::array();
  for (const StageRow& stage : outcome.stages) {
    stages.push_back({{"name", stage.name},
                      {"nodes", stage.nodes},
                      {"replicas", stage.replicas},
                      {"device_type", stage.device_type},
                      {"compute", stage.compute_ms},
                      {"load", stage.load_ms},
                      {"memory_bytes", stage.bytes}});
  }
  const Json json = {{"value", partition.value},
                     {"bound", partition.bound},
                     {"bound_kind", partition.bound_kind},
                     {"gap", partition.gap()},
                     {"optimal", partition.optimal},
                     {"time_limit_hit", partition.time_limit_hit},
                     {"seconds", seconds},
                     {"stages", std::move(stages)}};
  out << json.dump(2) << "\n";
}

}  // namespace

int PartitionCommand(const Args& args, Streams streams) {
  PartitionFlags flags;
  CLI::App app(
      "Example: autopart partition graph.json --stages 4 --memory 80GiB -o partition.json\n\n"
      "Splits a graph of costs into pipeline stages.",
      "autopart partition");
  DeclarePartitionFlags(app, flags);
  if (const std::optional<int> status = ParseFlags(app, args, streams)) return *status;

  const auto start = std::chrono::steady_clock::now();
  absl::StatusOr<std::string> text = ReadFile(flags.graph);
  if (!text.ok()) return Fail(text.status(), streams);
  if (absl::StripAsciiWhitespace(*text).empty()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(flags.graph, ": the file is empty")),
                streams);
  }
  const auto partition = LooksLikeDnnInstance(*text)     ? PartitionInstance
                         : LooksLikePiperInstance(*text) ? PartitionPiper
                                                         : PartitionCostGraph;
  absl::StatusOr<Outcome> outcome = partition(*text, flags);
  if (!outcome.ok()) {
    return Fail(absl::Status(outcome.status().code(),
                             absl::StrCat(flags.graph, ": ", outcome.status().message())),
                streams);
  }
  if (!flags.output.empty()) {
    if (auto status = WriteFile(flags.output, outcome->file); !status.ok()) {
      return Fail(status, streams);
    }
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  (flags.format == "json" ? PrintJson : PrintText)(*outcome, elapsed.count(), streams.out);
  return kExitGood;
}

}  // namespace autopart
