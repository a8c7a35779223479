// The referee: scores and checks a partition, and shares no code with what makes partitions.
#ifndef AUTOPART_PARTITIONER_METRICS_H_
#define AUTOPART_PARTITIONER_METRICS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "partitioner/cost_graph.h"
#include "partitioner/partition.h"
#include "partitioner/partitioner.h"

namespace autopart {

struct StageMetrics {
  double compute_ms = 0;
  int64_t send_bytes = 0;     // values produced here and read elsewhere, once per reading stage,
  int64_t receive_bytes = 0;  // plus the gradients that flow back
  double load_ms = 0;         // by the objective
  int64_t memory_bytes = 0;   // by the formula in PartitionOptions
};

struct PartitionMetrics {
  std::vector<StageMetrics> stages;
  double max_load_ms = 0;
  int64_t cut_bytes = 0;
};

PartitionMetrics ComputeMetrics(const CostGraph& graph, const std::vector<int>& stage_of_node,
                                const PartitionOptions& options);

// OK, or INVALID_ARGUMENT naming the first node, edge, group or stage that breaks a promise of
// PartitionGraph (RESOURCE_EXHAUSTED for memory).
absl::Status VerifyPartition(const CostGraph& graph, const Partition& partition,
                             const PartitionOptions& options);

}  // namespace autopart

#endif  // AUTOPART_PARTITIONER_METRICS_H_
