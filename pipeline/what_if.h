// A plan simulated again, as it is or with something changed: what would it cost then?
#ifndef AUTOPART_PIPELINE_WHAT_IF_H_
#define AUTOPART_PIPELINE_WHAT_IF_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "pipeline/cluster.h"
#include "pipeline/plan.h"

namespace autopart {

// What is empty stays as it is in the plan. The split into stages always does.
struct PlanChange {
  std::optional<int> micro_batches;  // of the same size: the batch grows with them
  std::optional<std::string> schedule;
  std::optional<Cluster> cluster;  // as many devices; with the memory that they have
  std::optional<int64_t> memory_bytes;

  bool empty() const { return !micro_batches && !schedule && !cluster && !memory_bytes; }
};

struct WhatIf {
  Plan plan;           // with step, breakdown, memory and idle shares of the simulation
  std::string misfit;  // "stage 0 needs 91.3 of 80.0 GiB"; empty: it fits
};

// Bound, alternatives and the claim to be optimal belong to the request that the plan was made for:
// they are dropped where something is changed. Stage times are scaled to another first device by
// the rate of matrix products.
//
// INVALID_ARGUMENT: a change that this plan cannot take (inference to training, another number of
// devices, a schedule for other stages). INTERNAL: the schedule hangs.
absl::StatusOr<WhatIf> SimulateAgain(Plan plan, const PlanChange& change);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_WHAT_IF_H_
