// Which operands and results an operator keeps for its backward, and how many further bytes.
//
// Found as a black box, so that it holds for every operator: the operator runs once under grad mode
// on tensors of the signature's shapes; then everything but the gradient edges of its results is
// dropped, as the runtime does, and what is still alive is what the gradient graph keeps.
// Large operators run on few elements, from which follows what they would allocate at full size
// (internal/shrink.h); where that is no guide, on meta tensors (views, slices, concatenations), and
// on real ones where neither is. Nothing of it depends on meta kernels that Python registers: a
// graph costs the same in every process, and no memory of the model's size is taken.
#ifndef AUTOPART_PROFILER_SAVED_H_
#define AUTOPART_PROFILER_SAVED_H_

#include <cstdint>
#include <vector>

#include <absl/status/statusor.h>

#include "profiler/signature.h"

namespace autopart {

// Memory of one result of an operator.
struct ResultMemory {
  bool known = false;         // the operator ran and the result is a tensor
  int64_t storage_bytes = 0;  // of its whole storage
  int shares_operand = -1;    // its memory is that operand's (a view, or written in place)
  int shares_result = -1;     // or that of this earlier result
};

struct SavedForBackward {
  std::vector<int> operands;         // indices into signature.operands, ascending; weights left out
  std::vector<int> results;          // indices into node.outputs, ascending
  int64_t private_bytes = 0;         // kept, and neither an operand nor a result
  int64_t temporary_bytes = 0;       // largest scratch beside operands, results and what is kept
  std::vector<ResultMemory> memory;  // one per result
};

// kShrunk: on few elements or meta tensors wherever possible. kCpu: on all elements.
// kAutomatic: on all elements where that is cheap, else as kShrunk.
enum class ObserveOn { kAutomatic, kShrunk, kCpu };

// INTERNAL, naming the signature, where the operator runs on no device.
absl::StatusOr<SavedForBackward> ObserveSaved(const OperatorSignature& signature,
                                              ObserveOn where = ObserveOn::kAutomatic);

}  // namespace autopart

#endif  // AUTOPART_PROFILER_SAVED_H_
