// Splits a cost graph into pipeline stages.
#ifndef AUTOPART_PARTITIONER_PARTITIONER_H_
#define AUTOPART_PARTITIONER_PARTITIONER_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
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

// How long to search, and for what. The same seed and iterations give the same answer whatever the
// threads and the machine; a time limit that is hit, or a stop, ends with the best answer so far.
struct Effort {
  // Rounds of re-order, slice and refine. Empty: a number that depends on the graph's size only,
  // or, with a time limit, as many as it allows.
  std::optional<int> iterations;
  uint64_t seed = 0;
  int threads = 0;  // 0: as many as the machine has
  double time_limit_s = std::numeric_limits<double>::infinity();
  // Off: no exact search and no bounds that cost more than reading the graph. For searches that
  // call the partitioner many times and use its answer only.
  bool prove = true;
  std::stop_token stop;  // for a caller that may want the answer at once
};

// INVALID_ARGUMENT names the bad one.
absl::Status Validate(const Effort& effort);

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
  Effort effort;
};

// Each node is on exactly one stage, no edge goes to an earlier stage, groups stay whole, no stage
// exceeds the cap. The same graph and options give the same answer.
// INVALID_ARGUMENT: bad options or graph (more stages than groups, unless empty stages are
// allowed). RESOURCE_EXHAUSTED: no split found that fits; names the stage or node and the missing
// bytes.
absl::StatusOr<Partition> PartitionGraph(const CostGraph& graph, const PartitionOptions& options);

}  // namespace autopart

#endif  // AUTOPART_PARTITIONER_PARTITIONER_H_
