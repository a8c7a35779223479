// Runs a lowered schedule event by event: the judge of every plan.
//
// Each rank has four streams: it computes, sends, receives and reduces at the same time, and one
// thing a stream. A transfer starts when its SEND has started, its receive is posted, and the way
// is free: a device's own link, or the one that devices of a host share, carries one message at a
// time in each direction, first come, first served. A receive is posted when the RECV starts, or
// with `receives_ahead` = k as soon as all but k earlier ones of that edge and rank have ended. A
// RECV ends when the data is here, a WAIT when the peer has it. With receives_ahead = 0 these are
// rendezvous semantics: what ends so can never hang. If no rank can go on the schedule hangs, and
// the error prints each rank's blocked action.
//
// A reduction is cut into buckets. A bucket starts when all its ranks have made its gradients,
// which become ready evenly over the last backward of the rank, and the one before it is through;
// REDUCE ends when all are. Without a bucket size a reduction starts when all its ranks are at
// REDUCE.
//
// Memory is exact, not a formula, and depends on the order alone: each action acquires and releases
// storages of a stage and micro-batch, and one that is held for several reasons is counted once.
// The runtime's allocation observer must see the same bytes after every action.
//
// Cost: O((actions + buckets x ranks) log ranks).
#ifndef AUTOPART_PIPELINE_SIMULATE_H_
#define AUTOPART_PIPELINE_SIMULATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/plan.h"
#include "pipeline/schedule.h"

namespace autopart {

// Times of a stage for one micro-batch, on a device that the costs are of.
struct StageCost {
  double forward_ms = 0, backward_input_ms = 0, backward_weight_ms = 0;
  double recompute_ms = 0;  // forward work done again right before the backward
  double step_ms = 0;       // optimizer, once a step
};

struct SimulationInput {
  StagePlacement placement;
  std::vector<StageEdge> edges;
  std::vector<StageCost> stage_costs;
  std::vector<StageMemory> stage_memory;
  std::vector<Reduction> reductions;
  Cluster cluster;                    // without hosts, messages and reductions take no time
  std::vector<double> rank_slowness;  // factors of each rank's compute times; empty: all 1
  int64_t reduce_bucket_bytes = 0;    // 0: one bucket, after the backwards
  int receives_ahead = 1;
  std::vector<DevicePlace> places;   // of each rank; empty: as the cluster numbers them
  std::vector<double> reduction_ms;  // of each reduction; empty: what the links take
};

// What a rank does at once: one thing a stream.
enum class Stream { kCompute, kSend, kReceive, kReduce };

struct Event {
  int rank = 0;
  int action_index = 0;  // into Schedule::ranks[rank]
  Action action;
  Stream stream = Stream::kCompute;
  double start_ms = 0, end_ms = 0;
  int64_t live_bytes = 0;  // on that rank right after the action; no temporaries, no optimizer
  MemoryByKind live;       // the same by kind, the optimizer's state added
};

// A message on its way, of the SEND and RECV of the same stages and micro-batch.
struct Transfer {
  int from_rank = 0, to_rank = 0;
  int from_stage = 0, to_stage = 0;
  int micro_batch = 0;
  int64_t bytes = 0;
  double start_ms = 0, end_ms = 0;
};

// A bucket of a reduction under way.
struct ReduceSpan {
  int reduction = 0;  // into SimulationInput::reductions
  int bucket = 0;
  double start_ms = 0, end_ms = 0;
};

struct RankUse {
  double busy_ms = 0;       // compute, recompute and optimizer
  double recompute_ms = 0;  // part of busy
  double optimizer_ms = 0;  // part of busy
  double idle_ms = 0;       // makespan - busy
  int64_t peak_bytes = 0;   // temporaries and optimizer state included
  MemoryByKind peak;        // that moment, by kind; sums to peak_bytes
  int64_t weight_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
  int64_t activation_bytes = 0;  // most at once of saved values, messages and results
};

struct Simulation {
  double makespan_ms = 0;
  std::vector<Event> events;             // by end time; each rank's in its list's order
  std::vector<Transfer> transfers;       // by start time
  std::vector<ReduceSpan> reduce_spans;  // by start time
  std::vector<RankUse> ranks;
};

// INTERNAL if the schedule hangs (with each rank's blocked action).
absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const SimulationInput& input);

// Fills what the graph decides of a plan: per stage the times, memory and module names' costs, and
// the reductions. Needs the assignment (nodes, copies, parameters, recomputed nodes), edges,
// cluster, schedule (trains or not), optimizer and its sharding.
// INVALID_ARGUMENT: an optimizer that is not known.
absl::Status ComposeCosts(const CostGraph& graph, Plan& plan);

// What a plan says, as the simulator takes it. Costs O(plan).
SimulationInput InputOf(const Plan& plan);
absl::StatusOr<Simulation> SimulatePlan(const Plan& plan);

// Factor of each rank's compute times: the rate of the first device over that of the rank's own, in
// matrix products of the plan's dtype. Empty where all are alike.
std::vector<double> RankSlowness(const Cluster& cluster, std::string_view dtype);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_SIMULATE_H_
