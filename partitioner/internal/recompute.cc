#include "partitioner/internal/recompute.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "partitioner/internal/problem.h"
#include "partitioner/metrics.h"

namespace autopart::internal {
namespace {

int Find(std::vector<int>& parent, int node) {
  while (parent[node] != node) node = parent[node] = parent[parent[node]];
  return node;
}

// For each node the first node of its unit. A stage may hold a unit in part.
std::vector<int> UnitOfNode(const CostGraph& graph) {
  const int num_nodes = static_cast<int>(graph.nodes.size());
  std::vector<int> parent(num_nodes);
  std::iota(parent.begin(), parent.end(), 0);
  const auto join = [&](int a, int b) {
    a = Find(parent, a);
    b = Find(parent, b);
    parent[std::max(a, b)] = std::min(a, b);
  };
  std::vector<std::pair<int, int>> groups;
  for (int n = 0; n < num_nodes; ++n) {
    if (graph.nodes[n].group != kNoGroup) groups.emplace_back(graph.nodes[n].group, n);
  }
  std::sort(groups.begin(), groups.end());
  for (size_t i = 1; i < groups.size(); ++i) {
    if (groups[i].first == groups[i - 1].first) join(groups[i].second, groups[i - 1].second);
  }
  for (const CostValue& value : graph.values) {
    if (value.view_of == kNoView || value.producer == kModelInput) continue;
    const int owner = graph.values[value.view_of].producer;
    if (owner != kModelInput) join(value.producer, owner);
  }
  for (int n = 0; n < num_nodes; ++n) parent[n] = Find(parent, n);
  return parent;
}

// The i-th number of van der Corput's sequence in [0, 1): however many are taken from anywhere in
// it, they are spread evenly.
double SpreadEvenly(size_t i) {
  double place = 0;
  for (double half = 0.5; i > 0; i /= 2, half /= 2) place += (i % 2) * half;
  return place;
}

struct Unit {
  double again_ms = 0;
  double bytes = 0;  // that it makes or keeps; not all of them need be saved
};

// Upper ends of the levels before the last, as shares of all forward time. The first three are what
// element-wise operators, normalisations and softmax take in usual models.
constexpr double kShares[] = {0.025, 0.05, 0.1, 0.2, 0.35, 0.6};
constexpr double kCheapShare = 0.1;
static_assert(std::size(kShares) + 2 <= kMaxRecomputeLevels);

}  // namespace

RecomputeLevels ChooseRecomputeLevels(const CostGraph& graph, Recompute recompute) {
  const int num_nodes = static_cast<int>(graph.nodes.size());
  RecomputeLevels levels;
  levels.level_of_node.assign(num_nodes, 1);
  if (recompute == Recompute::kNone) return levels;
  levels.end = 2;
  levels.first = 1;
  if (recompute == Recompute::kAll) return levels;

  const std::vector<int> unit_of_node = UnitOfNode(graph);
  std::vector<Unit> units(num_nodes);
  double total_ms = 0;
  for (int n = 0; n < num_nodes; ++n) {
    units[unit_of_node[n]].again_ms += graph.nodes[n].forward_ms;
    units[unit_of_node[n]].bytes += static_cast<double>(graph.nodes[n].saved_bytes);
    total_ms += graph.nodes[n].forward_ms;
  }
  for (const CostValue& value : graph.values) {
    if (value.producer == kModelInput) continue;
    units[unit_of_node[value.producer]].bytes += static_cast<double>(value.storage_bytes);
  }
  std::vector<int> order;
  for (int n = 0; n < num_nodes; ++n) {
    if (unit_of_node[n] == n) order.push_back(n);
  }
  // Time for a byte, ascending; without bytes last.
  const auto rate = [&](int u) {
    return units[u].bytes > 0 ? units[u].again_ms / units[u].bytes
                              : std::numeric_limits<double>::infinity();
  };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return rate(a) < rate(b); });

  std::vector<double> shares = {kCheapShare};
  if (recompute == Recompute::kAuto) {
    shares.assign(std::begin(kShares), std::end(kShares));
    levels.first = 0;
    levels.end = static_cast<int>(shares.size()) + 2;
  }
  const int never_or_all = static_cast<int>(shares.size()) + 1;
  std::vector<int> level_of_unit(num_nodes, never_or_all);
  double before_ms = 0;
  for (size_t i = 0; i < order.size();) {
    // The same operator in all layers is one: as many of its kind are cheap on every stage.
    size_t end = i;
    double kind_ms = 0;
    for (; end < order.size() && (end == i || rate(order[end]) <= 1.02 * rate(order[i])); ++end) {
      kind_ms += units[order[end]].again_ms;
    }
    // kAuto splits a kind that is over a level's end, evenly along the model.
    for (size_t k = i; k < end; ++k) {
      const double place = recompute == Recompute::kAuto ? SpreadEvenly(k - i) : 0.5;
      const double at_ms = before_ms + place * kind_ms;
      for (size_t l = shares.size(); l-- > 0 && at_ms <= shares[l] * total_ms;) {
        if (!std::isinf(rate(order[k]))) level_of_unit[order[k]] = static_cast<int>(l) + 1;
      }
    }
    before_ms += kind_ms;
    i = end;
  }
  for (int n = 0; n < num_nodes; ++n) levels.level_of_node[n] = level_of_unit[unit_of_node[n]];
  return levels;
}

