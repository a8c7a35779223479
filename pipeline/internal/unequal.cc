#include "pipeline/internal/unequal.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "pipeline/simulate.h"

namespace autopart::internal {

std::optional<StageAssignment> UnequalAssignment(const CostGraph& graph, const Cluster& cluster,
                                                 std::string_view dtype,
                                                 std::optional<int64_t> memory_bytes,
                                                 PartitionOptions split) {
  const std::vector<DeviceSpec> types = DeviceTypes(cluster);
  std::vector<std::vector<int>> free(types.size());  // ranks
  const std::vector<DevicePlace> places = PlacesOf(cluster);
  for (size_t rank = 0; rank < places.size(); ++rank) {
    free[places[rank].device_type].push_back(rank);
  }
  const bool mixed = types.size() > 1;
  if (mixed) {
    const std::vector<double> slowness = RankSlowness(cluster, dtype);
    for (size_t t = 0; t < types.size(); ++t) {
      DeviceType type;
      type.count = free[t].size();
      type.speed = slowness.empty() ? 1 : 1 / slowness[free[t][0]];
      type.memory_bytes = memory_bytes.value_or(types[t].memory_bytes);
      split.device_types.push_back(type);
    }
  } else {
    split.num_devices = places.size();
  }
  const absl::StatusOr<Partition> partition = PartitionGraph(graph, split);
  if (!partition.ok()) return std::nullopt;
  StageAssignment assignment{partition->stage_of_node, {}, {}};
  size_t used = 0;
  bool equal = !mixed;
  std::vector<size_t> next(types.size());
  for (const StageConfiguration& stage : partition->stages) {
    assignment.ranks.emplace_back();
    for (int r = 0; r < stage.replicas; ++r) {
      assignment.ranks.back().push_back(free[stage.device_type][next[stage.device_type]++]);
    }
    used += stage.replicas;
    equal &= stage.replicas == partition->stages[0].replicas;
  }
  if (used != places.size() || equal) return std::nullopt;
  return assignment;
}

}  // namespace autopart::internal
