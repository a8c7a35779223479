// Piper's problem as a decision: is there a plan in which no stage takes longer than T?
//
// A plan is a chain of downsets from all nodes to none; it is built from its LAST stage, so that
// the devices behind a stage, and with them the micro-batches it has in flight, are known. For a
// given T a set of nodes that is still to be placed needs to remember very little: (replicas,
// devices) used behind it, both as few as can be, since both only ever hurt the stages in front.
// So each downset keeps its Pareto-minimal pairs (one, where all tensor degrees are 1), and a stage
// takes, for each degree, the fewest replicas with which it keeps to T and to the memory: time and
// memory both fall with their number. That replaces the published programme's (downset, devices,
// replicas behind) states and its minimum over all numbers of replicas; T is found by bisection
// between the best plan so far and what was refuted.
//
// A stage's configurations are a multiple-choice knapsack: least time within A * y + B. Its linear
// relaxation (Sinha and Zoltners 1979) gives a multiplier; with the reduced costs of that a depth
// first search finds the optimum in few steps, identical layers being taken in one order only.
//
// Cuts are all downsets, if they are few enough; then a refuted T is a proof. Before them, and
// instead of them, come the prefixes of a few topological orders.
//
// Cost: a decision looks at pairs of downsets whose difference fits between T times the replicas
// and what the devices left can do; a pair is summed up once, a knapsack solved once for each y.
#include "partitioner/internal/piper_solver.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "partitioner/internal/random.h"

namespace autopart::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-12;  // the referee adds up in another order

using NodeSet = std::vector<uint64_t>;

bool Has(const NodeSet& set, int n) { return set[n >> 6] >> (n & 63) & 1; }
void Put(NodeSet& set, int n) { set[n >> 6] |= uint64_t{1} << (n & 63); }

NodeSet NoNodes(const PiperInstance& instance) {
  return NodeSet((instance.nodes.size() + 63) / 64);
}

bool IsReady(const PiperInstance& instance, const NodeSet& set, int n) {
  for (const int e : instance.nodes[n].in_edges) {
    if (!Has(set, instance.edges[e].from)) return false;
  }
  return !Has(set, n);
}

// Empty where there are more than `most`.
std::vector<NodeSet> AllDownsets(const PiperInstance& instance, int most) {
  std::vector<NodeSet> sets = {NoNodes(instance)};
  absl::flat_hash_set<NodeSet> seen(sets.begin(), sets.end());
  for (size_t i = 0; i < sets.size(); ++i) {
    for (size_t n = 0; n < instance.nodes.size(); ++n) {
      if (!IsReady(instance, sets[i], static_cast<int>(n))) continue;
      NodeSet larger = sets[i];
      Put(larger, static_cast<int>(n));
      if (!seen.insert(larger).second) continue;
      if (static_cast<int>(sets.size()) == most) return {};
      sets.push_back(std::move(larger));
    }
  }
  return sets;
}

// Of topological orders: last ready first, first ready first, and any.
std::vector<NodeSet> PrefixesOfOrders(const PiperInstance& instance, int most) {
  constexpr int kOrders = 16;
  const int num_nodes = static_cast<int>(instance.nodes.size());
  std::set<NodeSet> sets = {NoNodes(instance)};
  Random random(0);
  NodeSet all = NoNodes(instance);
  for (int n = 0; n < num_nodes; ++n) Put(all, n);
  sets.insert(all);
  for (int order = 0; order < kOrders; ++order) {
    std::vector<int> waiting(num_nodes), ready;
    for (const PiperEdge& edge : instance.edges) ++waiting[edge.to];
    for (int n = num_nodes - 1; n >= 0; --n) {
      if (waiting[n] == 0) ready.push_back(n);
    }
    NodeSet set = NoNodes(instance);
    while (!ready.empty()) {
      const int size = static_cast<int>(ready.size());
      const int pick = order == 0 ? size - 1 : order == 1 ? 0 : random.Below(size);
      const int node = ready[pick];
      ready.erase(ready.begin() + pick);
      Put(set, node);
      if (static_cast<int>(sets.size()) < most || order == 0) sets.insert(set);
      for (const int e : instance.nodes[node].out_edges) {
        if (--waiting[instance.edges[e].to] == 0) ready.push_back(instance.edges[e].to);
      }
    }
  }
  return {sets.begin(), sets.end()};
}

