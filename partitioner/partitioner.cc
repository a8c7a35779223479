// Check, solve (internal/solve.h), and hand the answer to the referee.
#include "partitioner/partitioner.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "partitioner/byte_size.h"
#include "partitioner/internal/problem.h"
#include "partitioner/internal/recompute.h"
#include "partitioner/internal/reduce.h"
#include "partitioner/internal/solve.h"
#include "partitioner/metrics.h"

namespace autopart {
namespace {

constexpr double kMostStates = 50'000;  // 1 GB for a graph of 600 nodes

absl::Status CheckOptions(const PartitionOptions& options) {
  const auto bad = [](const auto&... pieces) {
    return absl::InvalidArgumentError(absl::StrCat(pieces...));
  };
  if (!options.device_types.empty() && options.num_devices != 0) {
    return bad("num_devices is ", options.num_devices, ", but device_types say how many there are");
  }
  double states = options.num_stages + 1;  // of the search: devices of each type, and stages
  for (size_t t = 0; t < options.device_types.size(); ++t) {
    const DeviceType& type = options.device_types[t];
    if (type.count < 1 || type.count > 4096) {
      return bad("device type ", t, ": count is ", type.count, ", want 1 to 4096");
    }
    if (!(type.speed > 0) || std::isinf(type.speed)) {
      return bad("device type ", t, ": speed is ", type.speed, ", want more than 0");
    }
    if (type.memory_bytes < 0) {
      return bad("device type ", t, ": memory_bytes is ", type.memory_bytes);
    }
    states *= type.count + 1;
  }
  if (options.device_types.size() > 1 && states > kMostStates) {
    return bad("device types: ", states, " combinations of stages and devices are more than the ",
               kMostStates, " that can be searched: ask for fewer types, devices or stages");
  }
  if (!options.link_speeds.empty() &&
      static_cast<int>(options.link_speeds.size()) != options.num_stages - 1) {
    return bad("link_speeds has ", options.link_speeds.size(),
               " entries, want one for each of the ", options.num_stages - 1,
               " boundaries between num_stages");
  }
  for (const double speed : options.link_speeds) {
    if (!(speed > 0) || std::isinf(speed)) return bad("link_speeds holds ", speed);
  }
  if (options.num_stages < (options.TotalDevices() > 0 ? 0 : 1)) {
    return bad("num_stages is ", options.num_stages, ", want at least 1");
  }
  // States of the search are (stages, devices).
  if (options.num_devices < 0 || options.num_devices > 4096) {
    return bad("num_devices is ", options.num_devices, ", want 0 to 4096");
  }
  if (options.TotalDevices() > 0 && options.num_stages > options.TotalDevices() &&
      !options.allow_empty_stages) {
    return bad(options.num_stages, " stages want a device each, there are ",
               options.TotalDevices());
  }
  if (options.micro_batches < 0) return bad("micro_batches is ", options.micro_batches);
  if (!(options.all_reduce_bytes_per_ms > 0)) {
    return bad("all_reduce_bytes_per_ms is ", options.all_reduce_bytes_per_ms);
  }
  if (options.TotalDevices() > 0 && options.micro_batches == 0 &&
      !std::isinf(options.all_reduce_bytes_per_ms)) {
    return bad("all_reduce_bytes_per_ms wants micro_batches, which share an all-reduce");
  }
  if (options.num_stages > 100'000) return bad("num_stages is ", options.num_stages);
  if (!(options.bytes_per_ms > 0)) return bad("bytes_per_ms is ", options.bytes_per_ms);
  if (!(options.latency_ms >= 0) || std::isinf(options.latency_ms)) {
    return bad("latency_ms is ", options.latency_ms);
  }
  if (options.memory_bytes < 0) return bad("memory_bytes is ", options.memory_bytes);
  if (!(options.state_factor >= 0) || std::isinf(options.state_factor)) {
    return bad("state_factor is ", options.state_factor);
  }
  if (options.in_flight.empty()) return bad("in_flight is empty");
  for (const int count : options.in_flight) {
    if (count < 0) return bad("in_flight holds ", count);
  }
  return Validate(options.effort);
}

std::string Bytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " bytes");
  return absl::StrCat(bytes, " bytes (", FormatByteSize(bytes), ")");
}

// Without value and bound.
Partition MakePartition(const CostGraph& graph, const PartitionOptions& options,
                        const internal::Placement& placement) {
  Partition partition;
  partition.num_stages = static_cast<int>(placement.is_cpu.size());
  partition.stage_of_node = placement.stage_of_element;
  if (options.TotalDevices() == 0 && options.recompute == Recompute::kNone) return partition;
  for (const internal::StageChoice& choice : placement.choices) {
    StageConfiguration& stage = partition.stages.emplace_back();
    stage.replicas = choice.replicas;
    stage.device_type = choice.type;
  }
  const internal::RecomputeLevels levels =
      internal::ChooseRecomputeLevels(graph, options.recompute);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const int stage = partition.stage_of_node[n];
    if (levels.level_of_node[n] <= placement.choices[stage].recompute_level) {
      partition.stages[stage].recomputed.push_back(static_cast<int>(n));
    }
  }
  if (options.recompute == Recompute::kAuto) internal::TrimRecompute(graph, options, partition);
  return partition;
}

