#include "partitioner/internal/blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace autopart::internal {
namespace {

// Communication that crosses each place between two neighbours of the order; entry p: before p.
std::vector<double> Crossing(const Problem& problem, const Order& order) {
  std::vector<int> position(order.size());
  for (size_t p = 0; p < order.size(); ++p) position[order[p]] = static_cast<int>(p);
  std::vector<double> crossing(order.size() + 1);
  for (const Tensor& tensor : problem.tensors) {
    int first = tensor.producer == kCaller ? 0 : std::numeric_limits<int>::max();
    int last = 0;
    for (const int n : tensor.nodes) {
      first = std::min(first, position[n]);
      last = std::max(last, position[n]);
    }
    const double ms = tensor.forward_ms + tensor.backward_ms;
    crossing[first + 1] += ms;
    crossing[last + 1] -= ms;
  }
  for (size_t p = 1; p < crossing.size(); ++p) crossing[p] += crossing[p - 1];
  return crossing;
}

double FiniteWork(const Node& node) {
  return std::isinf(node.work_ms) ? node.cpu_ms : node.work_ms;
}

}  // namespace

Blocks::Blocks(const Problem& problem, const Order& order, int max_blocks, bool with_memory)
    : of_node(problem.nodes.size()) {
  Cut(problem, order, max_blocks);
  work_ms.resize(count);
  cpu_ms.resize(count);
  needs_cpu.resize(count);
  for (size_t n = 0; n < problem.nodes.size(); ++n) {
    const Node& node = problem.nodes[n];
    const int b = of_node[n];
    if (std::isinf(node.work_ms)) {
      needs_cpu[b] = true;
    } else {
      work_ms[b] += node.work_ms;
    }
    cpu_ms[b] += node.cpu_ms;
  }
  FillTensors(problem);
  if (with_memory) FillMemory(problem);
}

void Blocks::Cut(const Problem& problem, const Order& order, int max_blocks) {
  const int num_nodes = static_cast<int>(order.size());
  if (num_nodes <= max_blocks) {
    count = num_nodes;
    for (int p = 0; p < num_nodes; ++p) of_node[order[p]] = p;
    return;
  }
  // A stretch is a bucket of equal work, and of equal number where work is scarce; each ends at its
  // place of least crossing.
  const std::vector<double> crossing = Crossing(problem, order);
  double total = 0;
  for (const Node& node : problem.nodes) total += FiniteWork(node);
  const double share = total > 0 ? 0.75 : 0;  // of a bucket's size by work, the rest by number
  std::vector<bool> cut_before(num_nodes + 1);
  double filled = 0;
  int bucket = 0, best = -1;
  for (int p = 1; p < num_nodes; ++p) {
    const double work = total > 0 ? FiniteWork(problem.nodes[order[p - 1]]) / total : 0;
    filled += share * work + (1 - share) / num_nodes;
    if (best < 0 || crossing[p] < crossing[best]) best = p;
    if (filled * max_blocks >= bucket + 1) {
      cut_before[best] = true;
      best = -1;
      bucket = static_cast<int>(filled * max_blocks);
    }
  }
  int block = 0;
  for (int p = 0; p < num_nodes; ++p) {
    block += cut_before[p];
    of_node[order[p]] = block;
  }
  count = block + 1;
}

void Blocks::FillTensors(const Problem& problem) {
  std::vector<Lists<Touch>::Entry> entries;
  std::vector<int> touched;
  for (const Tensor& tensor : problem.tensors) {
    const int home = tensor.producer == kCaller ? 0 : of_node[tensor.producer];
    touched.assign(1, home);
    for (const int n : tensor.nodes) touched.push_back(of_node[n]);
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (size_t i = 0; touched.size() > 1 && i < touched.size(); ++i) {
      Touch touch = {kNever, kNever, home, tensor.forward_ms, tensor.backward_ms};
      if (i + 1 < touched.size()) touch.next = touched[i + 1];
      if (i == 0) touch.last = touched.back();
      entries.push_back({touched[i], touch});
    }
  }
  touches = Lists<Touch>(entries, count);
}

void Blocks::FillMemory(const Problem& problem) {
  resident_bytes.resize(count);
  gradient_bytes.resize(count);
  flight_bytes.resize(count);
  temporary_bytes.resize(count);
  const int num_levels = problem.num_recompute_levels;
  if (num_levels > 1) {
    again_ms.resize(static_cast<size_t>(count) * num_levels);
    again_flight_bytes.resize(again_ms.size());
  }
  std::vector<Lists<ReadAgain>::Entry> read_entries;
  std::vector<Lists<int>::Entry> save_entries, produce_entries, shared_entries;
  for (size_t n = 0; n < problem.nodes.size(); ++n) {
    const Node& node = problem.nodes[n];
    const int b = of_node[n];
    resident_bytes[b] += node.resident_bytes;
    gradient_bytes[b] += node.gradient_bytes;
    flight_bytes[b] += node.flight_bytes;
    temporary_bytes[b] = std::max(temporary_bytes[b], node.temporary_bytes);
    for (const int value : node.saves) save_entries.push_back({b, value});
    for (const ReadAgain& read : node.reads) read_entries.push_back({b, read});
    for (int l = 0; l < num_levels && !node.again_ms.empty(); ++l) {
      again_ms[b * num_levels + l] += node.again_ms[l];
      again_flight_bytes[b * num_levels + l] += node.again_flight_bytes[l];
    }
  }
  std::vector<int> users;
  for (const SharedBytes& item : problem.shared) {
    users.clear();
    for (const int n : item.nodes) users.push_back(of_node[n]);
    std::sort(users.begin(), users.end());
    users.erase(std::unique(users.begin(), users.end()), users.end());
    if (users.size() == 1) {
      resident_bytes[users[0]] += item.bytes;
      gradient_bytes[users[0]] += item.gradient_bytes;
      continue;
    }
    for (const int b : users) shared_entries.push_back({b, static_cast<int>(shared_items.size())});
    shared_items.push_back({{}, item.bytes, item.gradient_bytes});
  }
  saved_values = problem.saved_values;
  for (size_t v = 0; v < saved_values.size(); ++v) {
    SavedValue& value = saved_values[v];
    value.producer = value.producer == kCaller ? 0 : of_node[value.producer];
    produce_entries.push_back({value.producer, static_cast<int>(v)});
  }
  reads = Lists<ReadAgain>(read_entries, count);
  saves = Lists<int>(save_entries, count);
  produces = Lists<int>(produce_entries, count);
  shared = Lists<int>(shared_entries, count);
}

}  // namespace autopart::internal
