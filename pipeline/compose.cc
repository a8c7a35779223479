// Plan + CostGraph -> what the simulator needs: times and storages of each stage, reductions.
//
// Nodes that are recomputed keep nothing from their forward to their backward, and what they make
// is kept by nobody; instead the stage keeps what they read and others make. While its backward
// runs a micro-batch has all of it again.
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

// One storage that a stage holds for a micro-batch.
struct HeldStorage {
  int storage = 0;  // a value; private bytes of a node and copies for sends have ids past those
  int64_t bytes = 0;
};

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
  bool MadeHere(int v) const { return here_[v] == kMade; }

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

  // Most bytes that one operator of the backward finds or makes beyond what the stage holds on
  // either side of the backward: its own scratch and gradients (a node's temporary bytes have both)
  // and gradients that wait for others, less what was freed on the way. In the first backward of a
  // step the gradients of parameters are made on the way too. received_bytes: of the gradient
  // messages that are used up.
  int64_t BackwardScratch(const std::map<int, int64_t>& freed_after, int64_t received_bytes) const {
    std::map<int, GradientsAt> at = GradientsByNode();
    int64_t freed = 0, made = 0;
    for (const auto& [node, bytes] : freed_after) {
      at[node].freed = bytes;
      freed += bytes;
    }
    for (const auto& [node, gradients] : at) made += gradients.kept;
    // The seed of the backward is there until it ends.
    int64_t waiting =
        graph_.loss >= 0 && MadeHere(graph_.loss) ? graph_.values[graph_.loss].gradient_bytes : 0;
    int64_t kept = 0;
    int64_t peak = 0, first_peak = 0;
    for (auto n = nodes_.rbegin(); n != nodes_.rend(); ++n) {
      const GradientsAt& here = at[*n];
      const int64_t now = waiting - here.own + graph_.nodes[*n].temporary_bytes + here.summed;
      peak = std::max(peak, now);
      first_peak = std::max(first_peak, now + kept);
      kept += here.kept;
      waiting += here.begin - here.own - here.end - here.freed;
    }
    return std::max(peak, first_peak - std::max<int64_t>(0, made - freed - received_bytes));
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
      peak = std::max(peak, live + graph_.nodes[n].ForwardTemporaryBytes());
      if (const auto it = freed_after.find(n); it != freed_after.end()) live -= it->second;
    }
    return peak;
  }

 private:
  enum Where : char { kElsewhere, kInput, kMade, kReceived };

  // What the backward of one node does to gradients, in bytes.
  struct GradientsAt {
    int64_t begin = 0;   // wait for other nodes from now on
    int64_t own = 0;     // of the node's results: waited for it, and its temporary bytes have them
    int64_t end = 0;     // of parameters: waited for it and are done with it
    int64_t summed = 0;  // sums of gradients that it makes with those that are there
    int64_t kept = 0;    // of parameters: complete with it
    int64_t freed = 0;   // no gradients: what was saved and is not used again
  };

  std::map<int, GradientsAt> GradientsByNode() const {
    std::map<int, GradientsAt> at;
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const CostValue& value = graph_.values[v];
      if (value.gradient_bytes == 0 || here_[v] == kElsewhere) continue;
      int last_reader = -1;
      for (const int n : value.consumers) {
        if (!std::binary_search(nodes_.begin(), nodes_.end(), n)) continue;
        if (last_reader >= 0) at[last_reader].summed += value.gradient_bytes;
        last_reader = n;
      }
      if (last_reader < 0) continue;
      at[last_reader].begin += value.gradient_bytes;
      if (here_[v] == kMade) at[value.producer].own += value.gradient_bytes;
    }
    // The gradient of a parameter waits until all its readers have added to it.
    std::map<int, std::vector<int>> readers;
    for (const int n : nodes_) {
      for (const int q : graph_.nodes[n].parameters) {
        if (graph_.parameters[q].trains) readers[q].push_back(n);
      }
    }
    for (const auto& [q, of] : readers) {
      const int64_t bytes = graph_.parameters[q].bytes;
      at[of.front()].kept += bytes;
      for (size_t i = 0; i + 1 < of.size(); ++i) at[of[i]].summed += bytes;
      if (of.size() == 1) continue;
      at[of.back()].begin += bytes;
      at[of.front()].end += bytes;
    }
    return at;
  }

  const CostGraph& graph_;
  const std::vector<std::vector<int>>& outputs_;
  std::vector<int> nodes_;   // owned and copied, ascending
  std::vector<Where> here_;  // by value
};

