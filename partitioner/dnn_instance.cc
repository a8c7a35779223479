#include "partitioner/dnn_instance.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "partitioner/internal/cycle.h"
#include "partitioner/internal/json_fields.h"
#include "partitioner/internal/problem.h"
#include "partitioner/internal/reduce.h"
#include "partitioner/internal/solve.h"

namespace autopart {
namespace {

using internal::Json;
using internal::JsonFields;

bool IsCost(double x) { return std::isfinite(x) && x >= 0; }

void ReadNode(JsonFields& f, const Json& json, DnnInstance& instance,
              absl::flat_hash_map<std::string, int>& index) {
  DnnNode& node = instance.nodes.emplace_back();
  if (!json.contains("id")) return f.Fail("id", "missing");
  node.id = json["id"].dump();
  if (!index.emplace(node.id, instance.nodes.size() - 1).second) {
    f.Fail("id", absl::StrCat(node.id, " is there twice"));
  }
  f.Read("fpgaLatency", node.accelerator_ms);
  f.Read("cpuLatency", node.cpu_ms);
  f.Read("size", node.bytes, 0.0);
  f.Read("supportedOnFpga", node.on_accelerator, true);
  f.Read("isBackwardNode", node.backward, false);
  f.Read("colorClass", node.color, -1);
  if (!IsCost(node.accelerator_ms)) f.Fail("fpgaLatency", "negative or not finite");
  if (!IsCost(node.cpu_ms)) f.Fail("cpuLatency", "negative or not finite");
  if (!IsCost(node.bytes)) f.Fail("size", "negative or not finite");
}

absl::Status CheckAcyclic(const DnnInstance& instance) {
  std::vector<std::vector<int>> successors(instance.nodes.size());
  for (const DnnEdge& edge : instance.edges) successors[edge.from].push_back(edge.to);
  const std::vector<int> cycle = internal::FindCycle(successors);
  if (cycle.empty()) return absl::OkStatus();
  const auto name = [&](int node) { return instance.nodes[node].id; };
  return absl::InvalidArgumentError(
      absl::StrCat("edges: a cycle of nodes ", internal::DescribeCycle(cycle, name)));
}

// Sums of costs, however they are taken, stay finite.
absl::Status CheckTotals(const DnnInstance& instance) {
  double ms = 0, bytes = 0;
  for (const DnnNode& node : instance.nodes) {
    ms += node.accelerator_ms + node.cpu_ms + 2 * node.output_ms;
    bytes += node.bytes;
  }
  for (const DnnEdge& edge : instance.edges) ms += instance.nodes[edge.from].output_ms;
  if (!std::isfinite(ms)) return absl::InvalidArgumentError("the times add up to infinity");
  if (!std::isfinite(bytes)) return absl::InvalidArgumentError("the sizes add up to infinity");
  return absl::OkStatus();
}

// One class for each colour, and for each node without one.
std::vector<int> ColorLabels(const DnnInstance& instance, int& num_labels) {
  absl::flat_hash_map<int, int> of_color;
  std::vector<int> label;
  num_labels = 0;
  for (const DnnNode& node : instance.nodes) {
    if (node.color < 0) {
      label.push_back(num_labels++);
    } else {
      const auto [it, is_new] = of_color.try_emplace(node.color, num_labels);
      num_labels += is_new;
      label.push_back(it->second);
    }
  }
  return label;
}

// Arcs say which class may not be on a later stage than which. Forward nodes: as their edges go.
// Backward runs through the stages in reverse, and backward nodes follow their class, so only
// classes without forward nodes need arcs of their own: those of their edges, turned round. Left
// free, each would double the number of places to cut.
internal::Problem MakeProblem(const DnnInstance& instance, Objective objective) {
  const int num_nodes = static_cast<int>(instance.nodes.size());
  internal::Problem problem;
  problem.num_elements = num_nodes;
  problem.num_stages = instance.max_accelerators;
  problem.num_cpus = instance.max_cpus;
  problem.objective = objective;
  problem.allow_empty_stages = true;
  problem.memory_bytes = instance.accelerator_bytes;

  int num_labels;
  const std::vector<int> label = ColorLabels(instance, num_labels);
  std::vector<bool> has_forward(num_labels);
  double total_bytes = 0;
  problem.nodes.resize(num_nodes);
  for (int n = 0; n < num_nodes; ++n) {
    const DnnNode& from = instance.nodes[n];
    internal::Node& node = problem.nodes[n];
    node.elements = {n};
    node.work_ms =
        from.on_accelerator ? from.accelerator_ms : std::numeric_limits<double>::infinity();
    node.cpu_ms = from.cpu_ms;
    node.resident_bytes = from.bytes;
    total_bytes += from.bytes;
    if (!from.backward) has_forward[label[n]] = true;
  }
  if (total_bytes <= problem.memory_bytes) {
    problem.memory_bytes = std::numeric_limits<double>::infinity();  // never binds
  }

  std::vector<std::vector<int>> readers(num_nodes);
  for (const DnnEdge& edge : instance.edges) {
    readers[edge.from].push_back(edge.to);
    const bool from_backward = instance.nodes[edge.from].backward;
    const bool to_backward = instance.nodes[edge.to].backward;
    int before = edge.from, after = edge.to;
    if (from_backward && to_backward) {
      if (has_forward[label[before]] && has_forward[label[after]]) continue;
      std::swap(before, after);
    } else if (from_backward || to_backward) {
      continue;  // by the time of the backward pass all stages have run forward
    }
    problem.nodes[before].successors.push_back(after);
    problem.nodes[after].predecessors.push_back(before);
  }
  for (int n = 0; n < num_nodes; ++n) {
    if (readers[n].empty()) continue;
    internal::Tensor& tensor = problem.tensors.emplace_back();
    tensor.producer = n;
    tensor.nodes = std::move(readers[n]);
    tensor.nodes.push_back(n);
    std::sort(tensor.nodes.begin(), tensor.nodes.end());
    tensor.nodes.erase(std::unique(tensor.nodes.begin(), tensor.nodes.end()), tensor.nodes.end());
    tensor.forward_ms = instance.nodes[n].output_ms;
  }
  return internal::Contract(problem, label, num_labels);
}

absl::Status DoesNotFit(const DnnInstance& instance, const internal::Problem& problem,
                        const internal::Placement& nearest) {
  if (nearest.stage_of_element.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the nodes that no accelerator runs do not fit onto ", instance.max_cpus,
                     " CPU(s), each a stretch of the pipeline, in any order found"));
  }
  std::vector<double> bytes(nearest.is_cpu.size());
  for (size_t n = 0; n < instance.nodes.size(); ++n) {
    const int stage = nearest.stage_of_element[n];
    if (!nearest.is_cpu[stage]) bytes[stage] += instance.nodes[n].bytes;
  }
  const auto worst = std::max_element(bytes.begin(), bytes.end()) - bytes.begin();
  const internal::LargestNode largest = internal::FindLargestNode(problem);
  const bool alone = largest.bytes > instance.accelerator_bytes && instance.max_cpus == 0;
  const double needs = alone ? largest.bytes : bytes[worst];
  const int element = problem.nodes[largest.node].elements[0];
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s needs %.0f bytes, an accelerator has %.0f: %.0f bytes are missing%s",
      alone ? absl::StrCat("node ", instance.nodes[element].id, " with its colour class")
            : absl::StrCat("stage ", worst),
      needs, instance.accelerator_bytes, needs - instance.accelerator_bytes,
      alone ? "" : " in the nearest split found"));
}

}  // namespace

