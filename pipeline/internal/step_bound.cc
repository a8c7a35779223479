// A certified lower bound on the time of a step, which no simulation can be below.
//
// With p stages of d replicas, some replica of every stage does k = ceil(M/d) micro-batches (the
// first one does, by the placement rule). Those p ranks together do at least k times all work W of
// the graph, so that one of them is busy for k W / p: "work". The stage that has the heaviest group
// of nodes that must stay together (H) is busy for k H: "indivisible". One micro-batch passes
// forwards along any path of gradients and then backwards along it: "path". The bound is the
// largest of the three for the (p, d) where that is smallest. With unequal replicas, all work is
// spread over all devices at best, and with unequal devices by their speeds. Messages, reductions
// and the optimizer count nothing.
#include "pipeline/internal/step_bound.h"

#include <algorithm>
#include <map>

#include "pipeline/simulate.h"

namespace autopart::internal {

StepBound ComputeStepBound(const CostGraph& graph, const Cluster& cluster, std::string_view dtype,
                           const std::vector<std::pair<int, int>>& shapes, int micro_batches,
                           bool training) {
  // Devices of the costs that all devices are worth, and the fastest of them.
  double devices = 0;
  double fastest = 0;
  std::vector<double> slowness = RankSlowness(cluster, dtype);
  if (slowness.empty()) slowness.assign(cluster.num_devices(), 1);
  for (const double factor : slowness) {
    devices += 1 / factor;
    fastest = std::max(fastest, 1 / factor);
  }
  const auto work_of = [&](const CostNode& node) {
    return node.forward_ms + (training ? node.backward_input_ms + node.backward_weight_ms : 0);
  };
  double work = 0;
  double heaviest = 0;
  std::map<int, double> groups;
  for (const CostNode& node : graph.nodes) {
    work += work_of(node);
    heaviest = std::max(
        heaviest, node.group == kNoGroup ? work_of(node) : groups[node.group] += work_of(node));
  }

  // Longest path that ends with each node; values and nodes are in the order in which they run.
  std::vector<double> until(graph.nodes.size());
  std::vector<std::vector<int>> outputs(graph.nodes.size());
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].producer != kModelInput) outputs[graph.values[v].producer].push_back(v);
  }
  double path = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    until[n] += work_of(graph.nodes[n]);
    path = std::max(path, until[n]);
    for (const int v : outputs[n]) {
      if (training && graph.values[v].gradient_bytes == 0) continue;
      if (graph.nodes[n].copyable) continue;
      for (const int reader : graph.values[v].consumers) {
        until[reader] = std::max(until[reader], until[n]);
      }
    }
  }

  StepBound best;
  const auto offer = [&](double work_ms, double heaviest_ms) {
    StepBound bound{work_ms, "work"};
    if (heaviest_ms > bound.ms) bound = {heaviest_ms, "indivisible"};
    if (path / fastest > bound.ms) bound = {path / fastest, "path"};
    if (best.kind.empty() || bound.ms < best.ms) best = bound;
  };
  const int n = slowness.size();
  for (const auto& [p, d] : shapes) {
    const double rounds = (micro_batches + d - 1) / d;
    offer(std::max(rounds * work / p / fastest, micro_batches * work / devices),
          rounds * heaviest / fastest);
  }
  // Unequal replicas: a stage has at most all devices but one for each other stage.
  if (n > 2 || devices < n) {
    offer(micro_batches * work / devices, (micro_batches + n - 2) / (n - 1) * heaviest / fastest);
  }
  // Sums in another order may differ in the last bits.
  best.ms *= 1 - 1e-12;
  return best;
}

}  // namespace autopart::internal