// The storages of a stage, with all reasons to hold each.
class StorageTable {
 public:
  // Storages without bytes are nobody's concern.
  StageStorage* Find(const HeldStorage& held) {
    if (held.bytes == 0) return nullptr;
    StageStorage& storage = storages_[held.storage];
    storage.bytes = held.bytes;
    return &storage;
  }
  // What of it goes when its last use in the backward is over. What was received counts nothing: it
  // came in one piece with other values.
  int64_t BytesFreedInBackward(int id) const {
    const auto it = storages_.find(id);
    return it == storages_.end() || it->second.result || !it->second.received_from.empty()
               ? 0
               : it->second.bytes;
  }
  std::set<int> Kept() const {
    std::set<int> kept;
    for (const auto& [id, storage] : storages_) {
      if (storage.is_activation() || !storage.sent_to.empty()) kept.insert(id);
    }
    return kept;
  }
  // Those that are held for the same reasons as one.
  std::vector<StageStorage> Merged() const {
    std::vector<StageStorage> merged;
    for (const auto& [id, storage] : storages_) {
      const auto same = std::find_if(merged.begin(), merged.end(), [&](const StageStorage& s) {
        return s.saved == storage.saved && s.result == storage.result &&
               s.sent_to == storage.sent_to && s.received_from == storage.received_from;
      });
      if (same == merged.end()) {
        merged.push_back(storage);
      } else {
        same->bytes += storage.bytes;
      }
    }
    return merged;
  }

 private:
  std::map<int, StageStorage> storages_;
};

}  // namespace

absl::Status ComposeCosts(const CostGraph& graph, Plan& plan) {
  const OptimizerCost* optimizer =
      std::find_if(std::begin(kOptimizers), std::end(kOptimizers),
                   [&](const OptimizerCost& o) { return plan.optimizer == o.name; });
  if (optimizer == std::end(kOptimizers)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown optimizer '", plan.optimizer,
                                                   "': known are sgd, sgd-momentum, adam, adamw"));
  }
  const bool trains = plan.schedule != "forward";
  const DeviceSpec& device = plan.cluster.hosts[0].devices[0].device;
  // Where it was measured how fast this optimizer is, that counts.
  double update_rate = 0;
  for (const UpdateRate& update : graph.machine.updates) {
    if (update.optimizer == plan.optimizer) update_rate = update.bytes_per_ms;
  }
  plan.costs_scale = graph.scale;
  const double memory_rate = device.memory_bytes_per_ms * device.memory_efficiency;
  const int values = graph.values.size();

  std::vector<std::vector<int>> outputs_of_node(graph.nodes.size());
  std::vector<std::vector<int>> inputs_of_node(graph.nodes.size());
  for (int v = 0; v < values; ++v) {
    const CostValue& value = graph.values[v];
    if (value.producer != kModelInput) {
      outputs_of_node[value.producer].push_back(v);
    }
    for (const int n : value.consumers) inputs_of_node[n].push_back(v);
  }

  // Parameters that each stage's operators use, and the stages that use each.
  std::vector<std::set<int>> used(plan.stages.size());
  std::vector<std::vector<int>> users(graph.parameters.size());
  for (const PlanStage& stage : plan.stages) {
    for (const std::vector<int>* nodes : {&stage.nodes, &stage.copied_nodes}) {
      for (const int n : *nodes) {
        used[stage.index].insert(graph.nodes[n].parameters.begin(),
                                 graph.nodes[n].parameters.end());
      }
    }
    for (const int q : used[stage.index]) users[q].push_back(stage.index);
  }
  std::map<std::vector<int>, int64_t> reduced;  // stages -> bytes
  for (size_t q = 0; q < users.size(); ++q) {
    if (trains && graph.parameters[q].trains && !users[q].empty()) {
      reduced[users[q]] += graph.parameters[q].bytes;
    }
  }
  plan.reductions.clear();
  for (const auto& [stages, bytes] : reduced) {
    std::set<int> ranks;
    for (const int s : stages)
      ranks.insert(plan.stages[s].ranks.begin(), plan.stages[s].ranks.end());
    if (ranks.size() > 1 && bytes > 0) plan.reductions.push_back({stages, bytes});
  }

  for (PlanStage& stage : plan.stages) {
    const StageView view(graph, plan, stage, outputs_of_node);
    const std::set<int> again(stage.recomputed_nodes.begin(), stage.recomputed_nodes.end());
    const auto rebuilt = [&](int storage) {
      return storage < values && graph.values[storage].producer != kModelInput &&
             view.MadeHere(storage) && again.count(graph.values[storage].producer) > 0;
    };
    StorageTable table;
    std::map<int, int64_t> rebuilt_bytes;  // storage -> bytes
    std::map<int, int> first_saver;        // storage -> the node whose backward is its last use
    const auto save = [&](const HeldStorage& held, int node) {
      if (rebuilt(held.storage)) {
        rebuilt_bytes[held.storage] = held.bytes;
      } else if (StageStorage* storage = table.Find(held)) {
        storage->saved = true;
        first_saver.emplace(held.storage, node);  // nodes come in ascending order
      }
    };
    stage.forward_ms = stage.backward_ms = stage.backward_weight_ms = stage.recompute_ms = 0;
    double backward_input_ms = 0;
    for (const int n : view.nodes()) {
      const CostNode& node = graph.nodes[n];
      stage.forward_ms += node.forward_ms;
      if (!trains) continue;
      backward_input_ms += node.backward_input_ms;
      stage.backward_weight_ms += node.backward_weight_ms;
      for (const int v : node.saved_values) save(view.Storage(v), n);
      if (again.count(n) == 0) {
        save({values + n, node.saved_bytes}, n);
        continue;
      }
      stage.recompute_ms += node.forward_ms;
      rebuilt_bytes[values + n] = node.saved_bytes;
      for (const int v : inputs_of_node[n]) {
        if (!rebuilt(view.Root(v))) save(view.Storage(v), n);
      }
    }
    stage.backward_ms = backward_input_ms + stage.backward_weight_ms;

    StageMemory& memory = stage.held;
    memory = {};
    for (const std::vector<int>* list : {&stage.owned_parameters, &stage.copied_parameters}) {
      for (const int q : *list) memory.weight_bytes += graph.parameters[q].bytes;
    }
    for (const int q : used[stage.index]) {
      if (trains && graph.parameters[q].trains) memory.gradient_bytes += graph.parameters[q].bytes;
    }
    const int64_t sharers = plan.shard_optimizer ? stage.ranks.size() : 1;
    memory.optimizer_bytes =
        (optimizer->state_copies * memory.gradient_bytes + sharers - 1) / sharers;
    if (update_rate <= 0 && memory_rate > 0) update_rate = memory_rate / optimizer->passes;
    stage.optimizer_ms = update_rate > 0 ? memory.gradient_bytes / update_rate / sharers : 0;

    for (const int v : graph.results) {
      const int producer = graph.values[v].producer;
      const bool made_here =
          producer == kModelInput
              ? stage.index == 0
              : std::binary_search(stage.nodes.begin(), stage.nodes.end(), producer);
      if (!made_here) continue;
      if (StageStorage* storage = table.Find(view.Storage(v))) storage->result = true;
    }

    int next_copy = values + graph.nodes.size();  // ids of a send's own copies
    for (const StageEdge& edge : plan.edges) {
      for (const int v : edge.values) {
        if (edge.from == stage.index) {
          const HeldStorage held = view.FillsStorage(v)
                                       ? view.Storage(v)
                                       : HeldStorage{next_copy++, graph.values[v].bytes};
          StageStorage* storage = table.Find(held);
          if (storage != nullptr &&
              (storage->sent_to.empty() || storage->sent_to.back() != edge.to)) {
            storage->sent_to.push_back(edge.to);
          }
        }
        if (edge.to == stage.index) {
          if (StageStorage* storage = table.Find({v, graph.values[v].bytes})) {
            storage->received_from.push_back(edge.from);
          }
        }
      }
    }
    memory.storages = table.Merged();

    memory.temporary_bytes = view.ForwardScratch(table.Kept());
    int64_t again_bytes = 0;
    for (const auto& [id, bytes] : rebuilt_bytes) again_bytes += bytes;
    if (!trains) continue;
    std::map<int, int64_t> freed_after;  // node -> bytes that its backward is the last to use
    for (const auto& [id, node] : first_saver) {
      if (const int64_t bytes = table.BytesFreedInBackward(id); bytes > 0) {
        freed_after[node] += bytes;
      }
    }
    int64_t received_bytes = 0;
    for (const StageEdge& edge : plan.edges) {
      if (edge.from == stage.index && edge.has_gradient) received_bytes += edge.gradient_bytes;
    }
    memory.temporary_bytes = std::max(
        memory.temporary_bytes, again_bytes + view.BackwardScratch(freed_after, received_bytes));
  }
  return absl::OkStatus();
}

