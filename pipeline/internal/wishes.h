// What the user fixed and what is left to search. INVALID_ARGUMENT: impossible wishes, with
// reasons.
#ifndef AUTOPART_PIPELINE_INTERNAL_WISHES_H_
#define AUTOPART_PIPELINE_INTERNAL_WISHES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "partitioner/cost_graph.h"
#include "pipeline/internal/shape.h"
#include "pipeline/planner.h"

namespace autopart::internal {

// Every action is simulated: beyond these a plan takes minutes and its answer is no better.
inline constexpr int kMostDevices = 16384;
inline constexpr int kMostMicroBatches = 100000;

absl::Status CheckWishes(int devices, const PlannerOptions& options);

// Numbers of stages that a graph can have. pinned_stages: so many have something pinned to them.
absl::StatusOr<std::vector<Shape>> AllowedShapes(const CostGraph& graph, int devices,
                                                 const PlannerOptions& options, int pinned_stages);

absl::StatusOr<std::vector<std::string>> AllowedSchedules(const PlannerOptions& options);

// Of the whole job, each of so many samples (0: cannot be counted).
absl::StatusOr<std::vector<int>> AllowedMicroBatches(int64_t samples, int devices,
                                                     const PlannerOptions& options);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_WISHES_H_
