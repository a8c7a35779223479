// Whether a model can fit at all, before anybody looks for a split.
#ifndef AUTOPART_PIPELINE_INTERNAL_MEMORY_BOUND_H_
#define AUTOPART_PIPELINE_INTERNAL_MEMORY_BOUND_H_

#include <cstdint>
#include <vector>

#include "partitioner/cost_graph.h"

namespace autopart::internal {

// Bytes that every split has to hold somewhere.
struct LeastBytes {
  double state = 0;  // parameters, with their gradients and optimizer state
  double saved = 0;  // of one micro-batch, until its backward; each storage once
};

// state_factor: bytes for each byte of a trained parameter, as in PartitionOptions.
LeastBytes ComputeLeastMemory(const CostGraph& graph, double state_factor);

// False: no split into so many stages of `cap` bytes each holds that, were it as fine as water.
// in_flight: micro-batches that a stage holds, from the last stage on; the last entry serves all
// earlier ones.
bool MayFit(const LeastBytes& least, int stages, const std::vector<int>& in_flight, int64_t cap);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_MEMORY_BOUND_H_
