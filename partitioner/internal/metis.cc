// The only file that includes metis.h. What Debian's METIS 5.1.0 needs from its caller:
// - two parts at a time: one part divides by zero, and asked for more parts than its coarsest graph
//   can fill it prints to stdout;
// - never an empty adjacency (it reads the first entry);
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

// Part of the graph, on its own.
UndirectedGraph Subgraph(const UndirectedGraph& graph, const std::vector<int>& nodes,
                         std::vector<int>& place) {
  UndirectedGraph sub;
  sub.num_constraints = graph.num_constraints;
  sub.begin = {0};
  for (size_t i = 0; i < nodes.size(); ++i) place[nodes[i]] = static_cast<int>(i);
  for (const int node : nodes) {
    for (int e = graph.begin[node]; e < graph.begin[node + 1]; ++e) {
      const int other = place[graph.adjacent[e]];
      if (other < 0) continue;
      sub.adjacent.push_back(other);
      sub.edge_weight.push_back(graph.edge_weight[e]);
    }
    sub.begin.push_back(static_cast<int32_t>(sub.adjacent.size()));
    for (int c = 0; c < graph.num_constraints; ++c) {
      sub.node_weight.push_back(graph.node_weight[node * graph.num_constraints + c]);
    }
  }
  for (const int node : nodes) place[node] = -1;
  return sub;
}

// Shares of the work without regard to edges: a prefix of the nodes.
std::vector<int> BisectInOrder(const UndirectedGraph& graph, double share) {
  const int num_nodes = static_cast<int>(graph.begin.size()) - 1;
  double work = 0;
  for (int n = 0; n < num_nodes; ++n) work += graph.node_weight[n * graph.num_constraints];
  const double least = work > 0 ? 1e-9 * work / num_nodes : 1;  // without work, by number
  const double total = work + num_nodes * least;
  double before = 0;
  std::vector<int> side(num_nodes);
  for (int n = 0; n < num_nodes; ++n) {
    const double weight = graph.node_weight[n * graph.num_constraints] + least;
    side[n] = before + weight / 2 < share * total ? 0 : 1;
    before += weight;
  }
  return side;
}

std::vector<int> Bisect(const UndirectedGraph& graph, double share) {
  if (graph.adjacent.empty()) return BisectInOrder(graph, share);
  idx_t nodes = static_cast<idx_t>(graph.begin.size()) - 1, cut = 0, parts = 2;
  idx_t constraints = graph.num_constraints;
  std::vector<idx_t> begin = ToIdx(graph.begin), adjacent = ToIdx(graph.adjacent),
                     node_weight = ToIdx(graph.node_weight), edge_weight = ToIdx(graph.edge_weight),
                     side(nodes);
  std::vector<real_t> shares(constraints, static_cast<real_t>(share));
  shares.resize(2 * constraints, static_cast<real_t>(1 - share));
  std::array<idx_t, METIS_NOPTIONS> options;
  METIS_SetDefaultOptions(options.data());
  options[METIS_OPTION_SEED] = 1;
  static absl::Mutex one_call(absl::kConstInit);
  const absl::MutexLock lock(&one_call);
  const OwnRand own_rand;
  const int status = METIS_PartGraphRecursive(
      &nodes, &constraints, begin.data(), adjacent.data(), node_weight.data(), nullptr,
      edge_weight.data(), &parts, shares.data(), nullptr, options.data(), &cut, side.data());
  // A guide may fail: any parts rank the nodes.
  if (status != METIS_OK) return BisectInOrder(graph, share);
  return std::vector<int>(side.begin(), side.end());
}

void BisectAll(const UndirectedGraph& graph, const std::vector<int>& nodes, int first_part,
               int num_parts, std::vector<int>& place, std::vector<int>& part) {
  if (num_parts == 1 || nodes.size() <= 1) {
    for (const int node : nodes) part[node] = first_part;
    return;
  }
  if (static_cast<int>(nodes.size()) <= num_parts) {
    for (size_t i = 0; i < nodes.size(); ++i) part[nodes[i]] = first_part + static_cast<int>(i);
    return;
  }
  const int left_parts = num_parts / 2;
  const std::vector<int> side =
      Bisect(Subgraph(graph, nodes, place), static_cast<double>(left_parts) / num_parts);
  std::vector<int> halves[2];
  for (size_t i = 0; i < nodes.size(); ++i) halves[side[i]].push_back(nodes[i]);
  BisectAll(graph, halves[0], first_part, left_parts, place, part);
  BisectAll(graph, halves[1], first_part + left_parts, num_parts - left_parts, place, part);
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
  const bool with_bytes = !std::isinf(problem.memory_bytes) &&
                          std::any_of(bytes.begin(), bytes.end(), [](double b) { return b > 0; });
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
  std::vector<int> part(num_nodes), place(num_nodes, -1), nodes(num_nodes);
  if (num_parts <= 1) return part;
  const UndirectedGraph graph = MakeUndirected(problem);
  assert(IsSound(graph));
  std::iota(nodes.begin(), nodes.end(), 0);
  BisectAll(graph, nodes, 0, num_parts, place, part);
  return part;
}

}  // namespace autopart::internal