// One configuration of one node of a stage.
struct Option {
  double cost = 0, bytes = 0;
  int index = 0;  // in the node's list
  bool operator==(const Option& other) const { return cost == other.cost && bytes == other.bytes; }
};
// Of a node: by cost ascending, bytes descending; dominated ones are gone.
using Options = std::vector<Option>;

// What is known of the least cost of one option for each node within a number of bytes.
struct LeastCost {
  double lower = 0;          // infinity: nothing fits
  double upper = kInfinity;  // of `picks`
  std::vector<int> picks;    // into each node's options
  double given_up = -1;      // no answer was found for this cost in the steps allowed
};

class Knapsack {
 public:
  Knapsack(const std::vector<Options>& items, double limit) : items_(items), limit_(limit) {}

  // Bounds from both sides: the linear relaxation, and a choice made from it.
  LeastCost Relax() {
    best_.picks.assign(items_.size(), 0);
    double bytes = 0, least_bytes = 0, cost = 0;
    for (const Options& options : items_) {
      cost += options.front().cost;
      bytes += options.front().bytes;
      least_bytes += options.back().bytes;
    }
    if (least_bytes > limit_) {
      best_.lower = kInfinity;
    } else if (bytes <= limit_) {
      best_.lower = best_.upper = cost;
    } else {
      best_.upper = cost;
      Round(bytes);
      best_.lower = std::min(best_.upper, Reduce());
    }
    return best_;
  }

  // After Relax: is there a choice that costs no more than `target`? Narrows what is known.
  LeastCost Search(double target) {
    if (best_.lower > target || best_.upper <= target) return best_;
    OrderItems();
    target_ = target;
    steps_left_ = kMostSteps;
    found_ = false;
    picks_.resize(items_.size());
    Branch(0, best_.lower, 0, 0);
    if (found_) return best_;
    if (steps_left_ > 0) {
      best_.lower = std::nextafter(target, kInfinity);
    } else {
      best_.given_up = target;
    }
    return best_;
  }

 private:
  static constexpr int kMostSteps = 20'000;

  struct Step {
    double rate;  // cost for a byte
    int item, to;
  };

