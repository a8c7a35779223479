#include "pipeline/internal/judge.h"

#include <algorithm>
#include <limits>
#include <map>

#include "pipeline/links.h"
#include "pipeline/simulate.h"

namespace autopart::internal {
namespace {

// Replica 0 of every stage, with its ranks numbered from 0.
struct Lane {
  SimulationInput input;
  std::map<int, int> index_of;  // rank -> in the lane
};

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

}  // namespace

absl::StatusOr<Judgement> Judge(Plan plan, Precision precision) {
  if (!HasEqualReplicas(plan)) precision = Precision::kExact;
  std::map<int, int> index_of;
  absl::StatusOr<Simulation> simulation;
  if (precision == Precision::kOnePipeline) {
    Lane lane = LaneOf(plan);
    const absl::StatusOr<Schedule> compute = GenerateSchedule(plan.schedule, lane.input.placement);
    if (!compute.ok()) return compute.status();
    const absl::StatusOr<Schedule> schedule = Lower(*compute, lane.input.placement, plan.edges);
    if (!schedule.ok()) return schedule.status();
    simulation = Simulate(*schedule, lane.input);
    index_of = std::move(lane.index_of);
  } else {
    simulation = SimulatePlan(plan);
  }
  if (!simulation.ok()) return simulation.status();

  Judgement judgement;
  judgement.precision = precision;
  judgement.over_bytes = std::numeric_limits<int64_t>::min();
  plan.predicted_step_ms = simulation->makespan_ms;
  const std::vector<DeviceSpec> types = DeviceTypes(plan.cluster);
  const std::vector<DevicePlace> places = PlacesOf(plan.cluster);
  for (PlanStage& stage : plan.stages) {
    stage.peak_memory_bytes = 0;
    stage.memory = {};
    double idle = 0;
    const size_t shown = precision == Precision::kExact ? stage.ranks.size() : 1;
    for (size_t r = 0; r < shown; ++r) {
      const int rank = stage.ranks[r];
      const RankUse& use = simulation->ranks[index_of.empty() ? rank : index_of.at(rank)];
      idle += use.idle_ms;
      if (use.peak_bytes >= stage.peak_memory_bytes) {
        stage.peak_memory_bytes = use.peak_bytes;
        stage.memory = use.peak;
      }
      const int64_t over = use.peak_bytes - plan.MemoryOf(types[places[rank].device_type]);
      if (over > judgement.over_bytes) {
        judgement.over_bytes = over;
        judgement.worst_stage = stage.index;
      }
    }
    stage.idle_fraction =
        simulation->makespan_ms > 0 ? std::max(0.0, idle / shown / simulation->makespan_ms) : 0;
  }
  judgement.plan = std::move(plan);
  return judgement;
}

Judgement JudgeMemory(Plan plan, const std::vector<int>& in_flight) {
  Judgement judgement;
  judgement.precision = Precision::kLeastMemory;
  judgement.over_bytes = std::numeric_limits<int64_t>::min();
  const std::vector<DeviceSpec> types = DeviceTypes(plan.cluster);
  const std::vector<DevicePlace> places = PlacesOf(plan.cluster);
  struct Held {
    int64_t fixed = 0, gradients = 0, saved = 0;
    int64_t total() const { return fixed + std::max(gradients, saved); }
  };
  std::map<int, Held> of_rank;
  const size_t num_stages = plan.stages.size();
  for (const PlanStage& stage : plan.stages) {
    const size_t from_last = num_stages - 1 - stage.index;
    int64_t saved = 0;
    for (const StageStorage& storage : stage.held.storages) {
      if (storage.saved) saved += storage.bytes;
    }
    for (const int rank : stage.ranks) {
      Held& held = of_rank[rank];
      held.fixed += stage.held.weight_bytes + stage.held.optimizer_bytes;
      held.gradients += stage.held.gradient_bytes;
      held.saved += saved * in_flight[std::min(from_last, in_flight.size() - 1)];
    }
  }
  for (PlanStage& stage : plan.stages) {
    stage.peak_memory_bytes = 0;
    for (const int rank : stage.ranks) {
      const int64_t bytes = of_rank[rank].total();
      stage.peak_memory_bytes = std::max(stage.peak_memory_bytes, bytes);
      const int64_t over = bytes - plan.MemoryOf(types[places[rank].device_type]);
      if (over > judgement.over_bytes) {
        judgement.over_bytes = over;
        judgement.worst_stage = stage.index;
      }
    }
  }
  judgement.plan = std::move(plan);
  return judgement;
}

}  // namespace autopart::internal
