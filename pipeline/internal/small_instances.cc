#include "pipeline/internal/small_instances.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "pipeline/internal/layout.h"

namespace autopart::internal {
namespace {

constexpr int kFewNodes = 12;
constexpr int kFewDevices = 4;
constexpr size_t kMostPlacements = 3000;

// Ways to share the devices out among so many stages, each with at least one.
void AddCompositions(int devices, int stages, std::vector<int>& so_far,
                     std::vector<std::vector<int>>& all) {
  if (stages == 1) {
    so_far.push_back(devices);
    all.push_back(so_far);
    so_far.pop_back();
    return;
  }
  for (int first = 1; first <= devices - stages + 1; ++first) {
    so_far.push_back(first);
    AddCompositions(devices - first, stages - 1, so_far, all);
    so_far.pop_back();
  }
}

// Nodes in turn, each on all stages that what is placed already leaves it.
class Assignments {
 public:
  Assignments(const CostGraph& graph, int stages)
      : graph_(graph), stages_(stages), sources_(graph.nodes.size()), stage_(graph.nodes.size()) {
    for (const CostValue& value : graph.values) {
      if (value.producer == kModelInput) continue;
      for (const int reader : value.consumers) sources_[reader].push_back(value.producer);
    }
  }

  // Empty if there are too many.
  std::optional<std::vector<std::vector<int>>> All() {
    Place(0);
    if (all_.size() > kMostPlacements) return std::nullopt;
    return std::move(all_);
  }

 private:
  void Place(size_t node) {
    if (all_.size() > kMostPlacements) return;
    if (node == stage_.size()) {
      std::vector<bool> used(stages_);
      for (const int s : stage_) used[s] = true;
      if (std::find(used.begin(), used.end(), false) == used.end()) all_.push_back(stage_);
      return;
    }
    int low = 0;
    int high = stages_ - 1;
    for (const int source : sources_[node]) low = std::max(low, stage_[source]);
    for (size_t other = 0; other < node; ++other) {
      const int group = graph_.nodes[node].group;
      if (group == kNoGroup || graph_.nodes[other].group != group) continue;
      low = std::max(low, stage_[other]);
      high = std::min(high, stage_[other]);
    }
    for (int s = low; s <= high; ++s) {
      stage_[node] = s;
      Place(node + 1);
    }
  }

  const CostGraph& graph_;
  const int stages_;
  std::vector<std::vector<int>> sources_;
  std::vector<int> stage_;
  std::vector<std::vector<int>> all_;
};

// Replicas of each stage, on ranks in turn where they are not all as many.
PlacedNodes WithReplicas(const std::vector<int>& assignment, const std::vector<int>& replicas) {
  const int stages = replicas.size();
  PlacedNodes placed{assignment, {stages, 0}, {}};
  if (std::count(replicas.begin(), replicas.end(), replicas[0]) == stages) {
    placed.shape.replicas = replicas[0];
    placed.ranks = RanksOf(placed.shape, 1, "1f1b", Neighbours::kStages);
    return placed;
  }
  int rank = 0;
  for (const int d : replicas) {
    placed.ranks.emplace_back();
    for (int r = 0; r < d; ++r) placed.ranks.back().push_back(rank++);
  }
  return placed;
}

}  // namespace

std::vector<PlacedNodes> AllPlacements(const CostGraph& graph, int devices,
                                       const std::vector<std::string>& schedules,
                                       const PlannerOptions& options) {
  if (static_cast<int>(graph.nodes.size()) > kFewNodes || devices > kFewDevices) return {};
  const auto allowed = [&](const Shape& shape) {
    return options.stages.value_or(shape.stages) == shape.stages &&
           options.replicas.value_or(shape.replicas) == shape.replicas;
  };
  const bool any_chunks = std::any_of(schedules.begin(), schedules.end(), HasChunks);
  std::vector<PlacedNodes> all;
  for (int stages = 1; stages <= devices * kChunks; ++stages) {
    const auto assignments = Assignments(graph, stages).All();
    if (!assignments) return {};
    std::vector<std::vector<int>> shares;
    std::vector<int> so_far;
    if (stages <= devices) AddCompositions(devices, stages, so_far, shares);
    const int lanes = stages / kChunks;
    const bool chunked = any_chunks && stages % kChunks == 0 && lanes > 1 && devices % lanes == 0;
    if (assignments->size() * (shares.size() + chunked) + all.size() > kMostPlacements) return {};
    for (const std::vector<int>& assignment : *assignments) {
      for (const std::vector<int>& share : shares) {
        PlacedNodes placed = WithReplicas(assignment, share);
        if (allowed(placed.shape)) all.push_back(std::move(placed));
      }
      if (chunked && allowed({lanes, devices / lanes})) {
        all.push_back({assignment, {lanes, devices / lanes}, {}, kChunks});
      }
    }
  }
  return all;
}

}  // namespace autopart::internal
