#include "partitioner/internal/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/container/flat_hash_set.h"
#include "partitioner/internal/metis.h"
#include "partitioner/internal/order.h"
#include "partitioner/internal/slice.h"

namespace autopart::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr int kIterations = 32;

// Parts in the order in which the model runs: ranked by their nodes' mean position.
std::vector<int> RankParts(const std::vector<int>& part, int num_parts, const Order& order) {
  std::vector<double> sum(num_parts), count(num_parts);
  for (size_t p = 0; p < order.size(); ++p) {
    sum[part[order[p]]] += static_cast<double>(p);
    count[part[order[p]]] += 1;
  }
  std::vector<int> parts(num_parts);
  std::iota(parts.begin(), parts.end(), 0);
  std::stable_sort(parts.begin(), parts.end(), [&](int a, int b) {
    return sum[a] * std::max(count[b], 1.0) < sum[b] * std::max(count[a], 1.0);
  });
  std::vector<int> rank_of_part(num_parts);
  for (int r = 0; r < num_parts; ++r) rank_of_part[parts[r]] = r;
  std::vector<int> rank;
  for (const int p : part) rank.push_back(rank_of_part[p]);
  return rank;
}

uint64_t Fingerprint(const Order& order) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (const int node : order) hash = (hash ^ static_cast<uint64_t>(node)) * 0x100000001b3;
  return hash;
}

class Searcher {
 public:
  Searcher(const Problem& problem, const SearchOptions& options)
      : problem_(problem), options_(options), random_(options.effort.seed) {
    // Small problems at every place. For large ones enough places that a stage's load is met within
    // a few per cent; the answer is sliced once more at all of them.
    const int num_nodes = static_cast<int>(problem.nodes.size());
    max_blocks_ = num_nodes <= 600 ? num_nodes : std::max(256, 32 * problem.num_stages);
  }

  SearchResult Run() {
    TryPlainOrders();
    TryMetisOrders();
    const int64_t rounds = Rounds();
    for (int64_t round = 0; round < rounds && !IsDone(); ++round) {
      Try(Reorder(round), SliceGoal::kEvenLoads);
    }
    if (!best_ && static_cast<int>(problem_.nodes.size()) > max_blocks_) {
      // Perhaps only the places left out make it fit.
      max_blocks_ = Everywhere();
      tried_.clear();
      TryPlainOrders();
    }
    SearchResult result;
    if (best_) {
      Finish();
      result.best = best_->assignment;
      result.value_ms = best_->max_load_ms;
    } else if (nearest_) {
      result.nearest = nearest_->assignment;
      result.nearest_bytes = nearest_->value;
    }
    return result;
  }

 private:
  bool IsDone() const { return best_ && best_->max_load_ms <= options_.bound_ms * (1 + 1e-9); }

  int Everywhere() const { return std::max(max_blocks_, 4000); }

  // Small problems are cheap, and have few near-optimal orders to find: they get more rounds. Large
  // ones get fewer.
  int64_t Rounds() const {
    const int64_t num_nodes = static_cast<int64_t>(problem_.nodes.size());
    const int64_t iterations = options_.effort.iterations.value_or(kIterations);
    if (num_nodes > 2000) return (iterations * 2000 + num_nodes - 1) / num_nodes;
    return iterations * std::clamp<int64_t>(400 / num_nodes, 1, 16);
  }

  void TryPlainOrders() {
    for (const ReadyRule rule :
         {ReadyRule::kDepthFirst, ReadyRule::kLeastCommunication, ReadyRule::kBreadthFirst}) {
      for (const bool from_sinks : {false, true}) {
        if (!IsDone()) Try(MakeOrder(problem_, {rule, from_sinks}, random_));
      }
    }
  }

