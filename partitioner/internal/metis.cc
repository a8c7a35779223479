// The only file that includes metis.h. What Debian's METIS 5.1.0 needs from its caller:
// - never num_parts = 1 (divides by zero), never an empty adjacency (reads its first entry);
// - totals within 32 bits (idx_t), symmetric adjacency without repeats (else a corrupt heap);
// - one call at a time: it uses rand() and the process's signal handlers. It runs on a generator
//   state of our own, so the program's sequence of rand() goes on as if it had not run.
#include "partitioner/internal/metis.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include <metis.h>
#include <stdlib.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace autopart::internal {
namespace {

constexpr int32_t kTotal = 1 << 28;  // of all weights of one kind

// Weights in proportion, of total at most kTotal plus one each; zeros stay `least`.
std::vector<int32_t> Scale(const std::vector<double>& weights, int32_t least) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int32_t> scaled(weights.size(), 1);
  if (!(total > 0) || std::isinf(total)) return scaled;
  for (size_t i = 0; i < weights.size(); ++i) {
    scaled[i] = std::max(least, static_cast<int32_t>(weights[i] / total * kTotal));
  }
  return scaled;
}

double BytesOf(const Node& node) {
  return node.resident_bytes + node.flight_bytes + node.temporary_bytes;
}

// Swaps the state behind rand() for one of our own while it lives.
class OwnRand {
 public:
  OwnRand() : previous_(initstate(1, state_.data(), state_.size())) {}
  ~OwnRand() { setstate(previous_); }
  OwnRand(const OwnRand&) = delete;
  OwnRand& operator=(const OwnRand&) = delete;

 private:
  std::array<char, 256> state_;
  char* previous_;
};

std::vector<idx_t> ToIdx(const std::vector<int32_t>& values) {
  return std::vector<idx_t>(values.begin(), values.end());
}

// Equal work for each part, in the order of the nodes.
std::vector<int> SplitInOrder(const Problem& problem, int num_parts) {
  const int num_nodes = static_cast<int>(problem.nodes.size());
  std::vector<double> work;
  for (const Node& node : problem.nodes) {
    work.push_back(std::isinf(node.work_ms) ? node.cpu_ms : node.work_ms);
  }
  const std::vector<int32_t> weights = Scale(work, 0);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int> part(num_nodes);
  double before = 0;
  for (int n = 0; n < num_nodes; ++n) {
    const double middle = (before + weights[n] / 2.0) / total;
    part[n] = std::min(num_parts - 1, static_cast<int>(middle * num_parts));
    before += weights[n];
  }
  return part;
}

}  // namespace

UndirectedGraph MakeUndirected(const Problem& problem) {
  struct Edge {
    int a, b;
    double weight;
  };
  std::vector<Edge> edges;
  for (const Tensor& tensor : problem.tensors) {
    const int hub = tensor.producer == kCaller ? tensor.nodes[0] : tensor.producer;
    for (const int n : tensor.nodes) {
      if (n == hub) continue;
      edges.push_back({hub, n, tensor.forward_ms + tensor.backward_ms});
      edges.push_back({n, hub, tensor.forward_ms + tensor.backward_ms});
    }
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& x, const Edge& y) {
    return std::tie(x.a, x.b, x.weight) < std::tie(y.a, y.b, y.weight);
  });
  std::vector<Edge> merged;
  for (const Edge& edge : edges) {
    if (!merged.empty() && merged.back().a == edge.a && merged.back().b == edge.b) {
      merged.back().weight += edge.weight;
    } else {
      merged.push_back(edge);
    }
  }

  UndirectedGraph graph;
  const int num_nodes = static_cast<int>(problem.nodes.size());
  std::vector<double> weights;
  graph.begin.assign(num_nodes + 1, 0);
  for (const Edge& edge : merged) {
    ++graph.begin[edge.a + 1];
    graph.adjacent.push_back(edge.b);
    weights.push_back(edge.weight);
  }
  std::partial_sum(graph.begin.begin(), graph.begin.end(), graph.begin.begin());
  graph.edge_weight = Scale(weights, 1);

  std::vector<double> work, bytes;
  for (const Node& node : problem.nodes) {
    work.push_back(std::isinf(node.work_ms) ? node.cpu_ms : node.work_ms);
    bytes.push_back(BytesOf(node));
  }
  const bool with_bytes = std::any_of(bytes.begin(), bytes.end(), [](double b) { return b > 0; });
  graph.num_constraints = with_bytes ? 2 : 1;
  const std::vector<int32_t> scaled_work = Scale(work, 0), scaled_bytes = Scale(bytes, 0);
  for (int n = 0; n < num_nodes; ++n) {
    graph.node_weight.push_back(scaled_work[n]);
    if (with_bytes) graph.node_weight.push_back(scaled_bytes[n]);
  }
  return graph;
}

