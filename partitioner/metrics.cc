// Written from the definitions in partitioner.h alone, stage by stage, in the plainest way: what
// makes partitions shares none of this.
#include "partitioner/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"

namespace autopart {
namespace {

constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max();

int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? kMaxBytes : sum;
}

int64_t SaturatingMultiply(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kMaxBytes : product;
}

// Inputs of the model live on stage 0. Stages run their own copy of a copyable node.
int HomeStage(const CostGraph& graph, const std::vector<int>& stage_of_node, int value) {
  const int producer = graph.values[value].producer;
  return producer == kModelInput ? 0 : stage_of_node[producer];
}

bool NeverSent(const CostGraph& graph, const CostValue& value) {
  return value.producer != kModelInput && graph.nodes[value.producer].copyable;
}

// The nodes of one stage, and those of them that run forward again.
struct StageNodes {
  std::vector<int> nodes;
  std::set<int> recomputed;
};

// What a stage holds of what its backward needs.
struct SavedBytes {
  int64_t flight = 0;  // for each micro-batch in flight
  int64_t once = 0;    // of the one micro-batch whose values are being made again
};

// `reads`: for each node the values that it reads; only looked at for recomputed nodes.
SavedBytes ComputeSavedBytes(const CostGraph& graph, const std::vector<int>& stage_of_node,
                             int stage, const StageNodes& here,
                             const std::vector<std::vector<int>>& reads) {
  const auto root_of = [&](int value) {
    while (HomeStage(graph, stage_of_node, value) == stage &&
           graph.values[value].view_of != kNoView) {
      value = graph.values[value].view_of;
    }
    return value;
  };
  std::set<int> saved, needed;  // memory, by the value that owns it
  SavedBytes bytes;
  for (const int n : here.nodes) {
    const bool again = here.recomputed.contains(n);
    (again ? bytes.once : bytes.flight) += graph.nodes[n].saved_bytes;
    for (const int value : graph.nodes[n].saved_values) saved.insert(root_of(value));
    if (!again) continue;
    for (const int value : reads[n]) {
      if (!NeverSent(graph, graph.values[value])) needed.insert(root_of(value));
    }
  }
  needed.insert(saved.begin(), saved.end());
  for (const int root : needed) {
    const CostValue& value = graph.values[root];
    const bool own = HomeStage(graph, stage_of_node, root) == stage;
    if (own && here.recomputed.contains(value.producer)) {
      if (saved.contains(root)) bytes.once += value.storage_bytes;
    } else {
      bytes.flight += own ? value.storage_bytes : value.bytes;
    }
  }
  return bytes;
}

// By the replicas of the stages: micro-batches in flight on one replica of each.
std::vector<int> InFlight(const std::vector<StageMetrics>& stages,
                          const PartitionOptions& options) {
  std::vector<int> in_flight(stages.size());
  int devices = 0;
  for (size_t s = stages.size(); s-- > 0;) {
    const int d = stages[s].replicas;
    devices += d;
    const size_t y = (devices + d - 1) / d;
    in_flight[s] = options.in_flight[std::min(y, options.in_flight.size()) - 1];
    if (options.micro_batches > 0 && options.TotalDevices() > 0) {
      in_flight[s] = std::min(in_flight[s], (options.micro_batches + d - 1) / d);
    }
  }
  return in_flight;
}

int64_t TrainedBytes(const CostGraph& graph, const std::set<int>& parameters, bool trains) {
  int64_t bytes = 0;
  for (const int p : parameters) {
    if (graph.parameters[p].trains == trains) bytes += graph.parameters[p].bytes;
  }
  return bytes;
}

std::set<int> ParametersOf(const CostGraph& graph, const std::vector<int>& nodes) {
  std::set<int> parameters;
  for (const int n : nodes) {
    parameters.insert(graph.nodes[n].parameters.begin(), graph.nodes[n].parameters.end());
  }
  return parameters;
}

int64_t MemoryBytes(const CostGraph& graph, const StageNodes& here, const SavedBytes& saved,
                    int in_flight, const PartitionOptions& options) {
  int64_t temporary = 0;
  for (const int n : here.nodes) temporary = std::max(temporary, graph.nodes[n].temporary_bytes);
  const std::set<int> parameters = ParametersOf(graph, here.nodes);
  const int64_t trained = TrainedBytes(graph, parameters, true);
  const double state = std::ceil(options.state_factor * static_cast<double>(trained));
  const int64_t state_bytes =
      state >= static_cast<double>(kMaxBytes) ? kMaxBytes : static_cast<int64_t>(state);
  const int64_t flight = SaturatingMultiply(in_flight, saved.flight);
  return SaturatingAdd(SaturatingAdd(state_bytes, TrainedBytes(graph, parameters, false)),
                       SaturatingAdd(flight, SaturatingAdd(saved.once, temporary)));
}

std::string NodeLabel(const CostGraph& graph, int node) {
  const CostNode& n = graph.nodes[node];
  return absl::StrCat("node ", node, " (", n.name, n.module.empty() ? "" : " in ", n.module, ")");
}

}  // namespace