  // Walks down the lower convex hulls, cheapest bytes first, until all fits; then takes back what
  // still can be. The rate at which it came to fit is the multiplier.
  void Round(double bytes) {
    std::vector<Step> steps;
    for (size_t i = 0; i < items_.size(); ++i) {
      const Options& options = items_[i];
      for (size_t from = 0; from + 1 < options.size();) {
        size_t to = from + 1;
        const auto rate = [&](size_t k) {
          return (options[k].cost - options[from].cost) / (options[from].bytes - options[k].bytes);
        };
        for (size_t k = from + 2; k < options.size(); ++k) {
          if (rate(k) <= rate(to)) to = k;
        }
        steps.push_back({rate(to), static_cast<int>(i), static_cast<int>(to)});
        from = to;
      }
    }
    std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
      return std::tie(a.rate, a.item, a.to) < std::tie(b.rate, b.item, b.to);
    });
    for (const Step& step : steps) {
      if (bytes <= limit_) break;
      bytes += Pick(step.item, step.to);
      multiplier_ = step.rate;
    }
    for (size_t i = items_.size(); i-- > 0;) {
      for (int to = 0; to < best_.picks[i]; ++to) {
        if (bytes + items_[i][to].bytes - items_[i][best_.picks[i]].bytes > limit_) continue;
        bytes += Pick(static_cast<int>(i), to);
        break;
      }
    }
  }

  // Returns the bytes that it adds.
  double Pick(int item, int to) {
    const Option& now = items_[item][best_.picks[item]];
    const Option& then = items_[item][to];
    best_.upper += then.cost - now.cost;
    best_.picks[item] = to;
    return then.bytes - now.bytes;
  }

  // Costs with bytes at the multiplier, less the least of each node; the sum of those least is the
  // Lagrangian bound.
  double Reduce() {
    double bound = -multiplier_ * limit_;
    reduced_.resize(items_.size());
    for (size_t i = 0; i < items_.size(); ++i) {
      double least = kInfinity;
      for (const Option& option : items_[i]) {
        reduced_[i].push_back(option.cost + multiplier_ * option.bytes);
        least = std::min(least, reduced_[i].back());
      }
      bound += least;
      for (double& cost : reduced_[i]) cost -= least;
    }
    return bound - 1e-12 * std::abs(multiplier_ * limit_);  // rounding
  }

  // First where to choose otherwise costs most. Equals side by side.
  void OrderItems() {
    const size_t n = items_.size();
    std::vector<double> gap(n, kInfinity);  // least reduced cost of another option
    order_.resize(n);
    for (size_t i = 0; i < n; ++i) {
      order_[i] = static_cast<int>(i);
      bool least_seen = false;
      for (const double cost : reduced_[i]) {
        if (cost == 0 && !least_seen) {
          least_seen = true;
        } else {
          gap[i] = std::min(gap[i], cost);
        }
      }
    }
    std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
      if (gap[a] != gap[b]) return gap[a] > gap[b];
      if (items_[a].front().cost != items_[b].front().cost) {
        return items_[a].front().cost < items_[b].front().cost;
      }
      return items_[a].front().bytes < items_[b].front().bytes;
    });
    least_bytes_.assign(n + 1, 0);
    for (size_t i = n; i-- > 0;) {
      least_bytes_[i] = least_bytes_[i + 1] + items_[order_[i]].back().bytes;
    }
  }

  void Branch(size_t depth, double bound, double bytes, double cost) {
    if (found_ || bound > target_ || --steps_left_ <= 0) return;
    if (depth == items_.size()) {
      if (cost > target_) return;
      found_ = true;
      best_.upper = cost;
      best_.picks = picks_;
      return;
    }
    const int item = order_[depth];
    const Options& options = items_[item];
    size_t first = 0;
    if (depth > 0 && options == items_[order_[depth - 1]]) first = picks_[order_[depth - 1]];
    for (size_t k = first; k < options.size(); ++k) {
      const double with = bytes + options[k].bytes;
      if (with + least_bytes_[depth + 1] > limit_) continue;
      picks_[item] = static_cast<int>(k);
      Branch(depth + 1, bound + reduced_[item][k], with, cost + options[k].cost);
    }
  }

  const std::vector<Options>& items_;
  const double limit_;
  double multiplier_ = 0;
  LeastCost best_;
  std::vector<std::vector<double>> reduced_;
  double target_ = 0;
  int steps_left_ = 0;
  bool found_ = false;
  std::vector<int> order_, picks_;
  std::vector<double> least_bytes_;
};

class Planner {
 public:
  Planner(const PiperInstance& instance, double memory_bytes, std::vector<NodeSet> cuts)
      : instance_(instance),
        memory_bytes_(memory_bytes),
        cuts_(std::move(cuts)),
        labels_(cuts_.size()),
        stage_of_pair_(cuts_.size()) {
    std::set<int> degrees;
    for (const PiperNode& node : instance.nodes) {
      double least = kInfinity;
      for (const auto& [degree, configurations] : node.configurations) {
        degrees.insert(degree);
        for (const PiperConfiguration& c : configurations) least = std::min(least, degree * c.time);
      }
      weight_of_node_.push_back(least);
    }
    degrees_.assign(degrees.begin(), degrees.end());
    for (const int degree : degrees_) {
      std::vector<NodeChoices>& choices = choices_.emplace_back();
      for (const PiperNode& node : instance.nodes) choices.push_back(ChoicesOf(node, degree));
    }
    for (int d = 1; d <= std::min(instance.max_devices, instance.micro_batches); ++d) {
      if (instance.micro_batches % d == 0) replicas_.push_back(d);
    }
    std::sort(cuts_.begin(), cuts_.end(), [](const NodeSet& a, const NodeSet& b) {
      const int size_a = Size(a), size_b = Size(b);
      return size_a != size_b ? size_a < size_b : a < b;
    });
    for (const NodeSet& cut : cuts_) {
      double weight = 0;
      for (size_t n = 0; n < weight_of_node_.size(); ++n) {
        if (Has(cut, static_cast<int>(n))) weight += weight_of_node_[n];
      }
      weights_.push_back(weight);
      sizes_.push_back(Size(cut));
    }
  }

