// Shapes, dtypes, strides, requires_grad and memory sharing of every value, at one binding of the
// inputs, without running the model.
#ifndef AUTOPART_PROFILER_SHAPES_H_
#define AUTOPART_PROFILER_SHAPES_H_

#include <vector>

#include <absl/status/status.h>

#include "profiler/model.h"
#include "profiler/op_graph.h"

namespace autopart {

// Fills Value::kind, tensor, requires_grad and view_of, and merges alias classes of values seen to
// share memory. inputs: one per graph input. AnalyzeEffects must have run.
// Branches and trip numbers that depend on data are taken as for tensors of zeros.
// INVALID_ARGUMENT where an operator refuses its operands, naming operator, module and shapes.
absl::Status PropagateShapes(OpGraph& graph, const std::vector<InputSpec>& inputs);

}  // namespace autopart

#endif  // AUTOPART_PROFILER_SHAPES_H_
