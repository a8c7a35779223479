// Stages with unequal replicas, or on unequal devices.
#ifndef AUTOPART_PIPELINE_INTERNAL_UNEQUAL_H_
#define AUTOPART_PIPELINE_INTERNAL_UNEQUAL_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "partitioner/cost_graph.h"
#include "partitioner/partitioner.h"
#include "pipeline/cluster.h"
#include "pipeline/internal/assign.h"

namespace autopart::internal {

// split: the number of stages, how much each may hold at once, and memory_bytes of a device where
// all are alike. memory_bytes: of every device, instead of its own. Empty where the partitioner
// finds nothing, leaves devices out, or where all stages have as many of one kind.
std::optional<StageAssignment> UnequalAssignment(const CostGraph& graph, const Cluster& cluster,
                                                 std::string_view dtype,
                                                 std::optional<int64_t> memory_bytes,
                                                 PartitionOptions split);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_UNEQUAL_H_
