// The micro-batches that a run trains on: random ones by the model's input specification, or those
// of a file.
#ifndef AUTOPART_PROFILER_BATCHES_H_
#define AUTOPART_PROFILER_BATCHES_H_

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "profiler/op_graph.h"

namespace autopart {

// Batches of a run, one after the other; after the last comes the first again.
struct Batches {
  // steps[s][j][i]: input i of micro-batch j.
  std::vector<std::vector<std::vector<at::IValue>>> steps;

  const std::vector<std::vector<at::IValue>>& Of(uint64_t step) const {
    return steps[step % steps.size()];
  }
};

// One batch of so many micro-batches of the shapes that the graph was captured with: integers below
// their bound (below 2 without one), floating-point numbers normal. The same seed, the same bits.
// Throws std::invalid_argument, naming the input, where the graph has no shape of it.
Batches RandomBatches(const OpGraph& graph, int micro_batches, uint64_t seed);

// A file of torch.save([input, ...]): every input of the model in order, with the samples of all
// batches along its batch axis. What is left over after the last whole batch is not used.
// Throws std::invalid_argument, naming file and input, where they do not fit the model.
Batches LoadBatches(const std::string& path, const OpGraph& graph, int micro_batches);

}  // namespace autopart

#endif  // AUTOPART_PROFILER_BATCHES_H_
