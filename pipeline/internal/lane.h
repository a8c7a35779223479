// One pipeline of a plan whose stages have equal replicas: what stands for all of them.
#ifndef AUTOPART_PIPELINE_INTERNAL_LANE_H_
#define AUTOPART_PIPELINE_INTERNAL_LANE_H_

#include <map>

#include "pipeline/plan.h"
#include "pipeline/simulate.h"

namespace autopart::internal {

// Replica 0 of every stage, with its ranks numbered from 0.
struct Lane {
  SimulationInput input;
  std::map<int, int> index_of;  // rank -> in the lane
};

// More than one replica, and as many of every stage.
bool HasEqualReplicas(const Plan& plan);

// Replica 0 has as many micro-batches as any. Its share of links that are shared is what is left to
// it, and its reductions take the time of all replicas.
Lane LaneOf(const Plan& plan);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_LANE_H_