bool IsSound(const UndirectedGraph& graph) {
  const int num_nodes = static_cast<int>(graph.begin.size()) - 1;
  const auto weight_of = [&](int a, int b) {  // 0 where there is no edge
    const auto first = graph.adjacent.begin() + graph.begin[a];
    const auto last = graph.adjacent.begin() + graph.begin[a + 1];
    const auto it = std::lower_bound(first, last, b);
    return it != last && *it == b ? graph.edge_weight[it - graph.adjacent.begin()] : 0;
  };
  int64_t total_edges = 0, total_nodes = 0;
  for (int a = 0; a < num_nodes; ++a) {
    for (int e = graph.begin[a]; e < graph.begin[a + 1]; ++e) {
      const int b = graph.adjacent[e];
      if (b < 0 || b >= num_nodes || b == a) return false;
      if (e > graph.begin[a] && graph.adjacent[e - 1] >= b) return false;
      if (graph.edge_weight[e] < 1 || weight_of(b, a) != graph.edge_weight[e]) return false;
      total_edges += graph.edge_weight[e];
    }
  }
  for (const int32_t weight : graph.node_weight) {
    if (weight < 0) return false;
    total_nodes += weight;
  }
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  return total_edges <= kMax && total_nodes <= kMax;
}

std::vector<int> MetisParts(const Problem& problem, int num_parts) {
  const int num_nodes = static_cast<int>(problem.nodes.size());
  if (num_parts <= 1 || num_nodes <= 1) return std::vector<int>(num_nodes, 0);
  if (num_nodes <= num_parts) {
    std::vector<int> alone(num_nodes);
    std::iota(alone.begin(), alone.end(), 0);
    return alone;
  }
  const UndirectedGraph graph = MakeUndirected(problem);
  if (graph.adjacent.empty()) return SplitInOrder(problem, num_parts);
  assert(IsSound(graph));

  idx_t nodes = num_nodes, constraints = graph.num_constraints, parts = num_parts, cut = 0;
  std::vector<idx_t> begin = ToIdx(graph.begin), adjacent = ToIdx(graph.adjacent),
                     node_weight = ToIdx(graph.node_weight), edge_weight = ToIdx(graph.edge_weight),
                     part(num_nodes);
  std::array<idx_t, METIS_NOPTIONS> options;
  METIS_SetDefaultOptions(options.data());
  options[METIS_OPTION_SEED] = 1;
  int status;
  {
    static absl::Mutex one_call(absl::kConstInit);
    const absl::MutexLock lock(&one_call);
    const OwnRand own_rand;
    status = METIS_PartGraphKway(&nodes, &constraints, begin.data(), adjacent.data(),
                                 node_weight.data(), nullptr, edge_weight.data(), &parts, nullptr,
                                 nullptr, options.data(), &cut, part.data());
  }
  // A guide may fail: any parts rank the nodes.
  if (status != METIS_OK) return SplitInOrder(problem, num_parts);
  return std::vector<int>(part.begin(), part.end());
}

}  // namespace autopart::internal
