#include "tests/testing/brute_force.h"

#include <algorithm>
#include <limits>

#include "partitioner/metrics.h"

namespace autopart::testing {
namespace {

bool RunsForward(const CostGraph& graph, const std::vector<int>& stage_of_node) {
  for (const CostValue& value : graph.values) {
    for (const int consumer : value.consumers) {
      if (value.producer != kModelInput &&
          stage_of_node[value.producer] > stage_of_node[consumer]) {
        return false;
      }
    }
  }
  return true;
}

void ForEachReplicas(Partition& partition, size_t stage, int devices_left, int micro_batches,
                     const std::function<void(const Partition&)>& visit) {
  if (stage == partition.stages.size()) return visit(partition);
  const int behind = static_cast<int>(partition.stages.size() - stage) - 1;
  for (int d = 1; d + behind <= devices_left; ++d) {
    if (micro_batches > 0 && micro_batches % d != 0) continue;
    partition.stages[stage].replicas = d;
    ForEachReplicas(partition, stage + 1, devices_left - d, micro_batches, visit);
  }
}

// The partition with each stage's fastest set that fits, if there is one for each.
bool ChooseSets(const CostGraph& graph, const PartitionOptions& options, const RecomputeSets& sets,
                Partition& partition) {
  PartitionOptions unlimited = options;  // so that the referee looks at the rules alone
  unlimited.memory_bytes = std::numeric_limits<int64_t>::max();
  std::vector<StageConfiguration> chosen = partition.stages;
  for (int s = 0; s < partition.num_stages; ++s) {
    std::vector<int> nodes;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (partition.stage_of_node[n] == s) nodes.push_back(static_cast<int>(n));
    }
    double best = std::numeric_limits<double>::infinity();
    for (std::vector<int>& set : sets(nodes)) {
      Partition trial = partition;
      trial.stages[s].recomputed = set;
      const PartitionMetrics metrics = ComputeMetrics(graph, trial, options);
      trial.value = metrics.max_load_ms;
      const StageMetrics& stage = metrics.stages[s];
      if (stage.load_ms >= best || stage.memory_bytes > options.memory_bytes) continue;
      if (!VerifyPartition(graph, trial, unlimited).ok()) continue;
      best = stage.load_ms;
      chosen[s].recomputed = std::move(set);
    }
    if (best == std::numeric_limits<double>::infinity()) return false;
  }
  partition.stages = std::move(chosen);
  partition.value = ComputeMetrics(graph, partition, options).max_load_ms;
  return true;
}

}  // namespace

std::vector<std::vector<int>> Subsets(const std::vector<int>& nodes) {
  std::vector<std::vector<int>> subsets(size_t{1} << nodes.size());
  for (size_t bits = 0; bits < subsets.size(); ++bits) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (bits >> i & 1) subsets[bits].push_back(nodes[i]);
    }
  }
  return subsets;
}

void ForEachPartition(const CostGraph& graph, const PartitionOptions& options,
                      const std::function<void(const Partition&)>& visit) {
  const int devices = options.num_devices > 0 ? options.num_devices : options.num_stages;
  const int most = options.num_stages > 0 ? std::min(options.num_stages, devices) : devices;
  const bool any = options.num_stages == 0 || options.allow_empty_stages;
  std::vector<int> stage_of_node(graph.nodes.size());
  while (true) {
    const int used = *std::max_element(stage_of_node.begin(), stage_of_node.end()) + 1;
    bool gaps = false;
    for (int s = 0; s < used; ++s) {
      gaps = gaps || std::count(stage_of_node.begin(), stage_of_node.end(), s) == 0;
    }
    if (!gaps && (any || used == most) && RunsForward(graph, stage_of_node)) {
      Partition partition;
      partition.num_stages = options.num_devices > 0 ? used : most;
      partition.stage_of_node = stage_of_node;
      partition.stages.resize(partition.num_stages);
      if (options.num_devices > 0) {
        ForEachReplicas(partition, 0, devices, options.micro_batches, visit);
      } else {
        visit(partition);
      }
    }
    size_t digit = 0;
    while (digit < stage_of_node.size() && ++stage_of_node[digit] == most) {
      stage_of_node[digit++] = 0;
    }
    if (digit == stage_of_node.size()) return;
  }
}

std::optional<Partition> BestPartition(const CostGraph& graph, const PartitionOptions& options,
                                       const RecomputeSets& sets) {
  std::optional<Partition> best;
  ForEachPartition(graph, options, [&](const Partition& candidate) {
    Partition partition = candidate;
    if (!ChooseSets(graph, options, sets, partition)) return;
    if (!best || partition.value < best->value) best = partition;
  });
  return best;
}

}  // namespace autopart::testing