  double total_weight() const { return weights_.back(); }
  // Is the last answer certain, even if it is no?
  bool exact() const { return exact_; }

  // A plan with no stage over `limit`.
  std::optional<PiperPlan> Decide(double limit) {
    if (!Reaches(limit, Doubt::kDoesNotFit)) return std::nullopt;
    return ReadBack();
  }
  // Is there certainly none?
  bool IsRefuted(double limit) { return !Reaches(limit, Doubt::kFits); }

 private:
  enum class Doubt { kFits, kDoesNotFit };  // what to take an unanswered knapsack for

  bool Reaches(double limit, Doubt doubt) {
    doubt_ = doubt;
    limit_ = limit * (1 + kRounding);
    exact_ = true;
    for (std::vector<Label>& labels : labels_) labels.clear();
    labels_.back().push_back({});
    for (int from = static_cast<int>(cuts_.size()) - 1; from > 0; --from) {
      if (labels_[from].empty()) continue;
      for (int to = from - 1; to >= 0; --to) {
        if (sizes_[to] < sizes_[from] && MayBeStage(from, to)) Extend(from, to);
      }
    }
    return !labels_[0].empty();
  }

  // What is used behind a cut, and the stage that comes first there.
  struct Label {
    int replicas = 0, devices = 0;
    int from = -1, label = -1;  // the chain without that stage
    int degree = 0, d = 0;
  };
  struct KnownCost {
    int in_flight = 0;
    int replicas = 0;  // 0: any
    LeastCost least;
    bool IsFor(int y, int d) const { return in_flight == y && replicas == d; }
  };
  // A node at one tensor degree.
  struct NodeChoices {
    const std::vector<PiperConfiguration>* configurations = nullptr;  // none
    bool uniform = true;       // they differ in time and memory only
    bool syncs = false;        // some have sync bytes
    PiperConfiguration least;  // of each amount of bytes
  };
  // Of one tensor degree. Costs are times of a sample on one replica, that replicas share.
  struct StageCost {
    bool possible = false;
    bool uniform = true;  // configurations of a node differ in time and memory only
    double cost = 0;      // least, whatever the memory
    double parameter_bytes = 0;
    double flight_bytes = 0, fixed_bytes = 0;              // of the cheapest configurations
    double least_flight_bytes = 0, least_fixed_bytes = 0;  // below those of any choice
    std::vector<KnownCost> known;  // where the cheapest configurations do not fit
  };

  static NodeChoices ChoicesOf(const PiperNode& node, int degree) {
    NodeChoices choices;
    const auto found = node.configurations.find(degree);
    if (found == node.configurations.end()) return choices;
    const std::vector<PiperConfiguration>& all = found->second;
    choices.configurations = &all;
    choices.least = all[0];
    for (const PiperConfiguration& c : all) {
      choices.uniform = choices.uniform && c.parameter_bytes == all[0].parameter_bytes &&
                        c.in_sync_bytes == all[0].in_sync_bytes &&
                        c.out_sync_bytes == all[0].out_sync_bytes;
      for (const double bytes : c.in_sync_bytes) choices.syncs = choices.syncs || bytes > 0;
      for (const double bytes : c.out_sync_bytes) choices.syncs = choices.syncs || bytes > 0;
      choices.least.parameter_bytes = std::min(choices.least.parameter_bytes, c.parameter_bytes);
      choices.least.flight_bytes = std::min(choices.least.flight_bytes, c.flight_bytes);
      choices.least.fixed_bytes = std::min(choices.least.fixed_bytes, c.fixed_bytes);
    }
    return choices;
  }