namespace {

// The units of one stage, and what the stage holds while a set of them is recomputed. Putting in or
// taking out a unit costs as much as it reads and makes.
class StageUnits {
 public:
  StageUnits(const CostGraph& graph, const std::vector<int>& stage_of_node, int stage,
             const std::vector<int>& unit_of_node, const std::vector<int>& nodes,
             const std::vector<std::vector<int>>& reads, int in_flight)
      : in_flight_(in_flight) {
    std::vector<int> ids;  // units, by their first node
    for (const int n : nodes) ids.push_back(unit_of_node[n]);
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    const auto unit_of = [&](int node) {
      return static_cast<int>(std::lower_bound(ids.begin(), ids.end(), unit_of_node[node]) -
                              ids.begin());
    };
    units_.resize(ids.size());

    const auto is_here = [&](int value) {
      const int producer = graph.values[value].producer;
      return producer == kModelInput ? stage == 0 : stage_of_node[producer] == stage;
    };
    const auto root_of = [&](int value) {
      while (is_here(value) && graph.values[value].view_of != kNoView) {
        value = graph.values[value].view_of;
      }
      return value;
    };
    std::vector<int> roots;
    const auto is_sent = [&](int v) {
      const int producer = graph.values[v].producer;
      return producer == kModelInput || !graph.nodes[producer].copyable;
    };
    for (const int n : nodes) {
      for (const int v : graph.nodes[n].saved_values) roots.push_back(root_of(v));
      for (const int v : reads[n]) {
        if (is_sent(v)) roots.push_back(root_of(v));
      }
    }
    std::sort(roots.begin(), roots.end());
    roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
    const auto memory_of = [&](int value) {
      return static_cast<int>(std::lower_bound(roots.begin(), roots.end(), root_of(value)) -
                              roots.begin());
    };
    for (const int root : roots) {
      Memory& memory = memories_.emplace_back();
      const CostValue& value = graph.values[root];
      memory.bytes = static_cast<double>(is_here(root) ? value.storage_bytes : value.bytes);
      if (is_here(root) && value.producer != kModelInput) {
        memory.owner = unit_of(value.producer);
        units_[memory.owner].makes.push_back(static_cast<int>(memories_.size()) - 1);
      }
    }
    for (const int n : nodes) {
      StageUnit& unit = units_[unit_of(n)];
      unit.nodes.push_back(n);
      unit.again_ms += graph.nodes[n].forward_ms;
      unit.private_bytes += static_cast<double>(graph.nodes[n].saved_bytes);
      for (const int v : graph.nodes[n].saved_values) memories_[memory_of(v)].saved = true;
      for (const int v : reads[n]) {
        if (is_sent(v)) unit.reads.push_back(memory_of(v));
      }
    }
    for (StageUnit& unit : units_) {
      std::sort(unit.reads.begin(), unit.reads.end());
      unit.reads.erase(std::unique(unit.reads.begin(), unit.reads.end()), unit.reads.end());
      bytes_ += in_flight_ * unit.private_bytes;
    }
    for (const Memory& memory : memories_) bytes_ += memory.saved ? in_flight_ * memory.bytes : 0;
  }

  int size() const { return static_cast<int>(units_.size()); }
  bool IsIn(int unit) const { return units_[unit].in; }
  double again_ms(int unit) const { return units_[unit].again_ms; }
  double bytes() const { return bytes_; }  // of saved values and private bytes
  double total_ms() const { return total_ms_; }
  const std::vector<int>& nodes(int unit) const { return units_[unit].nodes; }

  // Bytes that the stage holds more with the unit turned the other way; and turning it.
  double Change(int unit) {
    const double before = bytes_;
    Toggle(unit);
    const double change = bytes_ - before;
    Toggle(unit);
    bytes_ = before;
    return change;
  }
  void Toggle(int u) {
    StageUnit& unit = units_[u];
    for (const int m : unit.makes) bytes_ -= BytesOf(memories_[m]);
    for (const int m : unit.reads) {
      if (memories_[m].owner != u) bytes_ -= BytesOf(memories_[m]);
    }
    unit.in = !unit.in;
    const int sign = unit.in ? 1 : -1;
    total_ms_ += sign * unit.again_ms;
    bytes_ -= sign * (in_flight_ - 1) * unit.private_bytes;
    for (const int m : unit.reads) memories_[m].readers_in += sign;
    for (const int m : unit.makes) bytes_ += BytesOf(memories_[m]);
    for (const int m : unit.reads) {
      if (memories_[m].owner != u) bytes_ += BytesOf(memories_[m]);
    }
  }

 private:
  struct StageUnit {
    std::vector<int> nodes, makes, reads;  // memories
    double again_ms = 0;
    double private_bytes = 0;
    bool in = false;
  };
  struct Memory {
    double bytes = 0;
    int owner = -1;  // unit; -1 where it comes from outside
    bool saved = false;
    int readers_in = 0;
  };