PartitionMetrics ComputeMetrics(const CostGraph& graph, const std::vector<int>& stage_of_node,
                                const PartitionOptions& options) {
  Partition partition;
  partition.num_stages = options.num_stages;
  partition.stage_of_node = stage_of_node;
  return ComputeMetrics(graph, partition, options);
}

PartitionMetrics ComputeMetrics(const CostGraph& graph, const Partition& partition,
                                const PartitionOptions& options) {
  const std::vector<int>& stage_of_node = partition.stage_of_node;
  const int num_stages = partition.num_stages;
  PartitionMetrics metrics;
  metrics.stages.resize(num_stages);
  std::vector<StageNodes> here(num_stages);
  bool recomputes = false;
  for (size_t s = 0; s < partition.stages.size(); ++s) {
    const std::vector<int>& recomputed = partition.stages[s].recomputed;
    metrics.stages[s].replicas = partition.stages[s].replicas;
    here[s].recomputed = {recomputed.begin(), recomputed.end()};
    recomputes = recomputes || !recomputed.empty();
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const CostNode& node = graph.nodes[n];
    const int s = stage_of_node[n];
    here[s].nodes.push_back(static_cast<int>(n));
    metrics.stages[s].compute_ms +=
        node.forward_ms + node.backward_input_ms + node.backward_weight_ms;
    if (here[s].recomputed.contains(static_cast<int>(n))) {
      metrics.stages[s].recompute_ms += node.forward_ms;
    }
  }
  for (int s = 0; s < num_stages && !options.device_types.empty(); ++s) {
    const int type = partition.stages.empty() ? 0 : partition.stages[s].device_type;
    metrics.stages[s].compute_ms /= options.device_types[type].speed;
    metrics.stages[s].recompute_ms /= options.device_types[type].speed;
  }
  std::vector<std::vector<int>> reads(graph.nodes.size());
  for (size_t v = 0; recomputes && v < graph.values.size(); ++v) {
    for (const int reader : graph.values[v].consumers) reads[reader].push_back(v);
  }

  std::vector<double> send_ms(num_stages), receive_ms(num_stages);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const CostValue& value = graph.values[v];
    if (NeverSent(graph, value)) continue;
    const int home = HomeStage(graph, stage_of_node, static_cast<int>(v));
    std::set<int> readers;
    for (const int consumer : value.consumers) readers.insert(stage_of_node[consumer]);
    readers.erase(home);
    if (readers.empty()) continue;

    const double there = options.latency_ms + value.bytes / options.bytes_per_ms;
    const double back = value.gradient_bytes > 0
                            ? options.latency_ms + value.gradient_bytes / options.bytes_per_ms
                            : 0;
    // Each end pays by its own link.
    const auto slowness = [&](int boundary) {
      return options.link_speeds.empty() ? 1 : 1 / options.link_speeds[boundary];
    };
    send_ms[home] += there * slowness(home);
    receive_ms[home] += back * slowness(home);
    for (const int reader : readers) {
      receive_ms[reader] += there * slowness(reader - 1);
      send_ms[reader] += back * slowness(reader - 1);
      metrics.stages[home].send_bytes += value.bytes;
      metrics.stages[home].receive_bytes += value.gradient_bytes;
      metrics.stages[reader].receive_bytes += value.bytes;
      metrics.stages[reader].send_bytes += value.gradient_bytes;
      metrics.cut_bytes += value.bytes + value.gradient_bytes;
    }
  }

  const std::vector<int> in_flight = InFlight(metrics.stages, options);
  for (int s = 0; s < num_stages; ++s) {
    StageMetrics& stage = metrics.stages[s];
    const double compute = stage.compute_ms + stage.recompute_ms;
    const int d = stage.replicas;
    if (d > 1) {
      const int64_t bytes = TrainedBytes(graph, ParametersOf(graph, here[s].nodes), true);
      stage.all_reduce_ms = 2.0 * (d - 1) / d * static_cast<double>(bytes) /
                            options.all_reduce_bytes_per_ms / std::max(1, options.micro_batches);
    }
    stage.load_ms =
        (options.objective == Objective::kSum ? compute + send_ms[s] + receive_ms[s]
                                              : std::max({compute, send_ms[s], receive_ms[s]})) /
            d +
        stage.all_reduce_ms;
    stage.in_flight = in_flight[s];
    const SavedBytes saved = ComputeSavedBytes(graph, stage_of_node, s, here[s], reads);
    stage.memory_bytes = MemoryBytes(graph, here[s], saved, stage.in_flight, options);
    metrics.max_load_ms = std::max(metrics.max_load_ms, stage.load_ms);
  }
  return metrics;
}