  static int Size(const NodeSet& set) {
    int size = 0;
    for (const uint64_t word : set) size += std::popcount(word);
    return size;
  }

  // All-reduce of a sample, for a byte, times d.
  double AllReduceCost(int d) const {
    return 4.0 * (d - 1) / instance_.micro_batches / instance_.bandwidth;
  }

  bool MayBeStage(int from, int to) const {
    const double left = instance_.max_devices - labels_[from].front().devices;
    const double least = std::max(1.0, std::ceil((weights_[from] - weights_[to]) / limit_));
    if (least > left || (to > 0 && weights_[to] > (left - least) * limit_)) return false;
    for (size_t w = 0; w < cuts_[to].size(); ++w) {
      if ((cuts_[to][w] & ~cuts_[from][w]) != 0) return false;
    }
    return true;
  }

  void Extend(int from, int to) {
    std::vector<StageCost>& costs = CostsOf(from, to);
    for (size_t label = 0; label < labels_[from].size(); ++label) {
      const Label behind = labels_[from][label];
      for (size_t t = 0; t < degrees_.size(); ++t) {
        if (!costs[t].possible) continue;
        // No fewer than by the cheapest configurations alone.
        const auto enough = std::lower_bound(replicas_.begin(), replicas_.end(),
                                             costs[t].cost / limit_ * (1 - kRounding));
        for (auto it = enough; it != replicas_.end(); ++it) {
          const int d = *it;
          const int devices = behind.devices + d * degrees_[t];
          if (devices > instance_.max_devices || behind.replicas + d > instance_.micro_batches ||
              weights_[to] > (instance_.max_devices - devices) * limit_) {
            break;
          }
          const int in_flight = (behind.replicas + 2 * d - 1) / d;
          if (!Fits(from, to, static_cast<int>(t), costs[t], d, in_flight)) continue;
          Add(labels_[to], {behind.replicas + d, devices, from, static_cast<int>(label),
                            static_cast<int>(t), d});
          break;
        }
      }
    }
  }

  bool Fits(int from, int to, int t, StageCost& cost, int d, int in_flight) {
    const double all_reduce = AllReduceCost(d) * cost.parameter_bytes;
    if (cost.cost + all_reduce > limit_ * d) return false;
    if (cost.least_flight_bytes * in_flight + cost.least_fixed_bytes > memory_bytes_) return false;
    if (cost.uniform && cost.flight_bytes * in_flight + cost.fixed_bytes <= memory_bytes_) {
      return true;
    }
    const double target = limit_ * d - (cost.uniform ? all_reduce : 0);
    const int replicas = cost.uniform ? 0 : d;
    for (const KnownCost& other : cost.known) {  // fewer in flight cost no more
      if (other.replicas == replicas && other.in_flight < in_flight && other.least.lower > target) {
        return false;
      }
    }
    auto entry = cost.known.begin();
    while (entry != cost.known.end() && !entry->IsFor(in_flight, replicas)) ++entry;
    const bool is_new = entry == cost.known.end();
    if (is_new) entry = cost.known.insert(entry, {in_flight, replicas, {}});
    LeastCost& known = entry->least;
    if (std::isinf(known.lower)) return false;  // does not fit, whatever the limit on time
    if (is_new || (known.lower <= target && target < known.upper && target > known.given_up)) {
      const std::vector<Options> items = OptionsOf(from, to, t, in_flight, cost.uniform ? 1 : d);
      Knapsack knapsack(items, memory_bytes_);
      known = knapsack.Relax();
      if (!std::isinf(known.lower)) known = knapsack.Search(target);
    }
    const bool is_open = known.lower <= target && target < known.upper;
    exact_ = exact_ && !is_open;
    return known.upper <= target || (is_open && doubt_ == Doubt::kFits);
  }

