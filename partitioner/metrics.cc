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

int64_t SavedBytes(const CostGraph& graph, const std::vector<int>& stage_of_node, int stage) {
  std::set<int> roots;
  int64_t bytes = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (stage_of_node[n] != stage) continue;
    bytes += graph.nodes[n].saved_bytes;
    for (int root : graph.nodes[n].saved_values) {
      while (HomeStage(graph, stage_of_node, root) == stage &&
             graph.values[root].view_of != kNoView) {
        root = graph.values[root].view_of;
      }
      roots.insert(root);
    }
  }
  for (const int root : roots) {
    const bool own = HomeStage(graph, stage_of_node, root) == stage;
    bytes += own ? graph.values[root].storage_bytes : graph.values[root].bytes;
  }
  return bytes;
}

int64_t MemoryBytes(const CostGraph& graph, const std::vector<int>& stage_of_node, int stage,
                    const PartitionOptions& options) {
  std::set<int> parameters;
  int64_t temporary = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (stage_of_node[n] != stage) continue;
    parameters.insert(graph.nodes[n].parameters.begin(), graph.nodes[n].parameters.end());
    temporary = std::max(temporary, graph.nodes[n].temporary_bytes);
  }
  int64_t trained = 0, other = 0;
  for (const int p : parameters) {
    (graph.parameters[p].trains ? trained : other) += graph.parameters[p].bytes;
  }
  const double state = std::ceil(options.state_factor * static_cast<double>(trained));
  const int64_t state_bytes =
      state >= static_cast<double>(kMaxBytes) ? kMaxBytes : static_cast<int64_t>(state);

  const size_t from_last = options.num_stages - 1 - stage;
  const int in_flight = options.in_flight[std::min(from_last, options.in_flight.size() - 1)];
  const int64_t saved = SaturatingMultiply(in_flight, SavedBytes(graph, stage_of_node, stage));
  return SaturatingAdd(SaturatingAdd(state_bytes, other), SaturatingAdd(saved, temporary));
}

std::string NodeLabel(const CostGraph& graph, int node) {
  const CostNode& n = graph.nodes[node];
  return absl::StrCat("node ", node, " (", n.name, n.module.empty() ? "" : " in ", n.module, ")");
}

}  // namespace

PartitionMetrics ComputeMetrics(const CostGraph& graph, const std::vector<int>& stage_of_node,
                                const PartitionOptions& options) {
  PartitionMetrics metrics;
  metrics.stages.resize(options.num_stages);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const CostNode& node = graph.nodes[n];
    metrics.stages[stage_of_node[n]].compute_ms +=
        node.forward_ms + node.backward_input_ms + node.backward_weight_ms;
  }

  std::vector<double> send_ms(options.num_stages), receive_ms(options.num_stages);
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
    send_ms[home] += there;
    receive_ms[home] += back;
    for (const int reader : readers) {
      receive_ms[reader] += there;
      send_ms[reader] += back;
      metrics.stages[home].send_bytes += value.bytes;
      metrics.stages[home].receive_bytes += value.gradient_bytes;
      metrics.stages[reader].receive_bytes += value.bytes;
      metrics.stages[reader].send_bytes += value.gradient_bytes;
      metrics.cut_bytes += value.bytes + value.gradient_bytes;
    }
  }

  for (int s = 0; s < options.num_stages; ++s) {
    StageMetrics& stage = metrics.stages[s];
    stage.load_ms = options.objective == Objective::kSum
                        ? stage.compute_ms + send_ms[s] + receive_ms[s]
                        : std::max({stage.compute_ms, send_ms[s], receive_ms[s]});
    stage.memory_bytes = MemoryBytes(graph, stage_of_node, s, options);
    metrics.max_load_ms = std::max(metrics.max_load_ms, stage.load_ms);
  }
  return metrics;
}

absl::Status VerifyPartition(const CostGraph& graph, const Partition& partition,
                             const PartitionOptions& options) {
  const auto bad = [](const auto&... pieces) {
    return absl::InvalidArgumentError(absl::StrCat("partition: ", pieces...));
  };
  if (partition.num_stages != options.num_stages) {
    return bad(partition.num_stages, " stages, want ", options.num_stages);
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
  if (!options.allow_empty_stages) {
    for (int s = 0; s < partition.num_stages; ++s) {
      if (population[s] == 0) return bad("stage ", s, " is empty");
    }
  }

  const PartitionMetrics metrics = ComputeMetrics(graph, stage_of_node, options);
  for (int s = 0; s < partition.num_stages; ++s) {
    const int64_t bytes = metrics.stages[s].memory_bytes;
    if (bytes > options.memory_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("partition: stage ", s, " needs ", bytes,
                                                       " bytes, ", bytes - options.memory_bytes,
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
