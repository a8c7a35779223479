#include "partitioner/internal/order.h"

#include <algorithm>
#include <queue>

namespace autopart::internal {
namespace {

// The tensors of each node.
std::vector<std::vector<int>> TensorsOfNodes(const Problem& problem) {
  std::vector<std::vector<int>> tensors(problem.nodes.size());
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    for (const int n : problem.tensors[t].nodes) tensors[n].push_back(static_cast<int>(t));
  }
  return tensors;
}

// What placing a node would add to the communication that crosses the cut behind it: the tensors
// that it is the first to touch, less those that it is the last to touch. Kept up to date as nodes
// are placed; a tensor changes the others' figures at most twice.
class CutGrowth {
 public:
  CutGrowth(const Problem& problem, bool from_sinks, double noise, Random& random)
      : problem_(problem),
        tensors_(TensorsOfNodes(problem)),
        cost_(problem.tensors.size()),
        placed_(problem.tensors.size()),
        growth_(problem.nodes.size()) {
    for (size_t t = 0; t < problem.tensors.size(); ++t) {
      const Tensor& tensor = problem.tensors[t];
      cost_[t] = (tensor.forward_ms + tensor.backward_ms) * (1 + noise * random.Uniform());
      // The caller stands before all nodes.
      if (tensor.producer == kCaller && !from_sinks) placed_[t] = 1;
    }
    for (size_t n = 0; n < problem.nodes.size(); ++n) {
      for (const int t : tensors_[n]) growth_[n] += Effect(t);
    }
  }

  double of(int node) const { return growth_[node]; }

  // Calls changed(other) for each node whose figure has changed.
  template <typename F>
  void Place(int node, F&& changed) {
    for (const int t : tensors_[node]) {
      const double before = Effect(t);
      ++placed_[t];
      const double after = Effect(t);
      if (before == after) continue;
      for (const int other : problem_.tensors[t].nodes) {
        growth_[other] += after - before;
        changed(other);
      }
    }
  }

 private:
  int Total(int t) const {
    const Tensor& tensor = problem_.tensors[t];
    return static_cast<int>(tensor.nodes.size()) + (tensor.producer == kCaller);
  }
  // Of the next node placed that touches tensor t.
  double Effect(int t) const {
    if (placed_[t] == 0) return cost_[t];
    return placed_[t] == Total(t) - 1 ? -cost_[t] : 0;
  }

  const Problem& problem_;
  std::vector<std::vector<int>> tensors_;
  std::vector<double> cost_;
  std::vector<int> placed_;
  std::vector<double> growth_;
};

struct Ready {
  int rank;
  double key;  // smallest first
  int stamp;   // largest first: the youngest among equals
  int node;

  bool operator<(const Ready& other) const {  // std::priority_queue takes the largest
    if (rank != other.rank) return rank > other.rank;
    if (key != other.key) return key > other.key;
    return stamp < other.stamp;
  }
};

class Kahn {
 public:
  Kahn(const Problem& problem, const OrderOptions& options, Random& random)
      : problem_(problem), options_(options), random_(random), waiting_(problem.nodes.size()) {}

  Order Run() {
    const int num_nodes = static_cast<int>(problem_.nodes.size());
    std::vector<int> sources;
    for (int n = 0; n < num_nodes; ++n) {
      waiting_[n] = static_cast<int>(Before(n).size());
      if (waiting_[n] == 0) sources.push_back(n);
    }
    // The youngest of equals goes first: release in reverse to keep the model's own order.
    if (!options_.from_sinks) std::reverse(sources.begin(), sources.end());
    Order order =
        options_.rule == ReadyRule::kLeastCommunication ? ByGrowth(sources) : ByStamp(sources);
    if (options_.from_sinks) std::reverse(order.begin(), order.end());
    return order;
  }

 private:
  const std::vector<int>& Before(int n) const {
    return options_.from_sinks ? problem_.nodes[n].successors : problem_.nodes[n].predecessors;
  }
  const std::vector<int>& After(int n) const {
    return options_.from_sinks ? problem_.nodes[n].predecessors : problem_.nodes[n].successors;
  }
  int Rank(int n) const {
    if (options_.rank.empty()) return 0;
    return options_.from_sinks ? -options_.rank[n] : options_.rank[n];
  }

  void Shuffle(std::vector<int>& nodes) {
    if (options_.noise == 0) return;
    for (size_t i = nodes.size(); i > 1; --i) {
      if (random_.Uniform() < options_.noise) {
        std::swap(nodes[i - 1], nodes[random_.Below(static_cast<int>(i))]);
      }
    }
  }

  // The nodes that placing n makes ready, in the order in which to release them.
  std::vector<int> Freed(int n) {
    std::vector<int> freed;
    for (const int s : After(n)) {
      if (--waiting_[s] == 0) freed.push_back(s);
    }
    if (!options_.from_sinks) std::reverse(freed.begin(), freed.end());
    Shuffle(freed);
    return freed;
  }

  Order ByStamp(std::vector<int> sources) {
    std::priority_queue<Ready> ready;
    int stamp = 0;
    const auto key = [&] {
      if (options_.rule == ReadyRule::kRandom) return random_.Uniform();
      return options_.rule == ReadyRule::kBreadthFirst ? static_cast<double>(stamp) : 0.0;
    };
    const auto release = [&](const std::vector<int>& nodes) {
      for (const int n : nodes) {
        ready.push({Rank(n), key(), stamp, n});
        ++stamp;
      }
    };
    Shuffle(sources);
    release(sources);
    Order order;
    order.reserve(problem_.nodes.size());
    while (!ready.empty()) {
      const int n = ready.top().node;
      ready.pop();
      order.push_back(n);
      release(Freed(n));
    }
    return order;
  }

  Order ByGrowth(std::vector<int> sources) {
    CutGrowth growth(problem_, options_.from_sinks, options_.noise, random_);
    std::priority_queue<Ready> ready;  // may hold old figures of a node: the newest counts
    std::vector<int> stamp_of(problem_.nodes.size(), -1);
    std::vector<double> pushed(problem_.nodes.size());
    std::vector<bool> placed(problem_.nodes.size());
    int stamp = 0;
    const auto push = [&](int n) {
      pushed[n] = growth.of(n);
      ready.push({Rank(n), pushed[n], stamp_of[n], n});
    };
    const auto release = [&](const std::vector<int>& nodes) {
      for (const int n : nodes) {
        stamp_of[n] = stamp++;
        push(n);
      }
    };
    Shuffle(sources);
    release(sources);
    Order order;
    order.reserve(problem_.nodes.size());
    while (!ready.empty()) {
      const Ready top = ready.top();
      ready.pop();
      if (placed[top.node] || top.key != pushed[top.node]) continue;
      placed[top.node] = true;
      order.push_back(top.node);
      growth.Place(top.node, [&](int other) {
        if (stamp_of[other] >= 0 && !placed[other] && pushed[other] != growth.of(other)) {
          push(other);
        }
      });
      release(Freed(top.node));
    }
    return order;
  }

  const Problem& problem_;
  const OrderOptions& options_;
  Random& random_;
  std::vector<int> waiting_;  // arcs into each node from nodes not yet placed
};

}  // namespace

Order MakeOrder(const Problem& problem, const OrderOptions& options, Random& random) {
  return Kahn(problem, options, random).Run();
}

}  // namespace autopart::internal
