// What follows from an assignment of nodes to stages: copies, edges, schedule; and the checks that
// every load of a plan runs.
#include "pipeline/plan.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "pipeline/internal/format.h"
#include "pipeline/simulate.h"

namespace autopart {
namespace {

std::vector<std::vector<int>> InputsOfNodes(const CostGraph& graph) {
  std::vector<std::vector<int>> inputs(graph.nodes.size());
  for (size_t v = 0; v < graph.values.size(); ++v) {
    for (const int node : graph.values[v].consumers) inputs[node].push_back(v);
  }
  return inputs;
}

// A simulation input in which everything takes no time and no memory, with rendezvous semantics:
// only the order counts.
SimulationInput OrderOnly(const Plan& plan) {
  SimulationInput input;
  input.placement = plan.Placement();
  input.edges = plan.edges;
  input.stage_costs.resize(plan.stages.size());
  input.stage_memory.resize(plan.stages.size());
  input.receives_ahead = 0;
  return input;
}

// Each of 0..count-1 exactly once over all stages.
absl::Status EachOnce(const Plan& plan, std::vector<int> PlanStage::*list, int64_t count,
                      std::string_view what) {
  std::map<int, int> stage_of;
  for (const PlanStage& stage : plan.stages) {
    for (const int id : stage.*list) {
      const auto [it, fresh] = stage_of.emplace(id, stage.index);
      if (id < 0 || (count >= 0 && id >= count)) {
        return absl::InvalidArgumentError(absl::StrCat("stage ", stage.index, " lists ",
                                                       std::string(what), " ", id, ", of ", count));
      }
      if (!fresh) {
        return absl::InvalidArgumentError(absl::StrCat(std::string(what), " ", id, " is on stage ",
                                                       it->second, " and on stage ", stage.index));
      }
    }
  }
  if (count >= 0 && static_cast<int64_t>(stage_of.size()) != count) {
    int missing = 0;
    while (stage_of.count(missing) > 0) ++missing;
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(what), " ", missing, " is on no stage"));
  }
  return absl::OkStatus();
}

absl::Status Differs(std::string_view what, const std::string& of_plan,
                     const std::string& of_model) {
  return absl::FailedPreconditionError(
      absl::StrCat("the plan was made for another model: ", std::string(what), " is ", of_plan,
                   " in the plan and ", of_model, " in the model; plan the model again"));
}

}  // namespace

StagePlacement Plan::Placement() const {
  StagePlacement placement;
  for (const PlanStage& stage : stages) placement.ranks.push_back(stage.ranks);
  placement.num_ranks = num_devices();
  placement.micro_batches = micro_batches;
  return placement;
}

absl::StatusOr<Schedule> BuildSchedule(const Plan& plan) {
  const StagePlacement placement = plan.Placement();
  absl::StatusOr<Schedule> compute = GenerateSchedule(plan.schedule, placement);
  if (!compute.ok()) return compute.status();
  return Lower(*compute, placement, plan.edges);
}

std::vector<std::vector<int>> ComputeCopiedNodes(const CostGraph& graph,
                                                 const std::vector<int>& stage_of_node,
                                                 int num_stages) {
  const std::vector<std::vector<int>> inputs = InputsOfNodes(graph);
  // Copyable in fact: everything that it depends on is copied with it.
  std::vector<bool> copyable(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    copyable[n] =
        graph.nodes[n].copyable && std::all_of(inputs[n].begin(), inputs[n].end(), [&](int v) {
          const int producer = graph.values[v].producer;
          return producer != kModelInput && copyable[producer];
        });
  }
  std::vector<std::vector<bool>> present(num_stages, std::vector<bool>(graph.nodes.size()));
  for (size_t n = 0; n < graph.nodes.size(); ++n) present[stage_of_node[n]][n] = true;
  std::vector<std::vector<int>> copied(num_stages);
  for (int stage = 0; stage < num_stages; ++stage) {
    for (int n = static_cast<int>(graph.nodes.size()) - 1; n >= 0; --n) {
      if (!present[stage][n]) continue;
      if (stage_of_node[n] != stage) copied[stage].push_back(n);
      for (const int v : inputs[n]) {
        const int producer = graph.values[v].producer;
        if (producer != kModelInput && copyable[producer]) present[stage][producer] = true;
      }
    }
    std::reverse(copied[stage].begin(), copied[stage].end());
  }
  return copied;
}