  double BytesOf(const Memory& memory) const {
    if (memory.owner >= 0 && units_[memory.owner].in) return memory.saved ? memory.bytes : 0;
    return memory.saved || memory.readers_in > 0 ? in_flight_ * memory.bytes : 0;
  }

  const int in_flight_;
  std::vector<StageUnit> units_;
  std::vector<Memory> memories_;
  double bytes_ = 0, total_ms_ = 0;
};

// Takes units out, the one with most time for its bytes first, until none fits.
void TrimGreedily(StageUnits& units, double limit) {
  for (bool changed = true; changed;) {
    changed = false;
    std::vector<std::pair<double, int>> order;  // -time for a byte
    for (int u = 0; u < units.size(); ++u) {
      if (!units.IsIn(u)) continue;
      const double change = units.Change(u);
      order.emplace_back(
          change > 0 ? -units.again_ms(u) / change : -std::numeric_limits<double>::infinity(), u);
    }
    std::sort(order.begin(), order.end());
    for (const auto& [rate, u] : order) {
      if (units.bytes() + units.Change(u) > limit) continue;
      units.Toggle(u);
      changed = true;
    }
  }
}

// Of the sets to take out, with bytes as of each alone and in steps, the one with most time.
void TrimByKnapsack(StageUnits& units, double limit) {
  constexpr int kSteps = 256;
  const double room = limit - units.bytes();
  if (room <= 0) return;
  std::vector<int> items, steps;
  for (int u = 0; u < units.size(); ++u) {
    if (!units.IsIn(u)) continue;
    const double change = std::max(0.0, units.Change(u));
    if (change > room) continue;
    items.push_back(u);
    steps.push_back(static_cast<int>(std::ceil(change / room * kSteps)));
  }
  std::vector<double> best(kSteps + 1);
  std::vector<std::vector<bool>> takes(items.size(), std::vector<bool>(kSteps + 1));
  for (size_t i = 0; i < items.size(); ++i) {
    for (int step = kSteps; step >= steps[i]; --step) {
      const double with = best[step - steps[i]] + units.again_ms(items[i]);
      if (with > best[step]) {
        best[step] = with;
        takes[i][step] = true;
      }
    }
  }
  int step = kSteps;
  for (size_t i = items.size(); i-- > 0;) {
    if (!takes[i][step]) continue;
    step -= steps[i];
    // What others taken out meanwhile keep may have made it dearer.
    if (units.bytes() + units.Change(items[i]) <= limit) units.Toggle(items[i]);
  }
  TrimGreedily(units, limit);
}

}  // namespace

void TrimRecompute(const CostGraph& graph, const PartitionOptions& options, Partition& partition) {
  bool recomputes = false;
  for (const StageConfiguration& stage : partition.stages) {
    recomputes = recomputes || !stage.recomputed.empty();
  }
  if (!recomputes) return;
  std::vector<std::vector<int>> reads(graph.nodes.size()), nodes(partition.num_stages);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    for (const int reader : graph.values[v].consumers) reads[reader].push_back(v);
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) nodes[partition.stage_of_node[n]].push_back(n);
  const std::vector<int> unit_of_node = UnitOfNode(graph);
  const PartitionMetrics metrics = ComputeMetrics(graph, partition, options);

  for (int s = 0; s < partition.num_stages; ++s) {
    std::vector<int>& recomputed = partition.stages[s].recomputed;
    if (recomputed.empty()) continue;
    const StageUnits none(graph, partition.stage_of_node, s, unit_of_node, nodes[s], reads,
                          metrics.stages[s].in_flight);
    StageUnits greedy = none;
    for (int u = 0; u < greedy.size(); ++u) {
      if (std::binary_search(recomputed.begin(), recomputed.end(), greedy.nodes(u)[0])) {
        greedy.Toggle(u);
      }
    }
    const double limit = greedy.bytes() +
                         static_cast<double>(options.MemoryOf(partition.stages[s].device_type)) -
                         static_cast<double>(metrics.stages[s].memory_bytes);
    StageUnits knapsack = none;
    for (int u = 0; u < knapsack.size(); ++u) knapsack.Toggle(u);
    TrimGreedily(greedy, limit);
    constexpr int kMostItems = 20'000;  // 256 bits each
    if (knapsack.bytes() <= limit && knapsack.size() <= kMostItems) {
      TrimByKnapsack(knapsack, limit);
    }
    const bool better = knapsack.bytes() <= limit && knapsack.total_ms() < greedy.total_ms();
    const StageUnits& chosen = better ? knapsack : greedy;
    recomputed.clear();
    for (int u = 0; u < chosen.size(); ++u) {
      if (!chosen.IsIn(u)) continue;
      recomputed.insert(recomputed.end(), chosen.nodes(u).begin(), chosen.nodes(u).end());
    }
    std::sort(recomputed.begin(), recomputed.end());
  }
}

}  // namespace autopart::internal
