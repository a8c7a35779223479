// autopart::dropout_mask(Tensor like, float p, int key) -> Tensor
//
// A mask of like's shape, dtype and strides with elements 0 (probability p) or 1/(1-p). Element i
// in row-major order depends on (key, i) only: not on strides, threads, device or what ran before.
// No gradient flows through it. CPU and Meta kernels.
#ifndef AUTOPART_PROFILER_INTERNAL_DROPOUT_MASK_H_
#define AUTOPART_PROFILER_INTERNAL_DROPOUT_MASK_H_

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace autopart::internal {

// Makes sure that the operator is linked in and registered.
void RegisterDropoutMask();

at::Tensor DropoutMask(const at::Tensor& like, double p, int64_t key);

}  // namespace autopart::internal

#endif  // AUTOPART_PROFILER_INTERNAL_DROPOUT_MASK_H_
