// What the order of the computes alone says of a schedule, before anything is simulated.
#ifndef AUTOPART_PIPELINE_INTERNAL_ORDER_BOUND_H_
#define AUTOPART_PIPELINE_INTERNAL_ORDER_BOUND_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/simulate.h"

namespace autopart::internal {

struct OrderBound {
  double makespan_ms = 0;
  std::vector<int64_t> peak_bytes;  // by rank
};

// Neither is above what Simulate finds for the same input with this schedule lowered.
// INVALID_ARGUMENT: an unknown schedule. INTERNAL: its order waits for itself.
absl::StatusOr<OrderBound> ComputeOrderBound(std::string_view schedule,
                                             const SimulationInput& input);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_ORDER_BOUND_H_