  static void Add(std::vector<Label>& labels, const Label& label) {
    for (const Label& other : labels) {
      if (other.replicas <= label.replicas && other.devices <= label.devices) return;
    }
    std::erase_if(labels, [&](const Label& other) {
      return label.replicas <= other.replicas && label.devices <= other.devices;
    });
    const auto after = std::find_if(labels.begin(), labels.end(), [&](const Label& other) {
      return other.devices > label.devices;
    });
    labels.insert(after, label);  // fewest devices first
  }

  std::vector<int> NodesBetween(int from, int to) const {
    std::vector<int> nodes;
    for (size_t w = 0; w < cuts_[from].size(); ++w) {
      for (uint64_t bits = cuts_[from][w] & ~cuts_[to][w]; bits != 0; bits &= bits - 1) {
        nodes.push_back(static_cast<int>(64 * w) + std::countr_zero(bits));
      }
    }
    return nodes;
  }
  bool IsBetween(int from, int to, int node) const {
    return Has(cuts_[from], node) && !Has(cuts_[to], node);
  }

  // Seconds that a node pays for the edges over the stage's border, without its configuration's
  // part.
  double BorderCost(const PiperNode& node, int from, int to) const {
    double bytes = 0;
    for (const int e : node.in_edges) {
      if (!IsBetween(from, to, instance_.edges[e].from)) bytes += instance_.edges[e].bytes;
    }
    for (const int e : node.out_edges) {
      if (!IsBetween(from, to, instance_.edges[e].to)) bytes += instance_.edges[e].bytes;
    }
    return 2 * bytes / instance_.bandwidth;
  }
  double SyncCost(const PiperNode& node, const PiperConfiguration& c, int from, int to) const {
    double bytes = 0;
    for (size_t e = 0; e < node.in_edges.size(); ++e) {
      const int other = instance_.edges[node.in_edges[e]].from;
      if (!IsBetween(from, to, other)) bytes += c.in_sync_bytes[e];
    }
    for (size_t e = 0; e < node.out_edges.size(); ++e) {
      const int other = instance_.edges[node.out_edges[e]].to;
      if (!IsBetween(from, to, other)) bytes += c.out_sync_bytes[e];
    }
    return 2 * bytes / instance_.bandwidth;
  }

  std::vector<StageCost>& CostsOf(int from, int to) {
    std::vector<int>& row = stage_of_pair_[from];
    row.resize(cuts_.size(), -1);
    if (row[to] >= 0) return costs_[row[to]];
    row[to] = static_cast<int>(costs_.size());
    std::vector<StageCost> costs(degrees_.size());
    const std::vector<int> nodes = NodesBetween(from, to);
    for (size_t t = 0; t < degrees_.size(); ++t) {
      costs[t].possible = true;
      for (const int n : nodes) {
        AddNode(instance_.nodes[n], choices_[t][n], from, to, costs[t]);
        if (!costs[t].possible) break;
      }
    }
    costs_.push_back(std::move(costs));
    return costs_.back();
  }

  void AddNode(const PiperNode& node, const NodeChoices& choices, int from, int to,
               StageCost& stage) const {
    stage.possible = stage.possible && choices.configurations != nullptr;
    if (!stage.possible) return;
    const PiperConfiguration* cheapest = nullptr;
    double cost = kInfinity;
    for (const PiperConfiguration& c : *choices.configurations) {
      const double its = c.time + (choices.syncs ? SyncCost(node, c, from, to) : 0);
      if (its < cost || (its == cost && c.flight_bytes < cheapest->flight_bytes)) {
        cost = its;
        cheapest = &c;
      }
    }
    stage.uniform = stage.uniform && choices.uniform;
    stage.cost += cost + BorderCost(node, from, to);
    stage.parameter_bytes += choices.least.parameter_bytes;
    stage.flight_bytes += cheapest->flight_bytes;
    stage.fixed_bytes += cheapest->fixed_bytes;
    stage.least_flight_bytes += choices.least.flight_bytes;
    stage.least_fixed_bytes += choices.least.fixed_bytes;
  }

