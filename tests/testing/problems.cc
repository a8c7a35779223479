#include "tests/testing/problems.h"

#include <algorithm>

namespace autopart::testing {

using internal::kCaller;
using internal::Problem;
using internal::Tensor;

void AddEdge(Problem& problem, int from, int to) {
  problem.nodes[from].successors.push_back(to);
  problem.nodes[to].predecessors.push_back(from);
}

double ValueOf(const Problem& problem, const std::vector<int>& place,
               const std::vector<bool>& cpu) {
  double worst = 0;
  for (size_t s = 0; s < cpu.size(); ++s) {
    const int stage = static_cast<int>(s);
    double work = 0, cpu_work = 0, send = 0, receive = 0;
    for (size_t v = 0; v < place.size(); ++v) {
      if (place[v] != stage) continue;
      work += problem.nodes[v].work_ms;
      cpu_work += problem.nodes[v].cpu_ms;
    }
    for (const Tensor& tensor : problem.tensors) {
      const int home = tensor.producer == kCaller ? 0 : place[tensor.producer];
      bool here = home == stage, elsewhere = home != stage;
      for (const int v : tensor.nodes) (place[v] == stage ? here : elsewhere) = true;
      if (!here || !elsewhere) continue;
      send += home == stage ? tensor.forward_ms : tensor.backward_ms;
      receive += home == stage ? tensor.backward_ms : tensor.forward_ms;
    }
    const double load = cpu[s]                                 ? cpu_work
                        : problem.objective == Objective::kSum ? work + send + receive
                                                               : std::max({work, send, receive});
    worst = std::max(worst, load);
  }
  return worst;
}

}  // namespace autopart::testing
