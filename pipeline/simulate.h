// Runs a lowered schedule event by event, with rendezvous semantics: the judge of every plan.
//
// A send transfers only while its receive is posted or passed; a RECV ends when the data is here, a
// WAIT when the peer has it. If no rank can go on the schedule hangs, and the error prints each
// rank's blocked action. Cost: O(actions log ranks).
//
// Memory is exact, not a formula: each action acquires and releases named storages per stage and
// micro-batch, and a storage that several hold is counted once. The runtime's allocation observer
// must see the same bytes after every action.
#ifndef AUTOPART_PIPELINE_SIMULATE_H_
#define AUTOPART_PIPELINE_SIMULATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/cost_graph.h"
#include "pipeline/plan.h"
#include "pipeline/schedule.h"

namespace autopart {

struct StageCost {
  double forward_ms = 0, backward_input_ms = 0, backward_weight_ms = 0;
  double reduce_ms = 0, step_ms = 0;
};

struct EdgeCost {
  double forward_ms = 0, backward_ms = 0;  // one message, latency included
};

// One storage that a stage holds for a micro-batch.
struct HeldStorage {
  int storage = 0;  // id within the graph; private bytes of a node have ids past the values
  int64_t bytes = 0;
  bool operator==(const HeldStorage&) const = default;
};

struct StageMemory {
  int64_t weight_bytes = 0;    // parameters and buffers on the rank
  int64_t gradient_bytes = 0;  // from the first backward of the step on, or the reduction
  int64_t optimizer_bytes = 0;
  int64_t temporary_bytes = 0;     // most that an operator finds or makes and nobody keeps, apart
  std::vector<HeldStorage> saved;  // from a micro-batch's forward until its backward
  std::vector<HeldStorage>
      results;  // handed back to the caller: from the forward to the step's end
};

struct EdgeMemory {
  std::vector<HeldStorage> sent;      // in the sender's storage ids: forward until WAIT
  std::vector<HeldStorage> received;  // in the receiver's ids: RECV until the forward used it
  int64_t gradient_bytes = 0;         // message back: RECV_B until B, and B until WAIT_B
};

struct SimulationInput {
  StagePlacement placement;
  std::vector<StageEdge> edges;
  std::vector<StageCost> stage_costs;
  std::vector<EdgeCost> edge_costs;
  std::vector<StageMemory> stage_memory;
  std::vector<EdgeMemory> edge_memory;
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
  MemoryByKind live;       // the same by kind
};

struct RankUse {
  double busy_ms = 0;      // compute and optimizer
  double idle_ms = 0;      // makespan - busy
  int64_t peak_bytes = 0;  // temporaries and optimizer state included
  MemoryByKind peak;       // that moment, by kind; sums to peak_bytes
  int64_t weight_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
  int64_t activation_bytes = 0;  // most at once of saved values, messages and results
};

struct Simulation {
  double makespan_ms = 0;
  std::vector<Event> events;  // by end time: executing them in this order on one thread never waits
  std::vector<RankUse> ranks;
};

// INTERNAL if the schedule hangs (with each rank's blocked action).
absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const SimulationInput& input);

// Time of an edge's messages on the plan's link.
EdgeCost MessageCost(const Plan& plan, const StageEdge& edge);

// The simulation input of a plan: costs and memory composed from the graph.
absl::StatusOr<SimulationInput> ComposeInput(const Plan& plan, const CostGraph& graph);
absl::StatusOr<Simulation> SimulatePlan(const Plan& plan, const CostGraph& graph);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_SIMULATE_H_
