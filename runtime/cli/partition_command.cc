#include "runtime/cli/partition_command.h"

#include <chrono>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "partitioner/cost_graph.h"
#include "partitioner/dnn_instance.h"
#include "partitioner/metrics.h"
#include "partitioner/partitioner.h"
#include "partitioner/read_file.h"
#include "partitioner/byte_size.h"

namespace autopart {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::string graph, output;
  std::optional<int> stages;
  std::string memory, bandwidth;
  std::string objective;
  std::optional<int> iterations;
  uint64_t seed = 0;
  std::string format = "text";
};

// What both kinds of graph come to.
struct StageRow {
  std::string name;
  int nodes = 0;
  double compute_ms = 0, load_ms = 0;
  double bytes = 0;
};

struct Outcome {
  Partition partition;
  std::vector<StageRow> stages;
  std::string file;  // for -o
};

void Declare(CLI::App& app, Flags& flags) {
  app.add_option(
         "graph", flags.graph,
         "cost graph (autopart.cost_graph) or dnn-partitioning instance; JSON, plain or gzip")
      ->required();
  app.add_option("-o,--output", flags.output, "write the partition here");
  app.add_option("--stages", flags.stages, "number of stages")->check(CLI::Range(1, 100000));
  app.add_option("--memory", flags.memory, "bytes a stage may hold, for example 80GiB");
  app.add_option("--bandwidth", flags.bandwidth,
                 "bytes a second of a link, for example 25GB (cost graphs)");
  app.add_option("--objective", flags.objective,
                 "load of a stage: sum of compute and communication, or the larger (overlap). "
                 "Default: sum for instances, overlap for cost graphs")
      ->check(CLI::IsMember({"sum", "overlap"}));
  app.add_option("--iterations", flags.iterations,
                 "rounds of search; more take longer and may find better")
      ->check(CLI::Range(0, 1000000000));
  app.add_option("--seed", flags.seed, "of the search");
  app.add_option("--format", flags.format, "of stdout: text or json")
      ->check(CLI::IsMember({"text", "json"}));
}

Objective ObjectiveOf(const Flags& flags, Objective otherwise) {
  if (flags.objective.empty()) return otherwise;
  return flags.objective == "sum" ? Objective::kSum : Objective::kOverlap;
}

absl::StatusOr<Outcome> PartitionInstance(const std::string& text, const Flags& flags) {
  absl::StatusOr<DnnInstance> instance = DnnInstanceFromJson(text);
  if (!instance.ok()) return instance.status();
  if (!flags.bandwidth.empty()) {
    return absl::InvalidArgumentError(
        "--bandwidth: a dnn-partitioning instance brings its own transfer times");
  }
  if (flags.stages) instance->max_accelerators = *flags.stages;
  if (!flags.memory.empty()) {
    absl::StatusOr<int64_t> memory = ParseByteSize(flags.memory);
    if (!memory.ok()) return memory.status();
    instance->accelerator_bytes = static_cast<double>(*memory);
  }
  DnnOptions options;
  options.objective = ObjectiveOf(flags, Objective::kSum);
  options.effort.iterations = flags.iterations;
  options.effort.seed = flags.seed;
  absl::StatusOr<DnnPartition> partition = PartitionDnnInstance(*instance, options);
  if (!partition.ok()) return partition.status();

  Outcome outcome;
  outcome.partition = partition->partition;
  int accelerators = 0, cpus = 0;
  const std::vector<DnnLoad> loads = DnnLoads(*instance, *partition, options.objective);
  for (size_t s = 0; s < loads.size(); ++s) {
    const bool is_cpu = partition->is_cpu[s];
    const std::string name = is_cpu ? absl::StrCat("cpu ", cpus++) : absl::StrCat(accelerators++);
    outcome.stages.push_back(
        {name, loads[s].nodes, loads[s].compute_ms, loads[s].load_ms, loads[s].bytes});
  }
  outcome.file = ToJson(*instance, *partition, options.objective);
  return outcome;
}