std::vector<StageEdge> ComputeEdges(const CostGraph& graph, const std::vector<int>& stage_of_node,
                                    const std::vector<std::vector<int>>& copied_nodes) {
  std::vector<std::vector<int>> copies_of(graph.nodes.size());  // stages, ascending
  for (size_t stage = 0; stage < copied_nodes.size(); ++stage) {
    for (const int n : copied_nodes[stage]) copies_of[n].push_back(stage);
  }
  // Nodes that hand no gradient back, as no result of theirs has one: reading a size.
  std::vector<bool> gives_none(graph.nodes.size());
  for (const CostValue& value : graph.values) {
    if (value.producer != kModelInput) gives_none[value.producer] = true;
  }
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const CostValue& value = graph.values[v];
    if (value.producer == kModelInput) continue;
    if (value.gradient_bytes > 0 || static_cast<int>(v) == graph.loss) {
      gives_none[value.producer] = false;
    }
  }
  std::map<std::pair<int, int>, StageEdge> edges;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const CostValue& value = graph.values[v];
    const int from = value.producer == kModelInput ? 0 : stage_of_node[value.producer];
    std::vector<int> readers;
    for (const int n : value.consumers) {
      readers.push_back(stage_of_node[n]);
      readers.insert(readers.end(), copies_of[n].begin(), copies_of[n].end());
    }
    std::sort(readers.begin(), readers.end());
    readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
    for (const int to : readers) {
      if (to == from) continue;
      if (value.producer != kModelInput) {
        const std::vector<int>& copies = copies_of[value.producer];
        if (std::binary_search(copies.begin(), copies.end(), to)) continue;
      }
      StageEdge& edge = edges[{from, to}];
      edge.from = from;
      edge.to = to;
      edge.values.push_back(v);
      edge.has_gradient |= value.gradient_bytes > 0;
      edge.bytes += value.bytes;
      const bool comes_back =
          std::any_of(value.consumers.begin(), value.consumers.end(), [&](int n) {
            return !gives_none[n] &&
                   (stage_of_node[n] == to ||
                    std::binary_search(copies_of[n].begin(), copies_of[n].end(), to));
          });
      if (comes_back) edge.gradient_bytes += value.gradient_bytes;
    }
  }
  std::vector<StageEdge> sorted;
  for (auto& [key, edge] : edges) sorted.push_back(std::move(edge));
  return sorted;
}

StageEdge ForwardOnly(StageEdge edge) {
  edge.has_gradient = false;
  edge.gradient_bytes = 0;
  return edge;
}

