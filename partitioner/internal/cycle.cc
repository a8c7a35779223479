// Depth-first search with an explicit stack: an edge to a node that is still on the path closes a
// cycle, which is the path from there on. Linear.
#include "partitioner/internal/cycle.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace autopart::internal {
namespace {

constexpr size_t kShown = 8;  // nodes of a cycle that a message names

}  // namespace

std::vector<int> FindCycle(const std::vector<std::vector<int>>& successors) {
  enum class State : char { kNew, kOnPath, kDone };
  const int num_nodes = static_cast<int>(successors.size());
  std::vector<State> state(num_nodes, State::kNew);
  std::vector<size_t> next(num_nodes);  // successor to look at
  std::vector<int> path;
  for (int root = 0; root < num_nodes; ++root) {
    if (state[root] != State::kNew) continue;
    path.push_back(root);
    state[root] = State::kOnPath;
    while (!path.empty()) {
      const int node = path.back();
      if (next[node] == successors[node].size()) {
        state[node] = State::kDone;
        path.pop_back();
        continue;
      }
      const int to = successors[node][next[node]++];
      if (state[to] == State::kOnPath) {
        return {std::find(path.begin(), path.end(), to), path.end()};
      }
      if (state[to] == State::kNew) {
        state[to] = State::kOnPath;
        path.push_back(to);
      }
    }
  }
  return {};
}

std::string DescribeCycle(const std::vector<int>& cycle,
                          const std::function<std::string(int)>& name) {
  std::string text;
  for (size_t i = 0; i < cycle.size(); ++i) {
    if (cycle.size() > kShown && i == kShown - 1) {
      absl::StrAppend(&text, "[", cycle.size() - kShown, " others] -> ");
      i = cycle.size() - 1;
    }
    absl::StrAppend(&text, name(cycle[i]), " -> ");
  }
  return text + name(cycle[0]);
}

}  // namespace autopart::internal
