// Splits a cost graph into pipeline stages.
#ifndef AUTOPART_PARTITIONER_PARTITIONER_H_
#define AUTOPART_PARTITIONER_PARTITIONER_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/cost_graph.h"
#include "partitioner/partition.h"

namespace autopart {

enum class Objective {
  // Load of a stage = compute + time of every value that it sends or receives, each once per
  // stage; the published cost of Tarnawski et al. (NeurIPS 2020), where sends block.
  kSum,
  // Load of a stage = max(compute, send, receive): sends overlap with compute, as in our runtime.
  kOverlap,
};

struct PartitionOptions {
  int num_stages = 2;
  Objective objective = Objective::kOverlap;
  double bytes_per_ms = std::numeric_limits<double>::infinity();  // link rate
  double latency_ms = 0;                                          // per value sent

  // Memory of a stage = state_factor * bytes of its trained parameters + bytes of the others
  //   + in_flight * (saved values, each storage once, + private bytes) + largest temporary.
  int64_t memory_bytes = std::numeric_limits<int64_t>::max();  // cap per stage
  double state_factor = 4;  // weights + gradients + Adam's two moments
  // Micro-batches whose saved values stage s holds at once, counted from the LAST stage: entry 0 is
  // the last stage. The last entry serves all earlier stages. 1F1B: 1, 2, 3, ... up to m.
  std::vector<int> in_flight = {1};

  bool allow_empty_stages = false;
  uint64_t seed = 0;
  // Rounds of re-order and slice: more for graphs under 400 nodes, fewer for those over 2000.
  int iterations = 32;
};

// Each node is on exactly one stage, no edge goes to an earlier stage, groups stay whole, no stage
// exceeds the cap. The same graph and options give the same answer.
// INVALID_ARGUMENT: bad options or graph (more stages than groups, unless empty stages are
// allowed). RESOURCE_EXHAUSTED: no split found that fits; names the stage or node and the missing
// bytes.
absl::StatusOr<Partition> PartitionGraph(const CostGraph& graph, const PartitionOptions& options);

}  // namespace autopart

#endif  // AUTOPART_PARTITIONER_PARTITIONER_H_
