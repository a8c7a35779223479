// The best partition by trying all: every cut into stages, every choice of devices, and for every
// stage every set of nodes to recompute. For graphs of some eight nodes. Scored by the referee.
#ifndef AUTOPART_TESTS_TESTING_BRUTE_FORCE_H_
#define AUTOPART_TESTS_TESTING_BRUTE_FORCE_H_

#include <functional>
#include <optional>
#include <vector>

#include "partitioner/cost_graph.h"
#include "partitioner/partition.h"
#include "partitioner/partitioner.h"

namespace autopart::testing {

// The sets of nodes that a stage of these nodes may recompute.
using RecomputeSets = std::function<std::vector<std::vector<int>>(const std::vector<int>& nodes)>;
std::vector<std::vector<int>> Subsets(const std::vector<int>& nodes);

// Calls `visit` with every partition that may be valid: edges forward, groups whole, stages without
// gaps, numbers of stages and devices within the options. Recompute is left empty.
void ForEachPartition(const CostGraph& graph, const PartitionOptions& options,
                      const std::function<void(const Partition&)>& visit);

// Empty where nothing fits.
std::optional<Partition> BestPartition(const CostGraph& graph, const PartitionOptions& options,
                                       const RecomputeSets& sets);

}  // namespace autopart::testing

#endif  // AUTOPART_TESTS_TESTING_BRUTE_FORCE_H_
