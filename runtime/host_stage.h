// A stage whose program is the caller's own code: a Python step body, a serving front, a test.
//
// A plan's stage without nodes runs such a callback instead of operators; actions, edges,
// simulation and lowering treat it as any stage.
#ifndef AUTOPART_RUNTIME_HOST_STAGE_H_
#define AUTOPART_RUNTIME_HOST_STAGE_H_

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace autopart {

struct HostStage {
  // Gets the values of the incoming edges (by ascending peer stage, each edge's values ascending)
  // and returns the values of the outgoing edges (each once, ascending). Called with grad mode as
  // the step has it; received tensors that require a gradient have a grad_fn, so whatever is
  // computed from them is differentiated through, either by the stage's backward action (gradients
  // of the values sent) or by a backward() of the callback's own.
  std::function<std::vector<at::IValue>(int micro_batch, std::vector<at::IValue> inputs)> forward;
  // Called at the backward action before gradients are sent back; may be empty.
  std::function<void(int micro_batch)> backward;
};

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_HOST_STAGE_H_
