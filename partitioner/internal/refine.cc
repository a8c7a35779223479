#include "partitioner/internal/refine.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace autopart::internal {
namespace {

constexpr size_t kMostTogether = 60;  // nodes of a move; larger sets are better left to slicing

struct Load {
  double work_ms = 0, cpu_ms = 0, send_ms = 0, receive_ms = 0;
};

class Refiner {
 public:
  Refiner(const Problem& problem, const Assignment& assignment)
      : problem_(problem),
        assignment_(assignment),
        place_(assignment_.stage_of_node),
        num_stages_(static_cast<int>(assignment.is_cpu.size())),
        tensors_of_node_(problem.nodes.size()),
        loads_(num_stages_),
        population_(num_stages_),
        mark_(problem.nodes.size()) {
    for (size_t t = 0; t < problem.tensors.size(); ++t) {
      for (const int v : problem.tensors[t].nodes) {
        tensors_of_node_[v].push_back(static_cast<int>(t));
      }
      stages_.assign(1, problem.tensors[t].producer == kCaller ? 0 : -1);
      for (const int v : problem.tensors[t].nodes) stages_.push_back(place_[v]);
      std::sort(stages_.begin(), stages_.end());
      stages_.erase(std::unique(stages_.begin(), stages_.end()), stages_.end());
      Charge(problem.tensors[t], 1);
    }
    for (size_t v = 0; v < problem.nodes.size(); ++v) MoveWork(static_cast<int>(v), place_[v], 1);
  }

  Refined Run(int max_passes) {
    int moves = 0;
    for (int pass = 0; pass < max_passes; ++pass) {
      const int before = moves;
      for (size_t i = 0; i < place_.size(); ++i) {
        const int v = static_cast<int>(pass % 2 == 0 ? i : place_.size() - 1 - i);
        for (const int step : {1, -1}) moves += TryMove(v, step);
      }
      if (moves == before) break;
    }
    return {assignment_, Heaviest(), moves};
  }

  double Heaviest() const {
    double heaviest = 0;
    for (int s = 0; s < num_stages_; ++s) heaviest = std::max(heaviest, LoadOf(s));
    return heaviest;
  }

 private:
  double LoadOf(int stage) const {
    const Load& load = loads_[stage];
    if (assignment_.is_cpu[stage]) return load.cpu_ms;
    return problem_.objective == Objective::kSum
               ? load.work_ms + load.send_ms + load.receive_ms
               : std::max({load.work_ms, load.send_ms, load.receive_ms});
  }

  void MoveWork(int v, int stage, int sign) {
    loads_[stage].work_ms += sign * problem_.nodes[v].work_ms;
    loads_[stage].cpu_ms += sign * problem_.nodes[v].cpu_ms;
    population_[stage] += sign;
  }

  // What the stages in stages_ pay for a tensor, as places are now.
  void Charge(const Tensor& tensor, int sign) {
    const int home = tensor.producer == kCaller ? 0 : place_[tensor.producer];
    for (const int stage : stages_) {
      if (stage < 0) continue;
      bool here = home == stage, elsewhere = home != stage;
      for (const int v : tensor.nodes) (place_[v] == stage ? here : elsewhere) = true;
      if (!here || !elsewhere) continue;
      const bool sends = home == stage;
      loads_[stage].send_ms += sign * (sends ? tensor.forward_ms : tensor.backward_ms);
      loads_[stage].receive_ms += sign * (sends ? tensor.backward_ms : tensor.forward_ms);
    }
  }

  // The node and all that has to go with it. Empty if too many do.
  void Collect(int v, int step) {
    set_.assign(1, v);
    mark_[v] = ++stamp_;
    for (size_t i = 0; i < set_.size(); ++i) {
      const Node& node = problem_.nodes[set_[i]];
      for (const int next : step > 0 ? node.successors : node.predecessors) {
        if (place_[next] != place_[v] || mark_[next] == stamp_) continue;
        mark_[next] = stamp_;
        set_.push_back(next);
        if (set_.size() > kMostTogether) return set_.clear();
      }
    }
  }

  bool TryMove(int v, int step) {
    const int from = place_[v], to = from + step;
    if (to < 0 || to >= num_stages_) return false;
    // Only moves off the heavier of the two can help.
    if (LoadOf(from) < LoadOf(to)) return false;
    Collect(v, step);
    if (set_.empty()) return false;
    const int left = population_[from] - static_cast<int>(set_.size());
    if (left == 0) return false;  // a stage is empty by choice, or may not be
    const Load old_from = loads_[from], old_to = loads_[to];
    const double heaviest = std::max(LoadOf(from), LoadOf(to));
    const double potential = Potential(from, to, heaviest);
    Shift(from, to);
    if (Potential(from, to, heaviest) < potential * (1 - 1e-9)) return true;
    Shift(to, from);
    loads_[from] = old_from;  // without the rounding of the way there and back
    loads_[to] = old_to;
    return false;
  }

  void Shift(int from, int to) {
    touched_.clear();
    for (const int v : set_) {
      touched_.insert(touched_.end(), tensors_of_node_[v].begin(), tensors_of_node_[v].end());
    }
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    // Another stage pays for a tensor whether its other nodes are here or there.
    stages_ = {from, to};
    for (const int t : touched_) Charge(problem_.tensors[t], -1);
    for (const int v : set_) {
      MoveWork(v, from, -1);
      place_[v] = to;
      MoveWork(v, to, 1);
    }
    for (const int t : touched_) Charge(problem_.tensors[t], 1);
  }

  double Potential(int a, int b, double heaviest) const {
    if (heaviest <= 0) return 0;
    const auto power = [&](int stage) { return std::pow(LoadOf(stage) / heaviest, 24); };
    return power(a) + power(b);
  }

  const Problem& problem_;
  Assignment assignment_;
  std::vector<int>& place_;  // of assignment_
  const int num_stages_;
  std::vector<std::vector<int>> tensors_of_node_;
  std::vector<Load> loads_;
  std::vector<int> population_;
  std::vector<int> set_, touched_, stages_;
  std::vector<int> mark_;
  int stamp_ = 0;
};

}  // namespace

bool IsRefinable(const Problem& problem) {
  if (problem.HasStageOptions() || !problem.link_slowness.empty()) return false;
  if (!std::isinf(problem.memory_bytes)) return false;
  return std::none_of(problem.nodes.begin(), problem.nodes.end(),
                      [](const Node& node) { return std::isinf(node.work_ms); });
}

Refined Refine(const Problem& problem, const Assignment& assignment, int max_passes) {
  const double value_ms = Refiner(problem, assignment).Heaviest();
  if (!IsRefinable(problem)) return {assignment, value_ms, 0};
  Refined refined = Refiner(problem, assignment).Run(max_passes);
  // Sums drift by rounding while nodes move: the value is that of a fresh count.
  refined.value_ms = Refiner(problem, refined.assignment).Heaviest();
  if (refined.value_ms <= value_ms) return refined;
  return {assignment, value_ms, 0};
}

}  // namespace autopart::internal
