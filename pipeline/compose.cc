// Plan + CostGraph -> what the simulator needs: times and storages of each stage and edge.
//
// Storages: a value belongs to the storage at the end of its chain of views. The chain stops at the
// stage's border, as what arrives from another stage has memory of its own there. Parameters,
// buffers and the caller's inputs count nothing here: they are weights, or not ours.
#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "partitioner/device.h"
#include "pipeline/simulate.h"

namespace autopart {
namespace {

struct OptimizerCost {
  const char* name;
  int state_copies;  // of the trained parameters' bytes
  int passes;        // over those bytes in one step: parameter, gradient, state; read and written
};

constexpr OptimizerCost kOptimizers[] = {
    {"sgd", 0, 3}, {"sgd-momentum", 1, 5}, {"adam", 2, 7}, {"adamw", 2, 7}};

// One stage, seen from the graph.
class StageView {
 public:
  StageView(const CostGraph& graph, const Plan& plan, const PlanStage& stage,
            const std::vector<std::vector<int>>& outputs_of_node)
      : graph_(graph), outputs_(outputs_of_node), nodes_(stage.nodes) {
    nodes_.insert(nodes_.end(), stage.copied_nodes.begin(), stage.copied_nodes.end());
    std::sort(nodes_.begin(), nodes_.end());
    here_.assign(graph.values.size(), stage.index == 0 ? kInput : kElsewhere);
    for (size_t v = 0; v < graph.values.size(); ++v) {
      if (graph.values[v].producer != kModelInput) here_[v] = kElsewhere;
    }
    for (const int n : nodes_) {
      for (const int v : outputs_[n]) here_[v] = kMade;
    }
    for (const StageEdge& edge : plan.edges) {
      if (edge.to != stage.index) continue;
      for (const int v : edge.values) here_[v] = kReceived;
    }
  }

  const std::vector<int>& nodes() const { return nodes_; }

  // The value whose storage v lies in, on this stage.
  int Root(int v) const {
    while (here_[v] == kMade && graph_.values[v].view_of != kNoView) v = graph_.values[v].view_of;
    return v;
  }
  HeldStorage Storage(int v) const {
    const int root = Root(v);
    const CostValue& value = graph_.values[root];
    switch (here_[root]) {
      case kReceived:
        return {root, value.bytes};
      case kMade:
        return {root, value.storage_bytes};
      default:
        return {root, 0};  // the caller's
    }
  }
  // Whether a send of v needs no copy of its own: v fills its storage.
  bool FillsStorage(int v) const {
    const int root = Root(v);
    const int64_t whole =
        here_[root] == kMade ? graph_.values[root].storage_bytes : graph_.values[root].bytes;
    return graph_.values[v].bytes == whole;
  }

  // Most bytes that one operator of the forward finds or makes and that are gone when it ends:
  // values that nobody keeps, until their last reader has run, and scratch.
  int64_t ForwardScratch(const std::set<int>& kept) const {
    std::map<int, int> last_use;  // storage -> node
    for (const int n : nodes_) {
      for (const int v : outputs_[n]) last_use[Root(v)] = n;
    }
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (here_[v] != kMade) continue;
      const auto it = last_use.find(Root(v));
      if (it == last_use.end()) continue;
      for (const int n : graph_.values[v].consumers) {
        if (std::binary_search(nodes_.begin(), nodes_.end(), n))
          it->second = std::max(it->second, n);
      }
    }
    std::map<int, int64_t> freed_after;  // node -> bytes
    int64_t live = 0;
    int64_t peak = 0;
    for (const int n : nodes_) {
      for (const int v : outputs_[n]) {
        const HeldStorage storage = Storage(v);
        if (storage.storage != v || here_[v] != kMade || kept.count(v) > 0) continue;
        live += storage.bytes;
        freed_after[last_use[v]] += storage.bytes;
      }
      peak = std::max(peak, live + graph_.nodes[n].temporary_bytes);
      if (const auto it = freed_after.find(n); it != freed_after.end()) live -= it->second;
    }
    return peak;
  }

