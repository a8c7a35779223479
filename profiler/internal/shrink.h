// The same operator on fewer elements, run to learn what it would allocate at full size.
//
// Every large size becomes a small one with a prime factor of its own, wherever it stands: in
// operands, and in the operator's sizes and bounds. The bytes of a block that the small run
// allocates then tell which sizes it is a product of:
//
//   [2048, 8192] f32 -> [40, 56]: 40 = 8 x 5, 56 = 8 x 7 (the powers of two keep heads and groups
//   divisible). A block of 160 bytes is 2^5 x 5, so a row of 40 floats: 8192 bytes at full size.
//
// Holds for operators that treat sizes alike, as nearly all do. Where sizes hang together (a view,
// a convolution) the small run fails or gives other shapes than the shrunk signature says: it is
// then no guide.
#ifndef AUTOPART_PROFILER_INTERNAL_SHRINK_H_
#define AUTOPART_PROFILER_INTERNAL_SHRINK_H_

#include <cstdint>
#include <vector>

#include "profiler/signature.h"

namespace autopart::internal {

struct ShrunkSize {
  int64_t large = 0, small = 0;
  int64_t prime = 0;  // of small, and of no other size
};

struct ShrunkSignature {
  OperatorSignature signature;
  std::vector<ShrunkSize> sizes;

  // What a block of so many bytes has at full size.
  int64_t FullBytes(int64_t bytes) const;
};

// Ways to shrink, the smallest first: all large sizes, or the batch alone (the first size of the
// first operand). Empty where nothing is large, or a result is not a tensor.
std::vector<ShrunkSignature> WaysToShrink(const OperatorSignature& signature);

}  // namespace autopart::internal

#endif  // AUTOPART_PROFILER_INTERNAL_SHRINK_H_
