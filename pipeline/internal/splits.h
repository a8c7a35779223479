// The splits of one graph that a search has asked the partitioner for.
#ifndef AUTOPART_PIPELINE_INTERNAL_SPLITS_H_
#define AUTOPART_PIPELINE_INTERNAL_SPLITS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/cost_graph.h"
#include "partitioner/partitioner.h"
#include "pipeline/cluster.h"
#include "pipeline/internal/assign.h"
#include "pipeline/planner.h"

namespace autopart::internal {

// A cap on the memory of each stage. Candidates that differ in other things ask for the same.
struct MemoryCap {
  int64_t bytes = 0;
  double state_factor = 4;     // as in PartitionOptions
  std::vector<int> in_flight;  // likewise
  Recompute recompute = Recompute::kNone;

  auto key() const { return std::tuple(bytes, state_factor, in_flight, recompute); }
};

class Splits {
 public:
  // module_pins: by node, -1 for free; empty: none. `say` gets a line before each split.
  Splits(const CostGraph& graph, const Cluster& cluster, const PlannerOptions& options,
         std::vector<int> module_pins, std::function<void(const std::string&)> say);

  // The user placed nodes or modules: one split is all there is.
  bool pinned() const { return !options_.pinned_stage_of_node.empty() || !module_pins_.empty(); }

  // As the partitioner likes it best, or as pinned: the stage of each node.
  absl::StatusOr<std::vector<int>> Free(int stages);

  // Stages and recomputed nodes; no ranks.
  const absl::StatusOr<StageAssignment>& Capped(int stages, const MemoryCap& cap);

  // Of the partitioner, for capped splits so far.
  int64_t iterations() const { return iterations_; }

  // What all splits are asked with.
  PartitionOptions Options(int stages) const;

 private:
  absl::StatusOr<Partition> SplitOrGiveUp(PartitionOptions split);

  const CostGraph& graph_;
  const Cluster& cluster_;
  const PlannerOptions& options_;
  const std::vector<int> module_pins_;
  const std::function<void(const std::string&)> say_;
  std::map<int, absl::StatusOr<std::vector<int>>> free_;
  std::map<std::pair<int, decltype(MemoryCap().key())>, absl::StatusOr<StageAssignment>> capped_;
  int64_t iterations_ = 0;
};

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_SPLITS_H_
