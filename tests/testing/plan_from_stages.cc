#include "tests/testing/plan_from_stages.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "pipeline/simulate.h"
#include "profiler/alias.h"

namespace autopart::testing {

CostGraph StructureOf(const OpGraph& graph) {
  CostGraph costs;
  std::map<int, int> parameter_of_value;
  for (const Parameter& parameter : graph.parameters) {
    if (parameter.value != kNoValue) {
      parameter_of_value[parameter.value] = static_cast<int>(costs.parameters.size());
    }
    costs.parameters.push_back({parameter.name, parameter.meta.NumElements(),
                                parameter.meta.Bytes(), parameter.trains && !parameter.is_buffer});
  }
  std::set<int> constants;
  for (const ConstantTensor& constant : graph.constants) constants.insert(constant.value);
  for (const Value& value : graph.values) {
    CostValue& v = costs.values.emplace_back();
    v.name = value.name;
    v.producer = value.producer == kNoNode ? kModelInput : value.producer;
    v.bytes = value.tensor.has_value() ? value.tensor->Bytes() : 0;
    // Tuples have no bytes here, but their tensors may need a gradient.
    v.gradient_bytes = value.requires_grad ? std::max<int64_t>(v.bytes, 1) : 0;
    v.storage_bytes = v.producer == kModelInput ? 0 : v.bytes;
  }
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    CostNode& node = costs.nodes.emplace_back();
    node.name = graph.nodes[n].op;
    node.module = graph.nodes[n].module_path;
    node.copyable = graph.nodes[n].copyable;
    for (const int v : ReadValues(graph.nodes[n])) {
      const auto parameter = parameter_of_value.find(v);
      if (parameter != parameter_of_value.end()) {
        node.parameters.push_back(parameter->second);
      } else if (constants.count(v) == 0) {
        costs.values[v].consumers.push_back(n);
      }
    }
    std::sort(node.parameters.begin(), node.parameters.end());
  }
  return costs;
}

Plan PlanFromStages(const OpGraph& graph, const HandPlan& hand) {
  return PlanFromStages(graph, StructureOf(graph), hand);
}

Plan PlanFromStages(const OpGraph& graph, const CostGraph& costs, const HandPlan& hand) {
  const int num_stages =
      1 + *std::max_element(hand.stage_of_node.begin(), hand.stage_of_node.end());
  Plan plan;
  plan.schedule = hand.schedule;
  plan.micro_batches = hand.micro_batches;
  plan.stages.resize(num_stages);
  int num_ranks = 0;
  const auto copied = ComputeCopiedNodes(costs, hand.stage_of_node, num_stages);
  for (int s = 0; s < num_stages; ++s) {
    PlanStage& stage = plan.stages[s];
    stage.index = s;
    const int replicas = hand.replicas.empty() ? 1 : hand.replicas[s];
    for (int r = 0; r < replicas; ++r) stage.ranks.push_back(num_ranks++);
    stage.copied_nodes = copied[s];
    stage.copied_operators = static_cast<int64_t>(copied[s].size());
  }
  plan.cluster = *UniformCluster("cpu", num_ranks);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    PlanStage& stage = plan.stages[hand.stage_of_node[n]];
    stage.nodes.push_back(static_cast<int>(n));
    ++stage.operators;
  }
  std::vector<std::set<int>> users(graph.parameters.size());
  for (size_t n = 0; n < costs.nodes.size(); ++n) {
    for (const int p : costs.nodes[n].parameters) users[p].insert(hand.stage_of_node[n]);
  }
  for (int p = 0; p < static_cast<int>(users.size()); ++p) {
    const int owner = users[p].empty() ? 0 : *users[p].begin();
    plan.stages[owner].owned_parameters.push_back(p);
    const int64_t count = graph.parameters[p].is_buffer ? 0 : costs.parameters[p].elements;
    plan.stages[owner].parameters += count;
    for (const int s : users[p]) {
      if (s == owner) continue;
      plan.stages[s].copied_parameters.push_back(p);
      plan.stages[s].copied_parameters_count += count;
    }
    plan.model.parameters += count;
    plan.model.parameter_bytes += costs.parameters[p].bytes;
  }
  plan.model.operators = static_cast<int64_t>(graph.nodes.size());
  plan.model.has_loss = graph.loss_output.has_value();
  plan.edges = ComputeEdges(costs, hand.stage_of_node, copied);
  for (StageEdge& edge : plan.edges) {
    if (edge.from > edge.to) throw std::runtime_error("the hand-made plan has an edge backwards");
    if (plan.schedule == "forward") edge = ForwardOnly(edge);
  }
  if (absl::Status s = ComposeCosts(costs, plan); !s.ok()) {
    throw std::runtime_error(std::string(s.message()));
  }
  return plan;
}

std::vector<int> EvenStages(const OpGraph& graph, int num_stages) {
  const int num_nodes = static_cast<int>(graph.nodes.size());
  const std::vector<int> group_of_node = WriteGroups(graph);
  std::map<int, std::pair<int, int>> groups;  // first and last node
  std::vector<int> stage_of_node(num_nodes);
  for (int n = 0; n < num_nodes; ++n) {
    stage_of_node[n] = static_cast<int>(static_cast<int64_t>(n) * num_stages / num_nodes);
    if (group_of_node[n] < 0) continue;
    groups.try_emplace(group_of_node[n], n, n).first->second.second = n;
  }
  // A cut inside a group moves behind it.
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [group, span] : groups) {
      for (int n = span.first; n <= span.second; ++n) {
        if (stage_of_node[n] == stage_of_node[span.first]) continue;
        stage_of_node[n] = stage_of_node[span.first];
        changed = true;
      }
    }
  }
  // Stages that vanished leave no gap.
  std::map<int, int> renumber;
  for (const int s : stage_of_node) renumber.emplace(s, static_cast<int>(renumber.size()));
  int next = 0;
  for (auto& [old_stage, stage] : renumber) stage = next++;
  for (int& s : stage_of_node) s = renumber[s];
  return stage_of_node;
}

}  // namespace autopart::testing
