// Orders of ranks that hold several stages each, called chunks.
#ifndef AUTOPART_PIPELINE_INTERNAL_CHUNK_ORDERS_H_
#define AUTOPART_PIPELINE_INTERNAL_CHUNK_ORDERS_H_

#include <optional>
#include <vector>

#include "pipeline/schedule.h"

namespace autopart::internal {

using RankOrders = std::vector<std::vector<Action>>;

// Interleaved 1F1B (Narayanan et al., SC 2021). Stage s of p v is on the ranks of stage s mod p,
// and the micro-batches of a rank are a multiple of p; empty for another placement, and for v = 1.
// Rank i warms up with min(m v, 2 (p - i - 1) + (v - 1) p) forwards. Cost: O(actions).
std::optional<RankOrders> InterleavedOrders(const StagePlacement& placement);

// ZB-V (Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024), by a greedy rule
// on a clock in which every action takes one tick: a backward for inputs that is ready, the earlier
// stage first; else a forward that is, of the later stage, while the rank holds less than p whole
// micro-batches; else the oldest backward for weights. Stages s and 2 p - 1 - s are on the same
// ranks; empty for another placement. Cost: O(actions).
std::optional<RankOrders> ZeroBubbleVOrders(const StagePlacement& placement);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_CHUNK_ORDERS_H_
