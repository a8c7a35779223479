#include "tests/testing/all_dags.h"

#include <vector>

namespace autopart::testing {
namespace {

// The sets that are one graph: one for each topological order of it.
class Renumberings {
 public:
  Renumberings(int num_nodes, uint32_t edges, std::vector<bool>& met)
      : num_nodes_(num_nodes), predecessors_(num_nodes), place_(num_nodes), met_(met) {
    for (int to = 0; to < num_nodes; ++to) {
      for (int from = 0; from < to; ++from) {
        if (edges & EdgeBit(from, to)) predecessors_[to].push_back(from);
      }
    }
    Place(0, 0);
  }

 private:
  // The first `count` places are taken, and the edges among them known.
  void Place(int count, uint32_t edges) {
    if (count == num_nodes_) {
      met_[edges] = true;
      return;
    }
    for (int node = 0; node < num_nodes_; ++node) {
      if (placed_ >> node & 1) continue;
      bool is_ready = true;
      uint32_t with = edges;
      for (const int p : predecessors_[node]) {
        is_ready = is_ready && (placed_ >> p & 1);
        if (is_ready) with |= EdgeBit(place_[p], count);
      }
      if (!is_ready) continue;
      place_[node] = count;
      placed_ ^= 1u << node;
      Place(count + 1, with);
      placed_ ^= 1u << node;
    }
  }

  const int num_nodes_;
  std::vector<std::vector<int>> predecessors_;
  std::vector<int> place_;
  uint32_t placed_ = 0;
  std::vector<bool>& met_;
};

}  // namespace

int ForEachDag(int num_nodes, const std::function<void(uint32_t edges)>& visit) {
  const uint32_t num_sets = uint32_t{1} << (num_nodes * (num_nodes - 1) / 2);
  std::vector<bool> met(num_sets);
  int num_visited = 0;
  for (uint32_t edges = 0; edges < num_sets; ++edges) {
    if (met[edges]) continue;
    Renumberings(num_nodes, edges, met);
    visit(edges);
    ++num_visited;
  }
  return num_visited;
}

}  // namespace autopart::testing
