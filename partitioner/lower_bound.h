// Certified lower bounds on the heaviest stage of any partition.
#ifndef AUTOPART_PARTITIONER_LOWER_BOUND_H_
#define AUTOPART_PARTITIONER_LOWER_BOUND_H_

#include <string>

#include "partitioner/cost_graph.h"
#include "partitioner/partitioner.h"

namespace autopart {

struct LowerBound {
  double value_ms = 0;
  std::string kind;  // "average": all work over all stages; "indivisible": heaviest group
};

LowerBound ComputeLowerBound(const CostGraph& graph, const PartitionOptions& options);

}  // namespace autopart

#endif  // AUTOPART_PARTITIONER_LOWER_BOUND_H_
