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
  int replicas = 1;
  int in_flight = 1;      // micro-batches on one replica
  double compute_ms = 0;  // of one micro-batch, without recompute_ms
  double recompute_ms = 0;
  double all_reduce_ms = 0;   // of a step, divided by its micro-batches
  int64_t send_bytes = 0;     // values produced here and read elsewhere, once per reading stage,
  int64_t receive_bytes = 0;  // plus the gradients that flow back
  // By the objective: a micro-batch's time on the stage, divided by the replicas, + all_reduce_ms.
  double load_ms = 0;
  int64_t memory_bytes = 0;  // of one replica, by the formula in PartitionOptions
};

struct PartitionMetrics {
  std::vector<StageMetrics> stages;
  double max_load_ms = 0;
  int64_t cut_bytes = 0;
};

PartitionMetrics ComputeMetrics(const CostGraph& graph, const Partition& partition,
                                const PartitionOptions& options);
// Of stages with one device each that recompute nothing, options.num_stages of them.
PartitionMetrics ComputeMetrics(const CostGraph& graph, const std::vector<int>& stage_of_node,
                                const PartitionOptions& options);

// Time of a step of m micro-batches: each stage's time for one, and m - 1 times the largest load,
// for that is the pace at which the pipeline lets the others follow. What is minimised is the
// largest load, which is all of it but the first term.
double StepMs(const PartitionMetrics& metrics, int micro_batches);

// OK, or INVALID_ARGUMENT naming the first node, edge, group or stage that breaks a promise of
// PartitionGraph (RESOURCE_EXHAUSTED for memory).
absl::Status VerifyPartition(const CostGraph& graph, const Partition& partition,
                             const PartitionOptions& options);

}  // namespace autopart

#endif  // AUTOPART_PARTITIONER_METRICS_H_
