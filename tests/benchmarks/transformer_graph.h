// Cost graphs of decoder-only transformers, operator by operator, from their sizes.
//
// Times by a roofline of a device: matrix products at `flops_per_ms`, all else at
// `memory_bytes_per_ms`. Backward of a matrix product is one more product for its input and one for
// its other operand; of all else it takes as long as forward. Saved for backward is what PyTorch's
// operators save: a product its operands, a norm and gelu their input, softmax its output, dropout
// a mask. Half precision, Adam: 2 bytes a parameter here, 8 times that with its state.
//
// The ends are uneven: the embedding has many bytes and hardly any time, the head (a product with
// the vocabulary, and the loss) has the work of some layers.
#ifndef AUTOPART_TESTS_BENCHMARKS_TRANSFORMER_GRAPH_H_
#define AUTOPART_TESTS_BENCHMARKS_TRANSFORMER_GRAPH_H_

#include <cstdint>

#include "partitioner/cost_graph.h"

namespace autopart::testing {

struct TransformerOptions {
  int layers = 24;
  int64_t hidden = 2048;
  int64_t heads = 16;
  int64_t sequence = 1024;
  int64_t batch = 4;  // of a micro-batch
  int64_t vocabulary = 50'304;
  bool fused_attention = false;  // scores are never stored
  double flops_per_ms = 150e9;
  double memory_bytes_per_ms = 1.3e9;
};

CostGraph TransformerGraph(const TransformerOptions& options);

}  // namespace autopart::testing

#endif  // AUTOPART_TESTS_BENCHMARKS_TRANSFORMER_GRAPH_H_