bool LooksLikeDnnInstance(std::string_view text) {
  return text.find("\"maxFPGAs\"") != std::string_view::npos;
}

absl::StatusOr<DnnInstance> DnnInstanceFromJson(std::string_view text) {
  absl::StatusOr<Json> json = internal::ParseJson(text);
  if (!json.ok()) return json.status();
  JsonFields fields(*json, "");
  DnnInstance instance;
  fields.Read("maxFPGAs", instance.max_accelerators);
  fields.Read("maxCPUs", instance.max_cpus, 0);
  fields.Read("maxSizePerFPGA", instance.accelerator_bytes);
  if (instance.max_accelerators < 0) fields.Fail("maxFPGAs", "negative");
  if (instance.max_cpus < 0) fields.Fail("maxCPUs", "negative");
  if (instance.max_accelerators + instance.max_cpus < 1)
    fields.Fail("maxFPGAs", "no device at all");
  if (std::max(instance.max_accelerators, instance.max_cpus) > 100'000) {
    fields.Fail("maxFPGAs", "more than 100000 devices");
  }
  if (std::isnan(instance.accelerator_bytes) || instance.accelerator_bytes < 0) {
    fields.Fail("maxSizePerFPGA", "negative");
  }

  absl::flat_hash_map<std::string, int> index;
  size_t i = 0;
  fields.Each("nodes", [&](JsonFields& f) { ReadNode(f, (*json)["nodes"][i++], instance, index); });
  std::vector<bool> has_cost(instance.nodes.size());
  i = 0;
  fields.Each("edges", [&](JsonFields& f) {
    const Json& edge = (*json)["edges"][i++];
    double cost = 0;
    f.Read("cost", cost);
    const auto node = [&](const char* key) {
      const auto it = edge.contains(key) ? index.find(edge[key].dump()) : index.end();
      if (it == index.end()) {
        f.Fail(key, edge.contains(key) ? absl::StrCat("there is no node ", edge[key].dump())
                                       : "missing");
        return 0;
      }
      return it->second;
    };
    const int from = node("sourceId"), to = node("destId");
    if (!f.status().ok()) return;
    if (from == to) return f.Fail("destId", "an edge from a node to itself");
    if (!IsCost(cost)) return f.Fail("cost", "negative or not finite");
    double& output_ms = instance.nodes[from].output_ms;
    if (has_cost[from] && std::abs(output_ms - cost) > 1e-6 * output_ms) {
      return f.Fail("cost",
                    absl::StrCat("node ", instance.nodes[from].id, " has another edge of cost ",
                                 output_ms, "; all edges of a node cost the same"));
    }
    if (!has_cost[from]) output_ms = cost;
    has_cost[from] = true;
    instance.edges.push_back({from, to});
  });
  if (!fields.status().ok()) return fields.status();
  if (instance.nodes.empty()) return absl::InvalidArgumentError("nodes: there are none");
  if (auto status = CheckAcyclic(instance); !status.ok()) return status;
  if (auto status = CheckTotals(instance); !status.ok()) return status;
  return instance;
}