// What is too large, one node or a stage of the split that needs least, and the least that works.
absl::Status DoesNotFit(const CostGraph& graph, const PartitionOptions& options,
                        const internal::Problem& problem, const internal::Solution& solution) {
  const Partition partition = MakePartition(graph, options, solution.nearest);
  const PartitionMetrics metrics = ComputeMetrics(graph, partition, options);
  const auto has = [&](int stage) {
    return options.MemoryOf(partition.stages.empty() ? 0 : partition.stages[stage].device_type);
  };
  const auto missing = [&](int stage) { return metrics.stages[stage].memory_bytes - has(stage); };
  int worst = 0;
  for (int s = 0; s < partition.num_stages; ++s) {
    if (missing(s) > missing(worst)) worst = s;
  }
  const int64_t works = metrics.stages[worst].memory_bytes;
  int64_t needs = works;
  std::string what = absl::StrCat("stage ", worst, " of ", partition.num_stages);
  const internal::LargestNode largest = internal::FindLargestNode(problem);
  int64_t limit = has(worst);
  int64_t most = options.MemoryOf(0);  // of any device
  for (const DeviceType& type : options.device_types) most = std::max(most, type.memory_bytes);
  const bool of_any = options.device_types.size() < 2 || largest.bytes > static_cast<double>(most);
  if (largest.bytes > static_cast<double>(most)) {
    limit = most;
    const std::vector<int>& elements = problem.nodes[largest.node].elements;
    const CostNode& node = graph.nodes[elements[0]];
    needs = static_cast<int64_t>(std::ceil(largest.bytes));
    what = absl::StrCat(
        "node ", elements[0], " (", node.name,
        node.module.empty() ? "" : absl::StrCat(" in ", node.module), ")",
        elements.size() > 1 ? absl::StrCat(" and ", elements.size() - 1, " that stay with it") : "",
        " alone");
  }
  std::string advice;
  if (options.device_types.size() < 2) {
    advice = solution.nearest_is_least
                 ? absl::StrCat("The least memory that works is ", Bytes(works), " a stage. ")
                 : absl::StrCat(
                       Bytes(works), " a stage would do, perhaps less",
                       solution.nothing_fits ? "; that nothing fits as it is, is proven. " : ". ");
  } else if (solution.nothing_fits) {
    advice = "That nothing fits is proven. ";
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(what, " needs ", Bytes(needs), " and ", of_any ? "a stage" : "that", " has ",
                   Bytes(limit), ": ", needs - limit, " bytes are missing. ", advice,
                   "Use more memory, more stages or smaller micro-batches"));
}

}  // namespace

absl::Status Validate(const Effort& effort) {
  const auto bad = [](const auto&... pieces) {
    return absl::InvalidArgumentError(absl::StrCat(pieces...));
  };
  if (effort.iterations.value_or(0) < 0) return bad("iterations is ", *effort.iterations);
  if (effort.threads < 0) return bad("threads is ", effort.threads);
  if (!(effort.time_limit_s >= 0)) return bad("time_limit_s is ", effort.time_limit_s);
  return absl::OkStatus();
}

absl::StatusOr<Partition> PartitionGraph(const CostGraph& graph, const PartitionOptions& options) {
  if (auto status = CheckOptions(options); !status.ok()) return status;
  if (auto status = Validate(graph); !status.ok()) return status;
  if (graph.nodes.empty()) return absl::InvalidArgumentError("the graph has no nodes");

  const internal::Problem problem = internal::GlueCycles(internal::MakeProblem(graph, options));
  if (!options.allow_empty_stages && static_cast<int>(problem.nodes.size()) < options.num_stages) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.num_stages, " stages, but the graph has only ", problem.nodes.size(),
                     " node(s) that can be apart (", graph.nodes.size(),
                     " before grouping): ask for at most ", problem.nodes.size(), " stage(s)"));
  }
  internal::Solution solution = internal::Solve(problem, options.effort);
  if (!solution.best) return DoesNotFit(graph, options, problem, solution);

  Partition partition = MakePartition(graph, options, *solution.best);
  partition.value = ComputeMetrics(graph, partition, options).max_load_ms;
  partition.bound = std::min(solution.bound_ms, partition.value);  // apart by rounding at most
  partition.bound_kind = solution.bound_kind;
  partition.time_limit_hit = solution.time_limit_hit;
  partition.optimal =
      partition.value <= partition.bound * (1 + 1e-9);  // by the referee's value, and trimmed
  if (auto status = VerifyPartition(graph, partition, options); !status.ok()) {
    return absl::InternalError(absl::StrCat("a bug in autopart: ", std::string(status.message())));
  }
  return partition;
}

}  // namespace autopart
