// Certified lower bounds on the heaviest stage of any partition.
#ifndef AUTOPART_PARTITIONER_LOWER_BOUND_H_
#define AUTOPART_PARTITIONER_LOWER_BOUND_H_

#include <string>

#include "partitioner/cost_graph.h"
#include "partitioner/partitioner.h"

namespace autopart {

struct LowerBound {
  double value_ms = 0;
  // "average": all work over all stages; "indivisible": heaviest group; "chain": no chain of
  // boundaries keeps all stages below, each with the communication that it cannot avoid;
  // "exhaustive": all partitions were looked at.
  std::string kind;
};

LowerBound ComputeLowerBound(const CostGraph& graph, const PartitionOptions& options);

}  // namespace autopart

#endif  // AUTOPART_PARTITIONER_LOWER_BOUND_H_