  // The choices of a stage's nodes; costs with the all-reduce.
  std::vector<Options> OptionsOf(int from, int to, int t, int in_flight, int d) const {
    const std::vector<int> nodes = NodesBetween(from, to);
    std::vector<Options> items;
    items.reserve(nodes.size());
    for (const int n : nodes) {
      const PiperNode& node = instance_.nodes[n];
      const NodeChoices& choices = choices_[t][n];
      const std::vector<PiperConfiguration>& all = *choices.configurations;
      const double border = BorderCost(node, from, to);
      Options& options = items.emplace_back();
      options.reserve(all.size());
      for (size_t c = 0; c < all.size(); ++c) {
        options.push_back(
            {all[c].time + border + (choices.syncs ? SyncCost(node, all[c], from, to) : 0) +
                 AllReduceCost(d) * all[c].parameter_bytes,
             all[c].flight_bytes * in_flight + all[c].fixed_bytes, static_cast<int>(c)});
      }
      std::sort(options.begin(), options.end(), [](const Option& a, const Option& b) {
        return std::tie(a.cost, a.bytes, a.index) < std::tie(b.cost, b.bytes, b.index);
      });
      size_t kept = 1;
      for (size_t k = 1; k < options.size(); ++k) {
        if (options[k].bytes < options[kept - 1].bytes) options[kept++] = options[k];
      }
      options.resize(kept);
    }
    return items;
  }

  // Configurations with which the stage was found to fit.
  std::vector<int> PicksOf(int from, int to, int t, int in_flight, int d) const {
    const StageCost& cost = costs_[stage_of_pair_[from][to]][t];
    const int replicas = cost.uniform ? 0 : d;
    const std::vector<Options> items = OptionsOf(from, to, t, in_flight, std::max(1, replicas));
    std::vector<int> picks(items.size());  // the cheapest
    for (const KnownCost& known : cost.known) {
      if (known.IsFor(in_flight, replicas)) picks = known.least.picks;
    }
    for (size_t i = 0; i < items.size(); ++i) picks[i] = items[i][picks[i]].index;
    return picks;
  }

  PiperPlan ReadBack() const {
    PiperPlan plan;
    Label label = labels_[0].front();
    for (int to = 0; label.from >= 0;) {
      PiperStage& stage = plan.stages.emplace_back();
      stage.nodes = NodesBetween(label.from, to);
      stage.replicas = label.d;
      stage.tensor_degree = degrees_[label.degree];
      const int in_flight = (label.replicas + label.d - 1) / label.d;
      stage.configurations = PicksOf(label.from, to, label.degree, in_flight, label.d);
      to = label.from;
      label = labels_[label.from][label.label];
    }
    return plan;
  }

  const PiperInstance& instance_;
  const double memory_bytes_;
  std::vector<NodeSet> cuts_;  // by size; none first, all nodes last
  std::vector<int> sizes_;
  std::vector<double> weight_of_node_;  // least device time of a sample
  std::vector<double> weights_;         // of cuts
  std::vector<int> degrees_, replicas_;
  std::vector<std::vector<NodeChoices>> choices_;  // by degree, then by node
  double limit_ = 0;
  Doubt doubt_ = Doubt::kDoesNotFit;
  bool exact_ = true;
  std::vector<std::vector<Label>> labels_;
  std::vector<std::vector<int>> stage_of_pair_;  // by both cuts: into costs_; -1: not seen yet
  std::vector<std::vector<StageCost>> costs_;
};

double ValueOf(const PiperInstance& instance, const PiperPlan& plan) {
  double value = 0;
  for (const PiperStageMetrics& stage : PiperMetrics(instance, plan)) {
    value = std::max(value, stage.load);
  }
  return value;
}