 private:
  enum Where : char { kElsewhere, kInput, kMade, kReceived };

  const CostGraph& graph_;
  const std::vector<std::vector<int>>& outputs_;
  std::vector<int> nodes_;   // owned and copied, ascending
  std::vector<Where> here_;  // by value
};

// Storages without bytes are nobody's concern.
void Hold(std::vector<HeldStorage>& list, const HeldStorage& storage) {
  if (storage.bytes == 0) return;
  const auto same = [&](const HeldStorage& s) { return s.storage == storage.storage; };
  if (std::none_of(list.begin(), list.end(), same)) list.push_back(storage);
}

// A ring all-reduce over n ranks: each moves 2 (n-1)/n of the bytes, in 2 (n-1) messages.
double RingMs(const Plan& plan, int n, int64_t bytes) {
  if (n < 2 || bytes == 0) return 0;
  const double rate = plan.cluster.hosts[0].link.bytes_per_ms;
  return (rate > 0 ? 2.0 * (n - 1) / n * bytes / rate : 0) +
         2 * (n - 1) * plan.cluster.hosts[0].link.latency_ms;
}

}  // namespace

EdgeCost MessageCost(const Plan& plan, const StageEdge& edge) {
  const auto message_ms = [&](int64_t bytes) {
    return plan.cluster.hosts[0].link.latency_ms +
           (plan.cluster.hosts[0].link.bytes_per_ms > 0
                ? bytes / plan.cluster.hosts[0].link.bytes_per_ms
                : 0);
  };
  return {message_ms(edge.bytes), edge.has_gradient ? message_ms(edge.gradient_bytes) : 0};
}

