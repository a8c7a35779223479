#include "partitioner/cost_graph.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "partitioner/internal/cycle.h"
#include "partitioner/internal/json_fields.h"
#include "partitioner/internal/json_records.h"

namespace autopart {
namespace {

using internal::Json;
using internal::JsonFields;

constexpr char kFormat[] = "autopart.cost_graph";
constexpr int kVersion = 1;

template <typename... Pieces>
absl::Status Bad(const Pieces&... pieces) {
  return absl::InvalidArgumentError(absl::StrCat("cost graph: ", pieces...));
}

// `label` says whose ids they are, `kind` of what: "node".
absl::Status ValidateIds(const std::vector<int>& ids, size_t limit, const std::string& label,
                         const char* kind) {
  for (const int id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= limit) {
      return Bad(label, ": there is no ", kind, " ", id, ", the graph has ", limit, " ", kind, "s");
    }
  }
  for (size_t i = 1; i < ids.size(); ++i) {
    if (ids[i - 1] >= ids[i]) {
      return Bad(label, " want to be ascending ", kind, " ids, each once: ", ids[i],
                 " stands behind ", ids[i - 1]);
    }
  }
  return absl::OkStatus();
}

bool IsCost(double ms) { return std::isfinite(ms) && ms >= 0; }

std::string NodeLabel(const CostGraph& graph, int node) {
  return absl::StrCat("node ", node, " (", graph.nodes[node].name, ")");
}

absl::Status ValidateParameter(const CostGraph& graph, size_t i) {
  const CostParameter& parameter = graph.parameters[i];
  if (parameter.elements < 0 || parameter.bytes < 0) {
    return Bad("parameter ", i, " (", parameter.name, ") has a negative size");
  }
  return absl::OkStatus();
}

// What is wrong with an edge to a lower index: perhaps the order only, perhaps a cycle.
absl::Status BackwardEdge(const CostGraph& graph, const CostValue& at_fault,
                          const std::string& label) {
  const int num_nodes = static_cast<int>(graph.nodes.size());
  std::vector<std::vector<int>> successors(num_nodes);
  for (const CostValue& value : graph.values) {
    if (value.producer < 0 || value.producer >= num_nodes) continue;
    for (const int consumer : value.consumers) {
      if (consumer >= 0 && consumer < num_nodes) successors[value.producer].push_back(consumer);
    }
  }
  const std::vector<int> cycle = internal::FindCycle(successors);
  if (cycle.empty()) {
    return Bad(label, " is made by node ", at_fault.producer, " and read by node ",
               at_fault.consumers.front(),
               ": edges go to a higher index, number the nodes in an order in which they can run");
  }
  const auto name = [&](int node) { return NodeLabel(graph, node); };
  return Bad("a cycle: ", internal::DescribeCycle(cycle, name));
}

absl::Status ValidateValue(const CostGraph& graph, int i) {
  const CostValue& value = graph.values[i];
  const std::string label = absl::StrCat("value ", i, " (", value.name, ")");
  const int num_nodes = static_cast<int>(graph.nodes.size());
  if (value.producer != kModelInput && (value.producer < 0 || value.producer >= num_nodes)) {
    return Bad(label, " has producer ", value.producer, ", but there are ", num_nodes, " nodes");
  }
  if (auto status = ValidateIds(value.consumers, graph.nodes.size(), label + ": consumers", "node");
      !status.ok()) {
    return status;
  }
  if (!value.consumers.empty() && value.consumers.front() <= value.producer) {
    return BackwardEdge(graph, value, label);
  }
  if (value.bytes < 0 || value.gradient_bytes < 0 || value.storage_bytes < 0) {
    return Bad(label, " has a negative size, or a forward that needs more than the whole");
  }
  if (value.view_of != kNoView) {
    if (value.view_of < 0 || value.view_of >= i) {
      return Bad(label, " is a view of value ", value.view_of, ", which does not come before it");
    }
    if (graph.values[value.view_of].producer > value.producer) {
      return Bad(label, " is a view of value ", value.view_of, ", which is made later");
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateNode(const CostGraph& graph, int i) {
  const CostNode& node = graph.nodes[i];
  if (!IsCost(node.forward_ms) || !IsCost(node.backward_input_ms) ||
      !IsCost(node.backward_weight_ms)) {
    return Bad(NodeLabel(graph, i), " has a time that is negative or not finite");
  }
  if (node.saved_bytes < 0 || node.temporary_bytes < 0 || node.forward_temporary_bytes < -1 ||
      node.forward_temporary_bytes > node.temporary_bytes) {
    return Bad(NodeLabel(graph, i),
               " has a negative size, or a forward that needs more than the whole");
  }
  if (auto status = ValidateIds(node.parameters, graph.parameters.size(),
                                NodeLabel(graph, i) + ": parameters", "parameter");
      !status.ok()) {
    return status;
  }
  if (auto status = ValidateIds(node.saved_values, graph.values.size(),
                                NodeLabel(graph, i) + ": saved_values", "value");
      !status.ok()) {
    return status;
  }
  for (const int value : node.saved_values) {
    if (graph.values[value].producer > i) {
      return Bad(NodeLabel(graph, i), " saves value ", value, ", which is made later");
    }
  }
  if (node.group < kNoGroup) return Bad(NodeLabel(graph, i), " has group ", node.group);
  return absl::OkStatus();
}

// Sums of sizes, even if every stage held every value, stay exact in 64 bits.
absl::Status ValidateTotals(const CostGraph& graph) {
  double bytes = 0, ms = 0;
  for (const CostParameter& parameter : graph.parameters) bytes += parameter.bytes;
  for (const CostValue& value : graph.values) {
    bytes +=
        (static_cast<double>(value.bytes) + value.gradient_bytes) * (value.consumers.size() + 1.0) +
        value.storage_bytes;
  }
  for (const CostNode& node : graph.nodes) {
    bytes += static_cast<double>(node.saved_bytes) + node.temporary_bytes;
    ms += node.forward_ms + node.backward_input_ms + node.backward_weight_ms;
  }
  if (bytes > 4e18) return Bad("the sizes add up to more than 64 bits hold");
  if (!std::isfinite(ms)) return Bad("the times add up to infinity");
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const CostGraph& graph) {
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    if (auto status = ValidateParameter(graph, i); !status.ok()) return status;
  }
  for (size_t i = 0; i < graph.values.size(); ++i) {
    if (auto status = ValidateValue(graph, i); !status.ok()) return status;
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (auto status = ValidateNode(graph, i); !status.ok()) return status;
  }
  if (auto status = ValidateIds(graph.results, graph.values.size(), "results", "value");
      !status.ok()) {
    return status;
  }
  if (graph.loss != -1 &&
      (graph.loss < 0 || static_cast<size_t>(graph.loss) >= graph.values.size())) {
    return Bad("loss is value ", graph.loss, ", but there are ", graph.values.size(), " values");
  }
  if (!(graph.scale > 0) || graph.scale > 1e6) return Bad("scale is ", graph.scale);
  for (const double number : {graph.machine.link_bytes_per_ms, graph.machine.link_latency_ms}) {
    if (!(number >= 0) || number > 1e18) return Bad("the link's rate or latency is ", number);
  }
  for (const UpdateRate& update : graph.machine.updates) {
    if (update.bytes_per_ms > 0 && update.bytes_per_ms < 1e18) continue;
    return Bad("the rate of ", update.optimizer, " is ", update.bytes_per_ms);
  }
  return ValidateTotals(graph);
}

std::string ToJson(const CostGraph& graph) {
  Json parameters = Json::array(), values = Json::array(), nodes = Json::array();
  for (const CostParameter& parameter : graph.parameters) {
    parameters.push_back({{"name", parameter.name},
                          {"elements", parameter.elements},
                          {"bytes", parameter.bytes},
                          {"trains", parameter.trains}});
  }
  for (const CostValue& value : graph.values) {
    values.push_back({{"name", value.name},
                      {"producer", value.producer},
                      {"consumers", value.consumers},
                      {"bytes", value.bytes},
                      {"gradient_bytes", value.gradient_bytes},
                      {"view_of", value.view_of},
                      {"storage_bytes", value.storage_bytes}});
  }
  for (const CostNode& node : graph.nodes) {
    nodes.push_back({{"name", node.name},
                     {"module", node.module},
                     {"forward_ms", node.forward_ms},
                     {"backward_input_ms", node.backward_input_ms},
                     {"backward_weight_ms", node.backward_weight_ms},
                     {"parameters", node.parameters},
                     {"saved_values", node.saved_values},
                     {"saved_bytes", node.saved_bytes},
                     {"temporary_bytes", node.temporary_bytes},
                     {"forward_temporary_bytes", node.forward_temporary_bytes},
                     {"group", node.group},
                     {"copyable", node.copyable},
                     {"measured", node.measured}});
  }
  Json updates = Json::array();
  for (const UpdateRate& update : graph.machine.updates) {
    updates.push_back({{"optimizer", update.optimizer}, {"bytes_per_ms", update.bytes_per_ms}});
  }
  const Json json = {{"format", kFormat},
                     {"version", kVersion},
                     {"model_hash", graph.model_hash},
                     {"device", graph.device},
                     {"samples", graph.samples},
                     {"scale", graph.scale},
                     {"link_bytes_per_ms", graph.machine.link_bytes_per_ms},
                     {"link_latency_ms", graph.machine.link_latency_ms},
                     {"updates", std::move(updates)},
                     {"parameters", std::move(parameters)},
                     {"values", std::move(values)},
                     {"nodes", std::move(nodes)},
                     {"results", graph.results},
                     {"loss", graph.loss}};
  // A name that is not UTF-8 is written with replacement characters rather than refused.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<CostGraph> CostGraphFromJson(std::string_view text) {
  using internal::Optional;
  using internal::Required;
  CostGraph graph;
  internal::JsonRecords records;
  records.Each<CostParameter>(
      "parameters",
      {Required("name", &CostParameter::name), Required("elements", &CostParameter::elements),
       Required("bytes", &CostParameter::bytes), Required("trains", &CostParameter::trains)},
      [&](CostParameter& parameter) { graph.parameters.push_back(std::move(parameter)); });
  records.Each<CostValue>(
      "values",
      {Optional("name", &CostValue::name), Required("producer", &CostValue::producer),
       Required("consumers", &CostValue::consumers), Required("bytes", &CostValue::bytes),
       Optional("gradient_bytes", &CostValue::gradient_bytes),
       Optional("view_of", &CostValue::view_of),
       Optional("storage_bytes", &CostValue::storage_bytes)},
      [&](CostValue& value) { graph.values.push_back(std::move(value)); });
  records.Each<CostNode>(
      "nodes",
      {Required("name", &CostNode::name), Optional("module", &CostNode::module),
       Required("forward_ms", &CostNode::forward_ms),
       Optional("backward_input_ms", &CostNode::backward_input_ms),
       Optional("backward_weight_ms", &CostNode::backward_weight_ms),
       Optional("parameters", &CostNode::parameters),
       Optional("saved_values", &CostNode::saved_values),
       Optional("saved_bytes", &CostNode::saved_bytes),
       Optional("temporary_bytes", &CostNode::temporary_bytes),
       Optional("forward_temporary_bytes", &CostNode::forward_temporary_bytes),
       Optional("group", &CostNode::group), Optional("copyable", &CostNode::copyable),
       Optional("measured", &CostNode::measured)},
      [&](CostNode& node) { graph.nodes.push_back(std::move(node)); });
  records.Each<UpdateRate>(
      "updates",
      {Required("optimizer", &UpdateRate::optimizer),
       Required("bytes_per_ms", &UpdateRate::bytes_per_ms)},
      [&](UpdateRate& update) { graph.machine.updates.push_back(std::move(update)); });
  if (auto status = records.Read(text); !status.ok()) return status;

  JsonFields head(records.head(), "");
  if (auto status = internal::CheckFormat(head, kFormat, kVersion); !status.ok()) return status;
  if (!records.status().ok()) return records.status();
  head.Read("model_hash", graph.model_hash, std::string());
  head.Read("device", graph.device, std::string());
  head.Read("samples", graph.samples, int64_t{0});
  head.Read("scale", graph.scale, 1.0);
  head.Read("link_bytes_per_ms", graph.machine.link_bytes_per_ms, 0.0);
  head.Read("link_latency_ms", graph.machine.link_latency_ms, 0.0);
  head.Read("results", graph.results, {});
  head.Read("loss", graph.loss, -1);
  if (!head.status().ok()) return head.status();
  if (auto status = Validate(graph); !status.ok()) return status;
  return graph;
}

}  // namespace autopart
