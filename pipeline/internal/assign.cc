#include "pipeline/internal/assign.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "pipeline/simulate.h"

namespace autopart::internal {

absl::StatusOr<Plan> AssignPlan(const CostGraph& graph, Plan plan,
                                const StageAssignment& assignment) {
  const int num_stages = assignment.ranks.size();
  plan.model = {};
  plan.model.hash = graph.model_hash;
  plan.model.operators = graph.nodes.size();
  plan.model.has_loss = graph.loss >= 0;
  plan.costs_device = graph.device;

  const auto copied = ComputeCopiedNodes(graph, assignment.stage_of_node, num_stages);
  plan.edges = ComputeEdges(graph, assignment.stage_of_node, copied);
  plan.stages.assign(num_stages, {});
  std::vector<std::set<int>> used(num_stages);
  for (int s = 0; s < num_stages; ++s) {
    PlanStage& stage = plan.stages[s];
    stage.index = s;
    stage.ranks = assignment.ranks[s];
    stage.copied_nodes = copied[s];
    stage.copied_operators = copied[s].size();
    for (const int n : copied[s]) {
      used[s].insert(graph.nodes[n].parameters.begin(), graph.nodes[n].parameters.end());
    }
  }
  double measured = 0;
  double all = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const CostNode& node = graph.nodes[n];
    PlanStage& stage = plan.stages[assignment.stage_of_node[n]];
    stage.nodes.push_back(n);
    if (std::binary_search(assignment.recomputed.begin(), assignment.recomputed.end(), n)) {
      stage.recomputed_nodes.push_back(n);
    }
    ++stage.operators;
    used[stage.index].insert(node.parameters.begin(), node.parameters.end());
    if (!node.module.empty()) {
      if (stage.first_module.empty()) stage.first_module = node.module;
      stage.last_module = node.module;
    }
    const double ms = node.forward_ms + node.backward_input_ms + node.backward_weight_ms;
    all += ms;
    if (node.measured) measured += ms;
  }
  plan.measured_fraction = all > 0 ? measured / all : 0;
  for (size_t q = 0; q < graph.parameters.size(); ++q) {
    const CostParameter& parameter = graph.parameters[q];
    plan.model.parameters += parameter.elements;
    if (parameter.elements > 0) plan.model.parameter_bytes += parameter.bytes;  // no buffers
    PlanStage* owner = nullptr;
    for (int s = 0; s < num_stages; ++s) {
      if (used[s].count(q) == 0) continue;
      PlanStage& stage = plan.stages[s];
      if (owner == nullptr) {
        owner = &stage;
      } else {
        stage.copied_parameters.push_back(q);
        stage.copied_parameters_count += parameter.elements;
      }
    }
    if (owner == nullptr) owner = &plan.stages[0];
    owner->owned_parameters.push_back(q);
    owner->parameters += parameter.elements;
  }
  if (plan.schedule == "forward") {
    for (StageEdge& edge : plan.edges) edge = ForwardOnly(edge);
  }
  if (absl::Status s = ComposeCosts(graph, plan); !s.ok()) return s;
  for (const StageEdge& edge : plan.edges) {
    plan.stages[edge.from].send_bytes += edge.bytes;
    plan.stages[edge.to].send_bytes += edge.gradient_bytes;
  }
  return plan;
}

absl::StatusOr<std::vector<int>> CompletePins(const CostGraph& graph, const std::vector<int>& pins,
                                              int stages) {
  const int n = graph.nodes.size();
  std::map<int, int> stage_of_group;
  for (int i = 0; i < n; ++i) {
    const int group = graph.nodes[i].group;
    if (pins[i] < 0 || group == kNoGroup) continue;
    const auto [it, fresh] = stage_of_group.emplace(group, pins[i]);
    if (!fresh && it->second != pins[i]) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", i, " (", graph.nodes[i].name, " in '", graph.nodes[i].module,
                       "') is pinned to stage ", pins[i],
                       " and a node that it must stay with to stage ", it->second));
    }
  }
  std::vector<int> stage(pins);
  for (int i = 0; i < n; ++i) {
    const auto it = stage_of_group.find(graph.nodes[i].group);
    if (graph.nodes[i].group != kNoGroup && it != stage_of_group.end()) stage[i] = it->second;
  }
  const std::vector<int> fixed = stage;
  std::vector<std::vector<int>> outputs(n), inputs(n);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].producer != kModelInput) outputs[graph.values[v].producer].push_back(v);
    for (const int reader : graph.values[v].consumers) inputs[reader].push_back(v);
  }
  std::vector<int> latest(n, stages - 1);
  for (int i = n - 1; i >= 0; --i) {
    for (const int v : outputs[i]) {
      for (const int reader : graph.values[v].consumers) {
        latest[i] = std::min(latest[i], latest[reader]);
      }
    }
    if (fixed[i] >= 0) latest[i] = std::min(latest[i], fixed[i]);
  }
  // Free groups move to the latest stage that one of their members needs; repeat until none moves.
  for (bool moved = true; moved;) {
    moved = false;
    std::map<int, int> group_needs;
    for (int i = 0; i < n; ++i) {
      int earliest = -1;
      for (const int v : inputs[i]) {
        if (graph.values[v].producer != kModelInput) {
          earliest = std::max(earliest, stage[graph.values[v].producer]);
        }
      }
      if (fixed[i] >= 0) {
        if (earliest > fixed[i]) {
          return absl::InvalidArgumentError(
              absl::StrCat("node ", i, " (", graph.nodes[i].name, " in '", graph.nodes[i].module,
                           "') is pinned to stage ", fixed[i], " but reads what stage ", earliest,
                           " makes: values only flow to later stages"));
        }
        continue;
      }
      int wanted = std::max(earliest, stage[i]);
      if (wanted < 0) wanted = latest[i];
      if (const auto it = stage_of_group.find(graph.nodes[i].group);
          graph.nodes[i].group != kNoGroup && it != stage_of_group.end()) {
        wanted = std::max(wanted, it->second);
      }
      if (graph.nodes[i].group != kNoGroup) {
        int& needs = stage_of_group.emplace(graph.nodes[i].group, wanted).first->second;
        if (wanted > needs) needs = wanted;
      }
      moved |= wanted != stage[i];
      stage[i] = wanted;
    }
  }
  return stage;
}

}  // namespace autopart::internal