// Closes in on the least T, from above by `plan`, from below by what was refuted. Returns the
// largest T that was refuted for certain; `bound` where none was.
double Improve(const PiperInstance& instance, Planner& planner, double tolerance, PiperPlan& plan,
               double bound) {
  double value = ValueOf(instance, plan);
  double low = bound;
  // Just below the best first: if it is the optimum, that is the last question. Many small steps
  // down would be dearer than bisection, though.
  for (bool just_below = true; value > low * (1 + tolerance);) {
    const double limit =
        just_below ? std::max(low, value * (1 - 0.9 * tolerance)) : (low + value) / 2;
    std::optional<PiperPlan> better = planner.Decide(limit);
    if (!better) {
      if (planner.exact()) bound = limit;
      low = limit;
      just_below = true;
      continue;
    }
    plan = std::move(*better);
    const double improved = ValueOf(instance, plan);
    just_below = !just_below || improved < 0.99 * value;
    value = std::min(improved, limit);
  }
  // Where some knapsack was left open, a little below.
  for (const double below : {1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1}) {
    if (bound >= value * (1 - below)) break;
    if (planner.IsRefuted(value * (1 - below))) return value * (1 - below);
  }
  return bound;
}

absl::Status DoesNotFit(const PiperInstance& instance, const std::vector<NodeSet>& cuts) {
  for (const PiperNode& node : instance.nodes) {
    double least = kInfinity;
    for (const auto& [degree, configurations] : node.configurations) {
      for (const PiperConfiguration& c : configurations) {
        least = std::min(least, c.flight_bytes + c.fixed_bytes);
      }
    }
    if (least > instance.memory_bytes) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "node %d (%s) alone needs %.0f bytes in its smallest configuration, a device has %.0f: "
          "%.0f bytes are missing",
          node.id, node.name, least, instance.memory_bytes, least - instance.memory_bytes));
    }
  }
  double low = instance.memory_bytes, high = std::max(1.0, low);
  const auto fits = [&](double bytes) {
    return Planner(instance, bytes, cuts).Decide(kInfinity).has_value();
  };
  for (int doublings = 0; !fits(high); ++doublings) {
    if (doublings == 60) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "no plan takes ", instance.max_devices,
          " devices or fewer: some node has no configuration at a tensor degree that others have"));
    }
    low = high;
    high *= 2;
  }
  while (high > low * 1.001) {
    const double middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return absl::ResourceExhaustedError(absl::StrFormat(
      "no plan for %d devices fits: the least memory found that works is %.0f bytes a device, "
      "there are %.0f. Use more devices or more memory",
      instance.max_devices, high, instance.memory_bytes));
}

}  // namespace

absl::StatusOr<PiperPlan> SolvePiper(const PiperInstance& instance, const PiperOptions& options) {
  std::vector<NodeSet> all = AllDownsets(instance, options.max_cuts);
  const std::vector<NodeSet> few = PrefixesOfOrders(instance, options.max_cuts);
  const bool has_all = !all.empty();
  // Little work: all at once.
  const bool only_all = has_all && all.size() <= 2 * few.size();

  std::optional<PiperPlan> plan;
  Planner some(instance, instance.memory_bytes, only_all ? all : few);
  double bound = some.total_weight() / instance.max_devices;
  std::string kind = "average";
  for (double limit = 2 * bound; !plan && limit < 1e6 * bound; limit *= 4)
    plan = some.Decide(limit);
  if (!plan) plan = some.Decide(kInfinity);
  if (plan) {
    const double refuted = Improve(instance, some, only_all ? 1e-9 : 1e-3, *plan, bound);
    if (only_all && refuted > bound) {
      bound = refuted;
      kind = "exhaustive";
    }
  }
  if (has_all && !only_all) {
    Planner every(instance, instance.memory_bytes, std::move(all));
    if (!plan) plan = every.Decide(kInfinity);
    if (plan) {
      const double refuted = Improve(instance, every, 1e-9, *plan, bound);
      if (refuted > bound) {
        bound = refuted;
        kind = "exhaustive";
      }
    }
  }
  if (!plan) return DoesNotFit(instance, few);
  plan->bound = bound;
  plan->bound_kind = kind;
  return *std::move(plan);
}

}  // namespace autopart::internal
