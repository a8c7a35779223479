#include "tests/testing/brute_force.h"

#include <algorithm>
#include <limits>

#include "partitioner/metrics.h"

namespace autopart::testing {
namespace {

// Devices of each type; one type where they are alike.
std::vector<int> DeviceCounts(const PartitionOptions& options) {
  std::vector<int> counts;
  for (const DeviceType& type : options.device_types) counts.push_back(type.count);
  if (counts.empty()) counts = {options.num_devices};
  return counts;
}

void ForEachDevices(Partition& partition, size_t stage, std::vector<int>& left, int micro_batches,
                    const std::function<void(const Partition&)>& visit) {
  if (stage == partition.stages.size()) return visit(partition);
  for (size_t t = 0; t < left.size(); ++t) {
    for (int d = 1; d <= left[t]; ++d) {
      if (micro_batches > 0 && micro_batches % d != 0) continue;
      partition.stages[stage].device_type = static_cast<int>(t);
      partition.stages[stage].replicas = d;
      left[t] -= d;
      ForEachDevices(partition, stage + 1, left, micro_batches, visit);
      left[t] += d;
    }
  }
}

// Stages of the nodes from `node` on, none before that of what a node reads.
void ForEachCut(const CostGraph& graph, const std::vector<std::vector<int>>& makers, size_t node,
                int num_stages, std::vector<int>& stage_of_node,
                const std::function<void()>& visit) {
  if (node == graph.nodes.size()) return visit();
  int first = 0, last = num_stages - 1;
  for (const int maker : makers[node]) first = std::max(first, stage_of_node[maker]);
  for (size_t other = 0; other < node && graph.nodes[node].group != kNoGroup; ++other) {
    if (graph.nodes[other].group != graph.nodes[node].group) continue;
    if (stage_of_node[other] < first) return;
    first = last = stage_of_node[other];
  }
  for (int stage = first; stage <= last; ++stage) {
    stage_of_node[node] = stage;
    ForEachCut(graph, makers, node + 1, num_stages, stage_of_node, visit);
  }
}

// The partition with each stage's fastest set that fits, if there is one for each.
bool ChooseSets(const CostGraph& graph, const PartitionOptions& options, const RecomputeSets& sets,
                Partition& partition) {
  PartitionOptions unlimited = options;  // so that the referee looks at the rules alone
  unlimited.memory_bytes = std::numeric_limits<int64_t>::max();
  for (DeviceType& type : unlimited.device_types) type.memory_bytes = unlimited.memory_bytes;
  if (options.recompute == Recompute::kNone) {  // the same, faster
    const PartitionMetrics metrics = ComputeMetrics(graph, partition, options);
    for (int s = 0; s < partition.num_stages; ++s) {
      const int type = partition.stages[s].device_type;
      if (metrics.stages[s].memory_bytes > options.MemoryOf(type)) return false;
    }
    partition.value = metrics.max_load_ms;
    return true;
  }
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
      if (stage.load_ms >= best ||
          stage.memory_bytes > options.MemoryOf(trial.stages[s].device_type)) {
        continue;
      }
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
  const int devices = options.TotalDevices();
  const int most = options.num_stages == 0 ? devices
                   : devices > 0           ? std::min(options.num_stages, devices)
                                           : options.num_stages;
  const bool any = options.num_stages == 0 || options.allow_empty_stages;
  std::vector<std::vector<int>> makers(graph.nodes.size());
  for (const CostValue& value : graph.values) {
    if (value.producer == kModelInput) continue;
    for (const int consumer : value.consumers) makers[consumer].push_back(value.producer);
  }
  std::vector<int> stage_of_node(graph.nodes.size());
  ForEachCut(graph, makers, 0, most, stage_of_node, [&] {
    std::vector<bool> used(most);
    for (const int stage : stage_of_node) used[stage] = true;
    const auto num_used = std::count(used.begin(), used.end(), true);
    const bool gaps = std::find(used.begin(), used.end(), false) - used.begin() != num_used;
    if (gaps || (!any && num_used != most)) return;
    Partition partition;
    partition.num_stages = devices > 0 ? static_cast<int>(num_used) : most;
    partition.stage_of_node = stage_of_node;
    partition.stages.resize(partition.num_stages);
    if (devices == 0) return visit(partition);
    std::vector<int> left = DeviceCounts(options);
    ForEachDevices(partition, 0, left, options.micro_batches, visit);
  });
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
