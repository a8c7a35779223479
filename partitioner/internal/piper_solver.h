// The best hybrid plan by a dynamic programme over cuts; see piper_solver.cc.
#ifndef AUTOPART_PARTITIONER_INTERNAL_PIPER_SOLVER_H_
#define AUTOPART_PARTITIONER_INTERNAL_PIPER_SOLVER_H_

#include "absl/status/statusor.h"
#include "partitioner/piper_instance.h"

namespace autopart::internal {

// Plan and bound; its value is for the caller to count.
absl::StatusOr<PiperPlan> SolvePiper(const PiperInstance& instance, const PiperOptions& options);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_PIPER_SOLVER_H_
