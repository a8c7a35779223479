#include "pipeline/internal/splits.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/pinned_slices.h"
#include "pipeline/links.h"

namespace autopart::internal {
namespace {

// Of the partitioner: what so few do not get below the cap and a tenth, more will not get below it.
constexpr int kProbeIterations = 2;
constexpr int64_t kProbeSlack = 10;

}  // namespace

Splits::Splits(const CostGraph& graph, const Cluster& cluster, const PlannerOptions& options,
               std::vector<int> module_pins, std::function<void(const std::string&)> say)
    : graph_(graph),
      cluster_(cluster),
      options_(options),
      module_pins_(std::move(module_pins)),
      say_(std::move(say)) {}

PartitionOptions Splits::Options(int stages) const {
  PartitionOptions split;
  split.num_stages = stages;
  split.objective = Objective::kOverlap;
  const std::vector<DevicePlace> places = PlacesOf(cluster_);
  // Neighbours are mostly on one host.
  const LinkSpec link =
      places.size() > 1 ? LinkBetween(cluster_, places[0], places[1]) : LinkSpec();
  if (link.bytes_per_ms > 0) split.bytes_per_ms = link.bytes_per_ms;
  split.latency_ms = link.latency_ms;
  split.effort.seed = options_.seed;
  split.effort.iterations = options_.iterations;
  split.effort.prove = false;  // one of dozens of searches; only the chosen plan counts
  split.effort.stop = options_.stop;
  return split;
}

absl::StatusOr<std::vector<int>> Splits::Free(int stages) {
  if (!options_.pinned_stage_of_node.empty()) {
    return CompletePins(graph_, options_.pinned_stage_of_node, stages);
  }
  if (!module_pins_.empty()) return PinnedSlices(graph_, module_pins_, stages);
  if (stages == 1) return std::vector<int>(graph_.nodes.size(), 0);
  const auto it = free_.find(stages);
  if (it != free_.end()) return it->second;
  say_(absl::StrCat("splitting into ", Count(stages, "stage")));
  const absl::StatusOr<Partition> partition = PartitionGraph(graph_, Options(stages));
  return free_
      .emplace(stages, partition.ok() ? absl::StatusOr<std::vector<int>>(partition->stage_of_node)
                                      : partition.status())
      .first->second;
}

const absl::StatusOr<StageAssignment>& Splits::Capped(int stages, const MemoryCap& cap) {
  const auto key = std::pair(stages, cap.key());
  if (const auto it = capped_.find(key); it != capped_.end()) return it->second;
  say_(absl::StrCat("splitting into ", Count(stages, "stage"), " of at most ",
                    HumanBytes(cap.bytes)));
  PartitionOptions split = Options(stages);
  split.memory_bytes = cap.bytes;
  split.state_factor = cap.state_factor;
  split.in_flight = cap.in_flight;
  split.recompute = cap.recompute;
  const absl::StatusOr<Partition> partition = SplitOrGiveUp(std::move(split));
  if (!partition.ok()) return capped_.emplace(key, partition.status()).first->second;
  StageAssignment assignment{partition->stage_of_node, {}, {}};
  for (const StageConfiguration& stage : partition->stages) {
    assignment.recomputed.insert(assignment.recomputed.end(), stage.recomputed.begin(),
                                 stage.recomputed.end());
  }
  std::sort(assignment.recomputed.begin(), assignment.recomputed.end());
  return capped_.emplace(key, std::move(assignment)).first->second;
}

absl::StatusOr<Partition> Splits::SplitOrGiveUp(PartitionOptions split) {
  PartitionOptions probe = split;
  probe.memory_bytes += probe.memory_bytes / kProbeSlack;
  probe.effort.iterations = std::min(kProbeIterations, options_.iterations);
  iterations_ += *probe.effort.iterations;
  absl::StatusOr<Partition> partition = PartitionGraph(graph_, probe);
  if (!partition.ok()) return partition;
  iterations_ += options_.iterations;
  return PartitionGraph(graph_, split);
}

}  // namespace autopart::internal