absl::StatusOr<SimulationInput> ComposeInput(const Plan& plan, const CostGraph& graph) {
  const OptimizerCost* optimizer =
      std::find_if(std::begin(kOptimizers), std::end(kOptimizers),
                   [&](const OptimizerCost& o) { return plan.optimizer == o.name; });
  if (optimizer == std::end(kOptimizers)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown optimizer '", plan.optimizer,
                                                   "': known are sgd, sgd-momentum, adam, adamw"));
  }
  const bool trains = plan.schedule != "forward";
  const DeviceSpec& device = plan.cluster.hosts[0].devices[0].device;
  const double memory_rate = device.memory_bytes_per_ms * device.memory_efficiency;

  std::vector<std::vector<int>> outputs_of_node(graph.nodes.size());
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const int producer = graph.values[v].producer;
    if (producer != kModelInput) outputs_of_node[producer].push_back(v);
  }
  std::vector<int64_t> backward_scratch(graph.nodes.size());
  for (const CostValue& value : graph.values) {
    if (value.producer != kModelInput) backward_scratch[value.producer] += value.gradient_bytes;
    for (const int n : value.consumers) backward_scratch[n] += value.gradient_bytes;
  }

  SimulationInput input;
  input.placement = plan.Placement();
  input.edges = plan.edges;
  input.edge_costs.resize(plan.edges.size());
  input.edge_memory.resize(plan.edges.size());

  // Parameters that each stage's operators use, and the ranks that hold each.
  std::vector<std::set<int>> used(plan.stages.size());
  std::vector<int> holders(graph.parameters.size());
  for (const PlanStage& stage : plan.stages) {
    for (const std::vector<int>* nodes : {&stage.nodes, &stage.copied_nodes}) {
      for (const int n : *nodes) {
        used[stage.index].insert(graph.nodes[n].parameters.begin(),
                                 graph.nodes[n].parameters.end());
      }
    }
    for (const int q : used[stage.index]) holders[q] += stage.ranks.size();
  }

  int next_copy = graph.values.size() + graph.nodes.size();  // ids of a send's own copies
  for (const PlanStage& stage : plan.stages) {
    const StageView view(graph, plan, stage, outputs_of_node);
    StageCost cost;
    StageMemory memory;
    for (const int n : view.nodes()) {
      const CostNode& node = graph.nodes[n];
      cost.forward_ms += node.forward_ms;
      if (!trains) continue;
      cost.backward_input_ms += node.backward_input_ms;
      cost.backward_weight_ms += node.backward_weight_ms;
      for (const int v : node.saved_values) Hold(memory.saved, view.Storage(v));
      Hold(memory.saved, {static_cast<int>(graph.values.size()) + n, node.saved_bytes});
    }
    for (const std::vector<int>* list : {&stage.owned_parameters, &stage.copied_parameters}) {
      for (const int q : *list) memory.weight_bytes += graph.parameters[q].bytes;
    }
    std::map<int, int64_t> reduced;  // ranks that hold it -> bytes
    for (const int q : used[stage.index]) {
      if (!trains || !graph.parameters[q].trains) continue;
      memory.gradient_bytes += graph.parameters[q].bytes;
      reduced[holders[q]] += graph.parameters[q].bytes;
    }
    memory.optimizer_bytes = optimizer->state_copies * memory.gradient_bytes;
    for (const auto& [n, bytes] : reduced) cost.reduce_ms += RingMs(plan, n, bytes);
    if (memory_rate > 0) cost.step_ms = optimizer->passes * memory.gradient_bytes / memory_rate;

    for (const int v : graph.results) {
      const int producer = graph.values[v].producer;
      const bool made_here =
          producer == kModelInput
              ? stage.index == 0
              : std::binary_search(stage.nodes.begin(), stage.nodes.end(), producer);
      if (made_here) Hold(memory.results, view.Storage(v));
    }

    std::set<int> kept;
    for (const auto* list : {&memory.saved, &memory.results}) {
      for (const HeldStorage& s : *list) kept.insert(s.storage);
    }
    for (size_t e = 0; e < plan.edges.size(); ++e) {
      const StageEdge& edge = plan.edges[e];
      if (edge.from == stage.index) {
        for (const int v : edge.values) {
          if (view.FillsStorage(v)) {
            Hold(input.edge_memory[e].sent, view.Storage(v));
            kept.insert(view.Root(v));
          } else {
            Hold(input.edge_memory[e].sent, {next_copy++, graph.values[v].bytes});
          }
        }
      }
      if (edge.to == stage.index) {
        for (const int v : edge.values) {
          Hold(input.edge_memory[e].received, {v, graph.values[v].bytes});
        }
      }
    }
    memory.temporary_bytes = view.ForwardScratch(kept);
    for (const int n : view.nodes()) {
      if (!trains) break;
      int64_t scratch = graph.nodes[n].temporary_bytes + backward_scratch[n];
      for (const int q : graph.nodes[n].parameters) {
        if (graph.parameters[q].trains) scratch += graph.parameters[q].bytes;
      }
      memory.temporary_bytes = std::max(memory.temporary_bytes, scratch);
    }
    input.stage_costs.push_back(cost);
    input.stage_memory.push_back(std::move(memory));
  }

  for (size_t e = 0; e < plan.edges.size(); ++e) {
    const StageEdge& edge = plan.edges[e];
    input.edge_memory[e].gradient_bytes = edge.gradient_bytes;
    input.edge_costs[e] = MessageCost(plan, edge);
  }
  return input;
}

absl::StatusOr<Simulation> SimulatePlan(const Plan& plan, const CostGraph& graph) {
  absl::StatusOr<Schedule> schedule = BuildSchedule(plan);
  if (!schedule.ok()) return schedule.status();
  absl::StatusOr<SimulationInput> input = ComposeInput(plan, graph);
  if (!input.ok()) return input.status();
  return Simulate(*schedule, *input);
}

}  // namespace autopart