absl::StatusOr<Outcome> PartitionCostGraph(const std::string& text, const Flags& flags) {
  absl::StatusOr<CostGraph> graph = CostGraphFromJson(text);
  if (!graph.ok()) return graph.status();
  if (!flags.stages) return absl::InvalidArgumentError("say the number of stages, --stages K");
  PartitionOptions options;
  options.num_stages = *flags.stages;
  options.objective = ObjectiveOf(flags, Objective::kOverlap);
  if (!flags.memory.empty()) {
    absl::StatusOr<int64_t> memory = ParseByteSize(flags.memory);
    if (!memory.ok()) return memory.status();
    options.memory_bytes = *memory;
  }
  if (!flags.bandwidth.empty()) {
    absl::StatusOr<int64_t> bandwidth = ParseByteSize(flags.bandwidth);
    if (!bandwidth.ok()) return bandwidth.status();
    if (*bandwidth == 0) return absl::InvalidArgumentError("--bandwidth is 0");
    options.bytes_per_ms = static_cast<double>(*bandwidth) / 1e3;
  }
  options.effort.iterations = flags.iterations;
  options.effort.seed = flags.seed;
  absl::StatusOr<Partition> partition = PartitionGraph(*graph, options);
  if (!partition.ok()) return partition.status();

  Outcome outcome;
  outcome.partition = *partition;
  const PartitionMetrics metrics = ComputeMetrics(*graph, partition->stage_of_node, options);
  for (size_t s = 0; s < metrics.stages.size(); ++s) {
    const StageMetrics& stage = metrics.stages[s];
    const auto nodes =
        std::count(partition->stage_of_node.begin(), partition->stage_of_node.end(), s);
    outcome.stages.push_back({absl::StrCat(s), static_cast<int>(nodes), stage.compute_ms,
                              stage.load_ms, static_cast<double>(stage.memory_bytes)});
  }
  outcome.file = ToJson(*partition);
  return outcome;
}

void PrintText(const Outcome& outcome, double seconds, std::ostream& out) {
  const Partition& partition = outcome.partition;
  out << "stage   nodes      compute         load        memory\n";
  for (const StageRow& stage : outcome.stages) {
    out << absl::StrFormat("%-6s %6d %12.6g %12.6g %13s%s\n", stage.name, stage.nodes,
                           stage.compute_ms, stage.load_ms,
                           FormatByteSize(static_cast<int64_t>(stage.bytes)),
                           stage.load_ms == partition.value ? "  <- heaviest" : "");
  }
  out << absl::StrFormat("value   %.10g\n", partition.value)
      << absl::StrFormat("bound   %.10g (%s)\n", partition.bound, partition.bound_kind)
      << absl::StrFormat("gap     %.2f %%\n", 100 * partition.gap()) << "optimal "
      << (partition.optimal ? "yes" : "not proven") << "\n"
      << absl::StrFormat("time    %.3f s\n", seconds);
}

void PrintJson(const Outcome& outcome, double seconds, std::ostream& out) {
  const Partition& partition = outcome.partition;
  Json stages = Json::array();
  for (const StageRow& stage : outcome.stages) {
    stages.push_back({{"name", stage.name},
                      {"nodes", stage.nodes},
                      {"compute", stage.compute_ms},
                      {"load", stage.load_ms},
                      {"memory_bytes", stage.bytes}});
  }
  const Json json = {{"value", partition.value},           {"bound", partition.bound},
                     {"bound_kind", partition.bound_kind}, {"gap", partition.gap()},
                     {"optimal", partition.optimal},       {"seconds", seconds},
                     {"stages", std::move(stages)}};
  out << json.dump(2) << "\n";
}

}  // namespace

int PartitionCommand(const Args& args, Streams streams) {
  Flags flags;
  CLI::App app(
      "Example: autopart partition graph.json --stages 4 --memory 80GiB -o partition.json\n\n"
      "Splits a graph of costs into pipeline stages.",
      "autopart partition");
  Declare(app, flags);
  if (const std::optional<int> status = ParseFlags(app, args, streams)) return *status;

  const auto start = std::chrono::steady_clock::now();
  absl::StatusOr<std::string> text = ReadFile(flags.graph);
  if (!text.ok()) return Fail(text.status(), streams);
  if (absl::StripAsciiWhitespace(*text).empty()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(flags.graph, ": the file is empty")),
                streams);
  }
  absl::StatusOr<Outcome> outcome = LooksLikeDnnInstance(*text) ? PartitionInstance(*text, flags)
                                                                : PartitionCostGraph(*text, flags);
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