absl::Status Validate(const Plan& plan) {
  if (plan.version != kPlanVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan has version ", plan.version, ", this program knows ", kPlanVersion));
  }
  if (plan.stages.empty()) return absl::InvalidArgumentError("the plan has no stage");
  if (absl::Status s = Validate(plan.cluster); !s.ok()) return s;
  const int num_devices = plan.num_devices();
  std::vector<int> used(num_devices, 0);
  int64_t parameters = 0;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const PlanStage& stage = plan.stages[i];
    if (stage.index != static_cast<int>(i)) {
      return absl::InvalidArgumentError(
          absl::StrCat("stage ", i, " of the plan calls itself ", stage.index));
    }
    for (const int rank : stage.ranks) {
      if (rank < 0 || rank >= num_devices) {
        return absl::InvalidArgumentError(absl::StrCat(
            "stage ", i, " is on rank ", rank, ", but the plan has ", num_devices, " devices"));
      }
      ++used[rank];
    }
    if (!std::is_sorted(stage.nodes.begin(), stage.nodes.end())) {
      return absl::InvalidArgumentError(absl::StrCat("the nodes of stage ", i, " do not ascend"));
    }
    if (stage.operators != static_cast<int64_t>(stage.nodes.size())) {
      return absl::InvalidArgumentError(absl::StrCat("stage ", i, " counts ", stage.operators,
                                                     " operators but lists ", stage.nodes.size()));
    }
    parameters += stage.parameters;
  }
  for (int rank = 0; rank < num_devices; ++rank) {
    if (used[rank] == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " of ", num_devices, " has no stage"));
    }
  }
  if (parameters != plan.model.parameters) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the stages own ", parameters, " parameters, the model has ", plan.model.parameters));
  }
  if (absl::Status s = EachOnce(plan, &PlanStage::nodes, plan.model.operators, "node"); !s.ok()) {
    return s;
  }
  if (absl::Status s = EachOnce(plan, &PlanStage::owned_parameters, -1, "parameter"); !s.ok()) {
    return s;
  }
  const auto are_stages = [&](const std::vector<int>& list) {
    return std::is_sorted(list.begin(), list.end()) &&
           std::all_of(list.begin(), list.end(),
                       [&](int s) { return s >= 0 && s < static_cast<int>(plan.stages.size()); });
  };
  for (const Reduction& reduction : plan.reductions) {
    if (reduction.stages.empty() || !are_stages(reduction.stages)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a reduction of ", reduction.bytes, " bytes is of stages ",
                       absl::StrJoin(reduction.stages, ","), ", of ", plan.stages.size()));
    }
  }
  for (const PlanStage& stage : plan.stages) {
    if (stage.backward_weight_ms > stage.backward_ms) {
      return absl::InvalidArgumentError(absl::StrCat("the backward of stage ", stage.index,
                                                     " takes ", stage.backward_ms, " ms, of which ",
                                                     stage.backward_weight_ms, " for weights"));
    }
    for (const StageStorage& storage : stage.held.storages) {
      if (are_stages(storage.sent_to) && are_stages(storage.received_from)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("stage ", stage.index, " holds ", storage.bytes, " bytes that go to stages ",
                       absl::StrJoin(storage.sent_to, ","), " and come from ",
                       absl::StrJoin(storage.received_from, ",")));
    }
  }
  absl::StatusOr<Schedule> schedule = BuildSchedule(plan);
  if (!schedule.ok()) return schedule.status();
  return Simulate(*schedule, OrderOnly(plan)).status();
}

absl::Status Validate(const Plan& plan, const CostGraph& graph) {
  if (absl::Status s = Validate(plan); !s.ok()) return s;
  if (plan.model.hash != graph.model_hash) {
    return Differs("its hash", plan.model.hash, graph.model_hash);
  }
  if (plan.model.operators != static_cast<int64_t>(graph.nodes.size())) {
    return Differs("its number of operators", absl::StrCat(plan.model.operators),
                   absl::StrCat(graph.nodes.size()));
  }
  if (absl::Status s =
          EachOnce(plan, &PlanStage::owned_parameters, graph.parameters.size(), "parameter");
      !s.ok()) {
    return s;
  }
  std::vector<int> stage_of_node(graph.nodes.size());
  std::vector<std::vector<int>> copied;
  for (const PlanStage& stage : plan.stages) {
    for (const int n : stage.nodes) stage_of_node[n] = stage.index;
    for (const int n : stage.copied_nodes) {
      if (n < 0 || n >= static_cast<int>(graph.nodes.size()) || !graph.nodes[n].copyable) {
        return absl::InvalidArgumentError(
            absl::StrCat("stage ", stage.index, " copies node ", n, ", which cannot be copied"));
      }
    }
    copied.push_back(stage.copied_nodes);
  }
  std::vector<StageEdge> edges = ComputeEdges(graph, stage_of_node, copied);
  for (StageEdge& edge : edges) {
    if (plan.schedule == "forward") edge = ForwardOnly(edge);
    if (edge.from > edge.to) {
      const CostValue& value = graph.values[edge.values[0]];
      return absl::InvalidArgumentError(absl::StrCat("value ", edge.values[0], " (", value.name,
                                                     ") would flow back from stage ", edge.from,
                                                     " to stage ", edge.to));
    }
  }
  if (edges != plan.edges) {
    int64_t planned = 0, found = 0;
    for (const StageEdge& edge : plan.edges) planned += edge.bytes + edge.gradient_bytes;
    for (const StageEdge& edge : edges) found += edge.bytes + edge.gradient_bytes;
    return Differs(
        "what crosses the cuts (the same model, with inputs of another shape?)",
        absl::StrCat(internal::Count(plan.edges.size(), "edge"), " of ", planned, " bytes"),
        absl::StrCat(internal::Count(edges.size(), "edge"), " of ", found, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace autopart
