#include "partitioner/internal/bounds.h"

#include <algorithm>
#include <cmath>

#include "partitioner/internal/chain_bound.h"

namespace autopart::internal {
namespace {

// Least T for which the work fits into T per accelerator and per CPU when nodes may be split. By
// LP duality the nodes that gain most from a CPU go there first.
double AverageBound(const Problem& problem) {
  double accelerators = problem.num_stages;
  const double cpus = problem.num_cpus;
  if (!problem.device_types.empty()) accelerators = 0;
  for (const DeviceType& type : problem.device_types) accelerators += type.count * type.speed;
  double on_accelerators = 0, on_cpus = 0;
  std::vector<const Node*> movable;
  for (const Node& node : problem.nodes) {
    if (std::isinf(node.work_ms)) {
      on_cpus += node.cpu_ms;
    } else {
      on_accelerators += node.work_ms;
      if (node.work_ms > 0) movable.push_back(&node);
    }
  }
  if (cpus == 0) return on_accelerators / accelerators;
  std::sort(movable.begin(), movable.end(), [](const Node* a, const Node* b) {
    return a->cpu_ms * b->work_ms < b->cpu_ms * a->work_ms;  // CPU time per accelerator time
  });
  for (const Node* node : movable) {
    // Move the share x of the node at which both kinds of device are equally full.
    const double difference = on_accelerators / accelerators - on_cpus / cpus;
    if (difference <= 0) break;
    const double x = difference / (node->work_ms / accelerators + node->cpu_ms / cpus);
    on_accelerators -= std::min(x, 1.0) * node->work_ms;
    on_cpus += std::min(x, 1.0) * node->cpu_ms;
    if (x < 1) break;
  }
  return std::max(on_accelerators / accelerators, on_cpus / cpus);
}

double HeaviestNode(const Problem& problem) {
  double rate = problem.device_types.empty() ? 1 : 0;  // work that a stage does in a millisecond
  for (const DeviceType& type : problem.device_types) {
    for (const int d : problem.replicas) {
      if (d <= type.count) rate = std::max(rate, d * type.speed);
    }
  }
  double heaviest = 0;
  for (const Node& node : problem.nodes) {
    const double ms = node.work_ms / rate;
    heaviest = std::max(heaviest, problem.num_cpus > 0 ? std::min(ms, node.cpu_ms) : ms);
  }
  return heaviest;
}

}  // namespace

LowerBound BoundOf(const Problem& problem) {
  const double average = AverageBound(problem), heaviest = HeaviestNode(problem);
  return average >= heaviest ? LowerBound{average, "average"} : LowerBound{heaviest, "indivisible"};
}

LowerBound BetterBound(const Problem& problem, const LowerBound& known, const BoundEffort& effort) {
  // Without a limit on time, what counts is how long sets of ancestors take to add up: 20 ms.
  constexpr size_t kMostNodesByDefault = 3000;
  constexpr int64_t kStepsByDefault = 10'000'000;  // 5 to 10 ns each
  // Sets of ancestors, by stretches of 2 to 3 stages: about 1.3 n^2 / stages bytes in all.
  constexpr double kMostBytes = 4e8;
  LowerBound bound = known;
  const double num_nodes = static_cast<double>(problem.nodes.size());
  if (!problem.device_types.empty() || num_nodes < 1) return bound;
  if (!effort.stop && problem.nodes.size() > kMostNodesByDefault) return bound;
  if (1.3 * num_nodes * num_nodes / (problem.num_stages + problem.num_cpus) > kMostBytes) {
    return bound;
  }
  ChainBoundOptions options;
  options.value_ms = effort.value_ms;
  options.bound_ms = known.value_ms;
  if (effort.stop) options.stop = effort.stop;
  if (!effort.stop) options.max_steps = kStepsByDefault;
  const double chain = ChainBound(problem, options);
  if (chain > bound.value_ms) bound = {chain, "chain"};
  return bound;
}

}  // namespace autopart::internal
