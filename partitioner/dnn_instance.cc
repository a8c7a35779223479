#include "partitioner/dnn_instance.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "partitioner/internal/cycle.h"
#include "partitioner/internal/json_fields.h"
#include "partitioner/internal/json_records.h"
#include "partitioner/internal/problem.h"
#include "partitioner/internal/reduce.h"
#include "partitioner/internal/solve.h"

namespace autopart {
namespace {

using internal::Json;
using internal::JsonFields;

constexpr int kMostDevices = 100'000;  // as many as stages of a cost graph

bool IsCost(double x) { return std::isfinite(x) && x >= 0; }

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
                        const internal::Solution& solution) {
  const internal::Placement& nearest = solution.nearest;
  if (nearest.stage_of_element.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the nodes that no accelerator runs do not fit onto ", instance.max_cpus,
                     " CPU(s), each a stretch of the pipeline, in any order",
                     solution.nothing_fits ? "" : " found"));
  }
  std::vector<double> bytes(nearest.is_cpu.size());
  for (size_t n = 0; n < instance.nodes.size(); ++n) {
    const int stage = nearest.stage_of_element[n];
    if (!nearest.is_cpu[stage]) bytes[stage] += instance.nodes[n].bytes;
  }
  const auto worst = std::max_element(bytes.begin(), bytes.end()) - bytes.begin();
  const internal::LargestNode largest = internal::FindLargestNode(problem);
  const bool alone = largest.bytes > instance.accelerator_bytes && instance.max_cpus == 0;
  const double works = bytes[worst], needs = alone ? largest.bytes : works;
  const int element = problem.nodes[largest.node].elements[0];
  const std::string what =
      alone ? absl::StrCat("node ", instance.nodes[element].id, " with its colour class")
            : absl::StrCat("stage ", worst);
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s needs %.0f bytes, an accelerator has %.0f: %.0f bytes are missing. %s", what, needs,
      instance.accelerator_bytes, needs - instance.accelerator_bytes,
      solution.nearest_is_least
          ? absl::StrFormat("The least memory that works is %.0f bytes an accelerator", works)
          : absl::StrFormat(
                "%.0f bytes an accelerator would do, perhaps less%s", works,
                solution.nothing_fits ? "; that nothing fits as it is, is proven" : "")));
}

}  // namespace

bool LooksLikeDnnInstance(std::string_view text) {
  return text.find("\"maxFPGAs\"") != std::string_view::npos;
}