std::vector<DnnLoad> DnnLoads(const DnnInstance& instance, const DnnPartition& partition,
                              Objective objective) {
  const std::vector<int>& stage_of_node = partition.partition.stage_of_node;
  const size_t num_stages = partition.is_cpu.size();
  std::vector<DnnLoad> loads(num_stages);
  std::vector<double> send_ms(num_stages), receive_ms(num_stages);
  std::vector<std::set<int>> readers(instance.nodes.size());
  for (const DnnEdge& edge : instance.edges) readers[edge.from].insert(stage_of_node[edge.to]);
  for (size_t n = 0; n < instance.nodes.size(); ++n) {
    const DnnNode& node = instance.nodes[n];
    const int home = stage_of_node[n];
    ++loads[home].nodes;
    loads[home].bytes += node.bytes;
    loads[home].compute_ms += partition.is_cpu[home] ? node.cpu_ms : node.accelerator_ms;
    readers[n].erase(home);
    if (!readers[n].empty()) send_ms[home] += node.output_ms;
    for (const int reader : readers[n]) receive_ms[reader] += node.output_ms;
  }
  for (size_t s = 0; s < num_stages; ++s) {
    DnnLoad& load = loads[s];
    if (!partition.is_cpu[s]) load.communication_ms = send_ms[s] + receive_ms[s];
    load.load_ms = partition.is_cpu[s] ? load.compute_ms
                   : objective == Objective::kSum
                       ? load.compute_ms + load.communication_ms
                       : std::max({load.compute_ms, send_ms[s], receive_ms[s]});
  }
  return loads;
}

absl::StatusOr<DnnPartition> PartitionDnnInstance(const DnnInstance& instance,
                                                  const DnnOptions& options) {
  if (auto status = Validate(options.effort); !status.ok()) return status;
  const internal::Problem problem = internal::GlueCycles(MakeProblem(instance, options.objective));
  for (const internal::Node& node : problem.nodes) {
    if (std::isinf(node.work_ms) && instance.max_cpus == 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("node ", instance.nodes[node.elements[0]].id,
                       " or one that stays with it runs on no accelerator, and maxCPUs is 0"));
    }
  }
  internal::Solution solution = internal::Solve(problem, options.effort);
  if (!solution.best) return DoesNotFit(instance, problem, solution.nearest);

  DnnPartition out;
  out.is_cpu = std::move(solution.best->is_cpu);
  Partition& partition = out.partition;
  partition.num_stages = static_cast<int>(out.is_cpu.size());
  partition.stage_of_node = std::move(solution.best->stage_of_element);
  for (const DnnLoad& load : DnnLoads(instance, out, options.objective)) {
    partition.value = std::max(partition.value, load.load_ms);
  }
  partition.bound = std::min(solution.bound_ms, partition.value);  // apart by rounding at most
  partition.bound_kind = solution.bound_kind;
  partition.optimal = solution.optimal;
  return out;
}

std::string ToJson(const DnnInstance& instance, const DnnPartition& partition,
                   Objective objective) {
  const std::vector<DnnLoad> loads = DnnLoads(instance, partition, objective);
  std::vector<Json> devices;
  for (const DnnLoad& load : loads) {
    devices.push_back({{"load", load.load_ms}, {"nodes", Json::array()}});
  }
  for (size_t n = 0; n < instance.nodes.size(); ++n) {
    devices[partition.partition.stage_of_node[n]]["nodes"].push_back(
        Json::parse(instance.nodes[n].id));
  }
  Json json = {{"fpgas", Json::array()}, {"cpus", Json::array()}};
  for (size_t s = 0; s < devices.size(); ++s) {
    json[partition.is_cpu[s] ? "cpus" : "fpgas"].push_back(std::move(devices[s]));
  }
  json["maxLoad"] = partition.partition.value;
  return json.dump();
}

}  // namespace autopart
