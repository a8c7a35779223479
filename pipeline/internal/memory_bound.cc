// State is best put where the most micro-batches are in flight, since a byte of it takes the room
// of a byte anywhere, and a saved byte that of in_flight bytes (a fractional knapsack). What is
// left of each stage's room, divided by its micro-batches in flight, is what can be saved there.
// Cost: O(graph), then O(stages log stages).
#include "pipeline/internal/memory_bound.h"

#include <algorithm>
#include <functional>
#include <map>

namespace autopart::internal {

LeastBytes ComputeLeastMemory(const CostGraph& graph, double state_factor) {
  LeastBytes least;
  std::vector<bool> used(graph.parameters.size());
  std::map<int, double> bytes_of_root;  // the least of the storage's saved views
  for (const CostNode& node : graph.nodes) {
    for (const int parameter : node.parameters) used[parameter] = true;
    least.saved += static_cast<double>(node.saved_bytes);
    for (const int value : node.saved_values) {
      int root = value;
      double bytes = static_cast<double>(graph.values[value].bytes);
      while (graph.values[root].view_of != kNoView) {
        root = graph.values[root].view_of;
        bytes = std::min(bytes, static_cast<double>(graph.values[root].bytes));
      }
      if (graph.values[root].producer == kModelInput) continue;
      bytes = std::min(bytes, static_cast<double>(graph.values[root].storage_bytes));
      const auto [it, fresh] = bytes_of_root.emplace(root, bytes);
      if (!fresh) it->second = std::min(it->second, bytes);
    }
  }
  for (const auto& [root, bytes] : bytes_of_root) least.saved += bytes;
  for (size_t p = 0; p < graph.parameters.size(); ++p) {
    if (!used[p]) continue;
    const CostParameter& parameter = graph.parameters[p];
    least.state += static_cast<double>(parameter.bytes) * (parameter.trains ? state_factor : 1);
  }
  return least;
}

bool MayFit(const LeastBytes& least, int stages, const std::vector<int>& in_flight, int64_t cap) {
  std::vector<int> held;
  for (int s = 0; s < stages; ++s) {
    held.push_back(in_flight[std::min<size_t>(s, in_flight.size() - 1)]);
  }
  std::sort(held.begin(), held.end(), std::greater<>());
  const double room = static_cast<double>(cap) * (1 + 1e-9);
  double state = least.state;
  double saved = least.saved;
  for (const int count : held) {
    const double here = std::min(state, room);
    state -= here;
    if (count == 0) return state <= 0;  // saves for nothing
    saved -= (room - here) / count;
  }
  return state <= 0 && saved <= 0;
}

}  // namespace autopart::internal
