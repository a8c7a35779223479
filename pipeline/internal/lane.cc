#include "pipeline/internal/lane.h"

#include <algorithm>

#include "pipeline/links.h"

namespace autopart::internal {

bool HasEqualReplicas(const Plan& plan) {
  const size_t replicas = plan.stages[0].ranks.size();
  return replicas > 1 &&
         std::all_of(plan.stages.begin(), plan.stages.end(),
                     [&](const PlanStage& s) { return s.ranks.size() == replicas; });
}

Lane LaneOf(const Plan& plan) {
  const int replicas = plan.stages[0].ranks.size();
  Lane lane;
  lane.input = InputOf(plan);
  SimulationInput& input = lane.input;
  const std::vector<DevicePlace> places = PlacesOf(plan.cluster);
  std::map<int, int> on_host;  // ranks of the lane
  input.placement = {};
  input.placement.micro_batches = (plan.micro_batches + replicas - 1) / replicas;
  for (const PlanStage& stage : plan.stages) {
    const int rank = stage.ranks[0];
    const auto [it, fresh] = lane.index_of.emplace(rank, lane.index_of.size());
    if (fresh) {
      input.places.push_back(places[rank]);
      ++on_host[places[rank].host];
    }
    input.placement.ranks.push_back({it->second});
  }
  input.placement.num_ranks = lane.index_of.size();
  if (!input.rank_slowness.empty()) {
    std::vector<double> slowness(lane.index_of.size());
    for (const auto& [rank, index] : lane.index_of) slowness[index] = input.rank_slowness[rank];
    input.rank_slowness = slowness;
  }
  for (const Reduction& reduction : plan.reductions) {
    std::vector<int> ranks;
    for (const int s : reduction.stages) {
      ranks.insert(ranks.end(), plan.stages[s].ranks.begin(), plan.stages[s].ranks.end());
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    // Those of all stages run at once.
    input.reduction_ms.push_back(AllReduceMs(plan.cluster, places, ranks, reduction.bytes,
                                             std::max<int>(1, plan.stages.size())));
  }
  // Other pipelines use the shared links at the same time.
  for (const DevicePlace& place : input.places) {
    HostGroup& hosts = input.cluster.hosts[place.host_group];
    const HostGroup& whole = plan.cluster.hosts[place.host_group];
    const double lanes =
        std::max(1.0, static_cast<double>(whole.devices_per_host()) / on_host[place.host]);
    if (whole.network.shared) hosts.network.bytes_per_ms = whole.network.bytes_per_ms / lanes;
    if (whole.link.shared) hosts.link.bytes_per_ms = whole.link.bytes_per_ms / lanes;
  }
  return lane;
}

}  // namespace autopart::internal
