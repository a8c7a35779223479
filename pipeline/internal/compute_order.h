// What the schedule generators and the lowering share: who does which micro-batch, how far a stage
// runs ahead, and how the orders of several stages on one rank are merged.
#ifndef AUTOPART_PIPELINE_INTERNAL_COMPUTE_ORDER_H_
#define AUTOPART_PIPELINE_INTERNAL_COMPUTE_ORDER_H_

#include <vector>

#include "pipeline/schedule.h"

namespace autopart::internal {

// The forwards of one replica of a stage, ascending.
std::vector<Action> Forwards(const StagePlacement& placement, int stage, int replica);

// Micro-batches that each replica of a stage holds at once under 1F1B:
// ceil((d_s + d_(s+1) + ... + d_(p-1)) / d_s), which is p - s for equal replicas.
int InFlight(const StagePlacement& placement, int stage);

// Activation messages that a sender has under way at most, on an edge that no gradient comes back
// on: as many as the receiver lags behind, plus one. 2 between neighbours with equal replicas;
// less would hold up the sender, which has to run ahead.
int MessagesInFlight(const StagePlacement& placement, int from, int to);

inline constexpr int kGradientMessagesInFlight = 2;

// orders[stage][replica] -> the list of each rank.
std::vector<std::vector<Action>> MergeOntoRanks(
    const StagePlacement& placement, const std::vector<std::vector<std::vector<Action>>>& orders);

// When each compute runs if all take one tick and every rank keeps to its list. What stands in a
// list after an action of another rank has ended by this clock may wait for that action: no circle
// can come of it.
struct Ticks {
  std::vector<std::vector<int>> forward, backward;  // [stage][micro-batch]; of kBackwardInput too
};
Ticks ComputeTicks(const Schedule& compute, const StagePlacement& placement,
                   const std::vector<StageEdge>& edges);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_COMPUTE_ORDER_H_