absl::StatusOr<DnnInstance> DnnInstanceFromJson(std::string_view text) {
  using internal::Optional;
  using internal::Required;
  using internal::RequiredId;
  DnnInstance instance;
  internal::JsonRecords records;

  // By name, because edges may stand before the nodes that they join.
  absl::flat_hash_map<std::string, int> names;
  std::vector<int> node_of_name;
  const auto name_of = [&](const std::string& id) {
    const auto [it, is_new] = names.try_emplace(id, static_cast<int>(node_of_name.size()));
    if (is_new) node_of_name.push_back(-1);
    return it->second;
  };
  records.Each<DnnNode>(
      "nodes",
      {RequiredId("id", &DnnNode::id), Optional("supportedOnFpga", &DnnNode::on_accelerator),
       Required("cpuLatency", &DnnNode::cpu_ms), Required("fpgaLatency", &DnnNode::accelerator_ms),
       Optional("isBackwardNode", &DnnNode::backward), Optional("size", &DnnNode::bytes),
       Optional("colorClass", &DnnNode::color)},
      [&](DnnNode& node) {
        int& index = node_of_name[name_of(node.id)];
        if (index >= 0) records.Fail("id", absl::StrCat(node.id, " is there twice"));
        if (!IsCost(node.accelerator_ms)) records.Fail("fpgaLatency", "negative or not finite");
        if (!IsCost(node.cpu_ms)) records.Fail("cpuLatency", "negative or not finite");
        if (!IsCost(node.bytes)) records.Fail("size", "negative or not finite");
        index = static_cast<int>(instance.nodes.size());
        instance.nodes.push_back(std::move(node));
      });

  struct EdgeRecord {
    std::string from, to;
    double cost = 0;
  };
  struct NamedEdge {
    int from, to;
    double cost;
  };
  std::vector<NamedEdge> edges;
  records.Each<EdgeRecord>(
      "edges",
      {RequiredId("sourceId", &EdgeRecord::from), RequiredId("destId", &EdgeRecord::to),
       Required("cost", &EdgeRecord::cost)},
      [&](EdgeRecord& edge) {
        if (!IsCost(edge.cost)) records.Fail("cost", "negative or not finite");
        edges.push_back({name_of(edge.from), name_of(edge.to), edge.cost});
      });
  if (auto status = records.Read(text); !status.ok()) return status;

  JsonFields fields(records.head(), "");
  fields.Read("maxFPGAs", instance.max_accelerators);
  fields.Read("maxCPUs", instance.max_cpus, 0);
  fields.Read("maxSizePerFPGA", instance.accelerator_bytes);
  if (instance.max_accelerators < 0) fields.Fail("maxFPGAs", "negative");
  if (instance.max_cpus < 0) fields.Fail("maxCPUs", "negative");
  if (std::max(instance.max_accelerators, instance.max_cpus) < 1) {
    fields.Fail("maxFPGAs", "no device at all");
  }
  for (const auto& [key, count] :
       {std::pair("maxFPGAs", instance.max_accelerators), {"maxCPUs", instance.max_cpus}}) {
    if (count > kMostDevices) {
      fields.Fail(key,
                  absl::StrCat(count, " are more than the ", kMostDevices, " that there may be"));
    }
  }
  if (std::isnan(instance.accelerator_bytes) || instance.accelerator_bytes < 0) {
    fields.Fail("maxSizePerFPGA", "negative");
  }
  if (!fields.status().ok()) return fields.status();
  if (!records.status().ok()) return records.status();
  if (instance.nodes.empty()) return absl::InvalidArgumentError("nodes: there are none");

  std::vector<bool> has_cost(instance.nodes.size());
  for (size_t i = 0; i < edges.size(); ++i) {
    const auto bad = [&](const char* key, const auto&... pieces) {
      return absl::InvalidArgumentError(absl::StrCat("edges[", i, "].", key, ": ", pieces...));
    };
    for (const auto& [key, name] :
         {std::pair("sourceId", edges[i].from), {"destId", edges[i].to}}) {
      if (node_of_name[name] >= 0) continue;
      const auto named = std::find_if(names.begin(), names.end(), [&, n = name](const auto& entry) {
        return entry.second == n;
      });
      return bad(key, "there is no node ", named->first);
    }
    const int from = node_of_name[edges[i].from], to = node_of_name[edges[i].to];
    if (from == to) return bad("destId", "an edge from a node to itself");
    DnnNode& node = instance.nodes[from];
    if (has_cost[from] && std::abs(node.output_ms - edges[i].cost) > 1e-6 * node.output_ms) {
      return bad("cost", "node ", node.id, " has another edge of cost ", node.output_ms,
                 "; all edges of a node cost the same");
    }
    if (!has_cost[from]) node.output_ms = edges[i].cost;
    has_cost[from] = true;
    instance.edges.push_back({from, to});
  }
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
  // The stages that read each node's output, as (node, stage), each once.
  std::vector<std::pair<int, int>> readers;
  readers.reserve(instance.edges.size());
  for (const DnnEdge& edge : instance.edges) {
    if (stage_of_node[edge.to] != stage_of_node[edge.from]) {
      readers.emplace_back(edge.from, stage_of_node[edge.to]);
    }
  }
  std::sort(readers.begin(), readers.end());
  readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
  int sender = -1;
  for (const auto& [n, reader] : readers) {
    if (n != sender) send_ms[stage_of_node[n]] += instance.nodes[n].output_ms;
    receive_ms[reader] += instance.nodes[n].output_ms;
    sender = n;
  }
  for (size_t n = 0; n < instance.nodes.size(); ++n) {
    const DnnNode& node = instance.nodes[n];
    const int home = stage_of_node[n];
    ++loads[home].nodes;
    loads[home].bytes += node.bytes;
    loads[home].compute_ms += partition.is_cpu[home] ? node.cpu_ms : node.accelerator_ms;
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
  if (!solution.best) return DoesNotFit(instance, problem, solution);

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
  partition.time_limit_hit = solution.time_limit_hit;
  partition.optimal = partition.value <= partition.bound * (1 + 1e-9);
  return out;
}

std::string ToJson(const DnnInstance& instance, const DnnPartition& partition,
                   Objective objective) {
  const std::vector<DnnLoad> loads = DnnLoads(instance, partition, objective);
  std::vector<std::string> nodes(loads.size());  // ids as JSON, with commas between
  for (size_t n = 0; n < instance.nodes.size(); ++n) {
    std::string& list = nodes[partition.partition.stage_of_node[n]];
    absl::StrAppend(&list, list.empty() ? "" : ",", instance.nodes[n].id);
  }
  // Put together from finished pieces: a tree of a million ids takes seconds.
  std::string devices[2];
  for (size_t s = 0; s < loads.size(); ++s) {
    std::string& list = devices[partition.is_cpu[s]];
    absl::StrAppend(&list, list.empty() ? "" : ",", "{\"load\":", Json(loads[s].load_ms).dump(),
                    ",\"nodes\":[", nodes[s], "]}");
  }
  return absl::StrCat("{\"fpgas\":[", devices[0], "],\"cpus\":[", devices[1],
                      "],\"maxLoad\":", Json(partition.partition.value).dump(), "}");
}

}  // namespace autopart