std::vector<double> RankSlowness(const Cluster& cluster, std::string_view dtype) {
  const std::vector<DeviceSpec> types = DeviceTypes(cluster);
  if (types.size() < 2) return {};
  const auto rate = [&](const DeviceSpec& device) {
    return device.matrix_efficiency *
           (dtype == "fp32" ? device.fp32_flops_per_ms : device.half_flops_per_ms);
  };
  std::vector<double> slowness;
  for (const DevicePlace& place : PlacesOf(cluster)) {
    const double own = rate(types[place.device_type]);
    slowness.push_back(own > 0 && rate(types[0]) > 0 ? rate(types[0]) / own : 1);
  }
  return slowness;
}

SimulationInput InputOf(const Plan& plan) {
  SimulationInput input;
  input.placement = plan.Placement();
  input.edges = plan.edges;
  for (const PlanStage& stage : plan.stages) {
    input.stage_costs.push_back({stage.forward_ms, stage.backward_ms - stage.backward_weight_ms,
                                 stage.backward_weight_ms, stage.recompute_ms, stage.optimizer_ms});
    input.stage_memory.push_back(stage.held);
  }
  input.reductions = plan.reductions;
  input.cluster = plan.cluster;
  input.rank_slowness = RankSlowness(plan.cluster, plan.dtype);
  input.reduce_bucket_bytes = plan.reduce_bucket_bytes;
  return input;
}

absl::StatusOr<Simulation> SimulatePlan(const Plan& plan) {
  absl::StatusOr<Schedule> schedule = BuildSchedule(plan);
  if (!schedule.ok()) return schedule.status();
  return Simulate(*schedule, InputOf(plan));
}

}  // namespace autopart
