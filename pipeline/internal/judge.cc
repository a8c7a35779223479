#include "pipeline/internal/judge.h"

#include <algorithm>
#include <limits>

#include "pipeline/internal/lane.h"
#include "pipeline/internal/order_bound.h"
#include "pipeline/simulate.h"

namespace autopart::internal {
namespace {

// The most by which a rank has too little memory, and where.
class Shortage {
 public:
  explicit Shortage(const Plan& plan)
      : plan_(plan), types_(DeviceTypes(plan.cluster)), places_(PlacesOf(plan.cluster)) {}

  void Note(int stage, int rank, int64_t bytes) {
    const int64_t over = bytes - plan_.MemoryOf(types_[places_[rank].device_type]);
    if (over <= over_bytes) return;
    over_bytes = over;
    worst_stage = stage;
  }

  int64_t over_bytes = std::numeric_limits<int64_t>::min();
  int worst_stage = 0;

 private:
  const Plan& plan_;
  const std::vector<DeviceSpec> types_;
  const std::vector<DevicePlace> places_;
};

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
  plan.predicted_step_ms = simulation->makespan_ms;
  Shortage shortage(plan);
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
      shortage.Note(stage.index, rank, use.peak_bytes);
    }
    stage.idle_fraction =
        simulation->makespan_ms > 0 ? std::max(0.0, idle / shown / simulation->makespan_ms) : 0;
  }
  judgement.over_bytes = shortage.over_bytes;
  judgement.worst_stage = shortage.worst_stage;
  judgement.plan = std::move(plan);
  return judgement;
}

absl::StatusOr<Judgement> JudgeByOrder(Plan plan, Precision later) {
  Lane lane;
  if (HasEqualReplicas(plan)) {
    lane = LaneOf(plan);
    // Rank by rank, reductions share the links in other ways.
    if (later == Precision::kExact) lane.input.reduction_ms.clear();
  } else {
    lane.input = InputOf(plan);
  }
  const absl::StatusOr<OrderBound> bound = ComputeOrderBound(plan.schedule, lane.input);
  if (!bound.ok()) return bound.status();
  Judgement judgement;
  judgement.precision = Precision::kBound;
  plan.predicted_step_ms = bound->makespan_ms;
  Shortage shortage(plan);
  for (PlanStage& stage : plan.stages) {
    stage.peak_memory_bytes = 0;
    for (size_t r = 0; r < stage.ranks.size(); ++r) {
      if (r > 0 && !lane.index_of.empty()) break;  // one replica stands for all
      const int rank = stage.ranks[r];
      const int64_t bytes =
          bound->peak_bytes[lane.index_of.empty() ? rank : lane.index_of.at(rank)];
      stage.peak_memory_bytes = std::max(stage.peak_memory_bytes, bytes);
      shortage.Note(stage.index, rank, bytes);
    }
  }
  judgement.over_bytes = shortage.over_bytes;
  judgement.worst_stage = shortage.worst_stage;
  judgement.plan = std::move(plan);
  return judgement;
}

}  // namespace autopart::internal
