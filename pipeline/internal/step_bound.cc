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
#include <cmath>
#include <map>

#include "pipeline/simulate.h"

namespace autopart::internal {
namespace {

double WorkOf(const CostNode& node, bool training) {
  return node.forward_ms + (training ? node.backward_input_ms + node.backward_weight_ms : 0);
}

// Who reads the value waits for who makes it, and in training the other way round too.
bool IsWaitedFor(const CostGraph& graph, const CostValue& value, bool training) {
  if (value.producer == kModelInput) return false;
  return !(training && value.gradient_bytes == 0) && !graph.nodes[value.producer].copyable;
}

// The most work on a path along which one micro-batch goes forwards and its gradient backwards.
double LongestPathMs(const CostGraph& graph, bool training) {
  std::vector<std::vector<int>> readers(graph.nodes.size());
  for (const CostValue& value : graph.values) {
    if (!IsWaitedFor(graph, value, training)) continue;
    std::vector<int>& list = readers[value.producer];
    list.insert(list.end(), value.consumers.begin(), value.consumers.end());
  }
  std::vector<double> until(graph.nodes.size());  // nodes are in the order in which they run
  double path = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    until[n] += WorkOf(graph.nodes[n], training);
    path = std::max(path, until[n]);
    for (const int reader : readers[n]) until[reader] = std::max(until[reader], until[n]);
  }
  return path;
}

}  // namespace

PipelineWork WorkOf(const CostGraph& graph, bool training) {
  PipelineWork work;
  std::map<int, double> groups;
  for (const CostNode& node : graph.nodes) {
    const double ms = WorkOf(node, training);
    work.total_ms += ms;
    work.heaviest_ms =
        std::max(work.heaviest_ms, node.group == kNoGroup ? ms : groups[node.group] += ms);
  }
  work.path_ms = LongestPathMs(graph, training);
  return work;
}

double PipelineBoundMs(const PipelineWork& work, int stages, int own) {
  return own * std::max(work.total_ms / stages, work.heaviest_ms);
}

double AtOncePipelineBoundMs(const PipelineWork& work, int stages, int own) {
  const double share = 1 - std::pow(1 - 1.0 / own, stages);
  return std::max(PipelineBoundMs(work, stages, own), work.path_ms / share);
}

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
  const PipelineWork whole = WorkOf(graph, training);
  const double work = whole.total_ms;
  const double heaviest = whole.heaviest_ms;
  const double path = whole.path_ms;

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