double StepMs(const PartitionMetrics& metrics, int micro_batches) {
  double first = 0;
  for (const StageMetrics& stage : metrics.stages) {
    first += (stage.load_ms - stage.all_reduce_ms) * stage.replicas + stage.all_reduce_ms;
  }
  return first + (micro_batches - 1) * metrics.max_load_ms;
}

namespace {

// Replicas and recomputed nodes: within what the options allow, and whole classes.
absl::Status VerifyConfigurations(const CostGraph& graph, const Partition& partition,
                                  const PartitionOptions& options) {
  const auto bad = [](const auto&... pieces) {
    return absl::InvalidArgumentError(absl::StrCat("partition: ", pieces...));
  };
  if (partition.stages.empty()) return absl::OkStatus();
  if (static_cast<int>(partition.stages.size()) != partition.num_stages) {
    return bad(partition.stages.size(), " stage configurations for ", partition.num_stages,
               " stages");
  }
  std::vector<int> devices(std::max<size_t>(1, options.device_types.size()));
  std::vector<bool> again(graph.nodes.size());
  for (int s = 0; s < partition.num_stages; ++s) {
    const StageConfiguration& stage = partition.stages[s];
    if (stage.replicas < 1) return bad("stage ", s, " has ", stage.replicas, " replicas");
    if (stage.device_type < 0 || static_cast<size_t>(stage.device_type) >= devices.size()) {
      return bad("stage ", s, " has devices of type ", stage.device_type, ", there are ",
                 devices.size());
    }
    if (stage.replicas > 1 && options.TotalDevices() == 0) {
      return bad("stage ", s, " has ", stage.replicas, " replicas, but every stage has one device");
    }
    if (options.micro_batches > 0 && options.TotalDevices() > 0 &&
        options.micro_batches % stage.replicas != 0) {
      return bad("stage ", s, " has ", stage.replicas, " replicas, which do not divide ",
                 options.micro_batches, " micro-batches");
    }
    devices[stage.device_type] += stage.replicas;
    for (const int n : stage.recomputed) {
      if (n < 0 || static_cast<size_t>(n) >= graph.nodes.size() ||
          partition.stage_of_node[n] != s || again[n]) {
        return bad("stage ", s, " recomputes node ", n, ", which is not on it or comes twice");
      }
      again[n] = true;
    }
  }
  for (size_t t = 0; t < devices.size() && options.TotalDevices() > 0; ++t) {
    const int there =
        options.device_types.empty() ? options.num_devices : options.device_types[t].count;
    if (devices[t] > there) {
      return bad("the stages have ", devices[t], " replicas on devices of type ", t, ", there are ",
                 there);
    }
  }
  const auto differ = [&](int a, int b) {
    return partition.stage_of_node[a] == partition.stage_of_node[b] && again[a] != again[b];
  };
  std::vector<std::pair<int, int>> groups;  // group, node
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].group != kNoGroup) groups.emplace_back(graph.nodes[n].group, n);
  }
  std::sort(groups.begin(), groups.end());
  for (size_t i = 1; i < groups.size(); ++i) {
    if (groups[i].first == groups[i - 1].first && differ(groups[i].second, groups[i - 1].second)) {
      return bad("group ", groups[i].first,
                 " is recomputed in part: ", NodeLabel(graph, groups[i - 1].second), " and ",
                 NodeLabel(graph, groups[i].second), " differ");
    }
  }
  for (const CostValue& value : graph.values) {
    if (value.view_of == kNoView || value.producer == kModelInput) continue;
    const int owner = graph.values[value.view_of].producer;
    if (owner != kModelInput && differ(value.producer, owner)) {
      return bad(NodeLabel(graph, value.producer), " makes a view of what ",
                 NodeLabel(graph, owner), " makes, but only one of them is recomputed");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyPartition(const CostGraph& graph, const Partition& partition,
                             const PartitionOptions& options) {
  const auto bad = [](const auto&... pieces) {
    return absl::InvalidArgumentError(absl::StrCat("partition: ", pieces...));
  };
  const bool any_number = options.TotalDevices() > 0 && options.num_stages == 0;
  const bool fewer_will_do = options.TotalDevices() > 0 && options.allow_empty_stages;
  if (partition.num_stages < 1 ||
      (!any_number && (fewer_will_do ? partition.num_stages > options.num_stages
                                     : partition.num_stages != options.num_stages))) {
    return bad(partition.num_stages, " stages, want ", fewer_will_do ? "at most " : "",
               options.num_stages);
  }
  if (partition.stage_of_node.size() != graph.nodes.size()) {
    return bad("places ", partition.stage_of_node.size(), " nodes of ", graph.nodes.size());
  }
  const std::vector<int>& stage_of_node = partition.stage_of_node;
  std::vector<int> population(partition.num_stages);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const int stage = stage_of_node[n];
    if (stage < 0 || stage >= partition.num_stages) {
      return bad(NodeLabel(graph, n), " is on stage ", stage, " of ", partition.num_stages);
    }
    ++population[stage];
  }
  for (const CostValue& value : graph.values) {
    if (value.producer == kModelInput) continue;
    for (const int consumer : value.consumers) {
      if (stage_of_node[value.producer] > stage_of_node[consumer]) {
        return bad("edge from ", NodeLabel(graph, value.producer), " on stage ",
                   stage_of_node[value.producer], " goes back to ", NodeLabel(graph, consumer),
                   " on stage ", stage_of_node[consumer]);
      }
    }
  }
  std::vector<std::pair<int, int>> groups;  // group, node
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].group != kNoGroup) groups.emplace_back(graph.nodes[n].group, n);
  }
  std::sort(groups.begin(), groups.end());
  for (size_t i = 1; i < groups.size(); ++i) {
    const auto [group, node] = groups[i];
    const auto [previous_group, previous] = groups[i - 1];
    if (group == previous_group && stage_of_node[node] != stage_of_node[previous]) {
      return bad("group ", group, " is split: ", NodeLabel(graph, previous), " is on stage ",
                 stage_of_node[previous], ", ", NodeLabel(graph, node), " on stage ",
                 stage_of_node[node]);
    }
  }
  if (!options.allow_empty_stages || options.TotalDevices() > 0) {
    for (int s = 0; s < partition.num_stages; ++s) {
      if (population[s] == 0) return bad("stage ", s, " is empty");
    }
  }

  if (auto status = VerifyConfigurations(graph, partition, options); !status.ok()) return status;
  const PartitionMetrics metrics = ComputeMetrics(graph, partition, options);
  for (int s = 0; s < partition.num_stages; ++s) {
    const int64_t bytes = metrics.stages[s].memory_bytes;
    const int type = partition.stages.empty() ? 0 : partition.stages[s].device_type;
    if (bytes > options.MemoryOf(type)) {
      return absl::ResourceExhaustedError(absl::StrCat("partition: stage ", s, " needs ", bytes,
                                                       " bytes, ", bytes - options.MemoryOf(type),
                                                       " more than it has"));
    }
  }
  const double slack = 1e-9 * metrics.max_load_ms;
  if (std::abs(partition.value - metrics.max_load_ms) > slack) {
    return bad("value says ", partition.value, " ms, the heaviest stage takes ",
               metrics.max_load_ms);
  }
  if (partition.bound > metrics.max_load_ms + slack) {
    return bad("bound ", partition.bound, " ms is above the value ", metrics.max_load_ms);
  }
  return absl::OkStatus();
}

}  // namespace autopart