  void TryMetisOrders() {
    if (IsDone()) return;
    const Order plain = MakeOrder(problem_, {ReadyRule::kDepthFirst}, random_);
    for (const int factor : {2, 1, 4}) {
      if (plain.size() > 500 && factor != 2) continue;  // a bisection is linear, but not cheap
      const int num_parts = factor * std::max(1, problem_.num_stages);
      if (num_parts < 2 || num_parts >= static_cast<int>(plain.size())) continue;
      OrderOptions guided;
      guided.rank = RankParts(MetisParts(problem_, num_parts), num_parts, plain);
      for (const ReadyRule rule : {ReadyRule::kDepthFirst, ReadyRule::kLeastCommunication}) {
        for (const bool from_sinks : {false, true}) {
          guided.rule = rule;
          guided.from_sinks = from_sinks;
          if (!IsDone()) Try(MakeOrder(problem_, guided, random_));
        }
      }
    }
  }

  // Around the best partition: its stages one after another, so that the old cut is one of the
  // slicings, and inside them another order; every other time a run of stages as if it were one.
  Order Reorder(int64_t round) {
    OrderOptions options;
    constexpr ReadyRule kRules[] = {ReadyRule::kLeastCommunication, ReadyRule::kDepthFirst,
                                    ReadyRule::kBreadthFirst, ReadyRule::kRandom};
    options.rule = kRules[random_.Below(4)];
    options.from_sinks = random_.Below(2) == 1;
    options.noise = random_.Uniform();
    const std::optional<Slicing>& around = best_ ? best_ : nearest_;
    if (!around || round % 8 == 7) {
      return MakeOrder(problem_, options, random_);  // far from it, once in a while
    }
    options.rank = around->assignment.stage_of_node;
    const int num_places = problem_.num_stages + problem_.num_cpus;
    const int first = random_.Below(num_places);
    const int last = first + random_.Below(num_places - first);
    if (round % 2 == 1) {
      for (int& rank : options.rank) {
        if (rank > first && rank <= last) rank = first;
      }
    }
    return MakeOrder(problem_, options, random_);
  }

  void Try(const Order& order, SliceGoal goal = SliceGoal::kBottleneck) {
    // Graphs that are nearly chains have few orders: most rounds come upon one that was tried.
    if (!tried_.insert(Fingerprint(order)).second) return;
    std::optional<Slicing> slicing;
    if (best_) {
      slicing = SliceWithin(order, best_->max_load_ms, goal);
    } else {
      // A tight bound makes slicing fast; most orders keep to one of the first.
      for (const double slack : {1.05, 1.2, 1.6, 3.0, kInfinity}) {
        slicing = SliceWithin(order, options_.bound_ms * slack, SliceGoal::kBottleneck);
        if (slicing) break;
      }
    }
    if (slicing) {
      best_ = std::move(slicing);
      best_order_ = order;
    } else if (!best_ && !std::isinf(problem_.memory_bytes)) {
      slicing = Slice(problem_, order, {SliceGoal::kMemory, kInfinity, max_blocks_});
      if (slicing && (!nearest_ || slicing->value <= nearest_->value)) nearest_ = slicing;
    }
  }

  std::optional<Slicing> SliceWithin(const Order& order, double bound_ms, SliceGoal goal) const {
    return Slice(problem_, order, {goal, bound_ms, max_blocks_});
  }

  // The best order once more, at every place; of the partitions as fast, the one that sends least.
  void Finish() {
    for (const SliceGoal goal : {SliceGoal::kBottleneck, SliceGoal::kCommunication}) {
      if (goal == SliceGoal::kBottleneck && static_cast<int>(best_order_.size()) <= max_blocks_) {
        continue;
      }
      auto slicing = Slice(problem_, best_order_, {goal, best_->max_load_ms, Everywhere()});
      if (slicing) best_ = std::move(slicing);
    }
  }

  const Problem& problem_;
  const SearchOptions& options_;
  Random random_;
  int max_blocks_;
  absl::flat_hash_set<uint64_t> tried_;  // hashes of orders
  std::optional<Slicing> best_;          // by load
  Order best_order_;
  std::optional<Slicing> nearest_;  // by memory, while there is no best
};

}  // namespace

SearchResult Search(const Problem& problem, const SearchOptions& options) {
  return Searcher(problem, options).Run();
}

}  // namespace autopart::internal
