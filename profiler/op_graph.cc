#include "profiler/op_graph.h"

#include <c10/core/ScalarType.h>

namespace autopart {

std::vector<int64_t> TensorMeta::Sizes() const {
  std::vector<int64_t> out;
  for (const Dimension& dim : sizes) out.push_back(dim.value);
  return out;
}

int64_t TensorMeta::NumElements() const {
  int64_t count = 1;
  for (const Dimension& dim : sizes) count *= dim.value;
  return count;
}

int64_t TensorMeta::Bytes() const {
  return NumElements() * static_cast<int64_t>(c10::elementSize(dtype));
}

}  // namespace autopart
