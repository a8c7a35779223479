#include "partitioner/lower_bound.h"

#include "partitioner/internal/bounds.h"
#include "partitioner/internal/problem.h"
#include "partitioner/internal/reduce.h"

namespace autopart {

LowerBound ComputeLowerBound(const CostGraph& graph, const PartitionOptions& options) {
  return internal::BoundOf(internal::GlueCycles(internal::MakeProblem(graph, options)));
}

}  // namespace autopart
