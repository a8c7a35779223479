// Fused random operators written out over autopart::dropout_mask, once shapes are known.
#ifndef AUTOPART_PROFILER_INTERNAL_DECOMPOSE_H_
#define AUTOPART_PROFILER_INTERNAL_DECOMPOSE_H_

#include <absl/status/status.h>

#include "profiler/op_graph.h"

namespace autopart::internal {

// For operators with a `nondeterministic_seeded` tag: whether these arguments draw at all.
bool IsRandom(const Node& node);

// Attention or feature dropout that draws: needs shapes to be decomposed.
bool NeedsDecomposition(const OpGraph& graph);

// scaled_dot_product_attention with dropout -> matmul, softmax, mask, matmul, as eager's math path;
// feature_dropout -> product with one draw for each sample and channel. Values are renumbered.
absl::Status Decompose(OpGraph& graph);

}  // namespace autopart::internal

#endif  // AUTOPART_PROFILER_INTERNAL_DECOMPOSE_H_
