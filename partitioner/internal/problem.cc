#include "partitioner/internal/problem.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "partitioner/internal/recompute.h"

namespace autopart::internal {
namespace {

void SortUnique(std::vector<int>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

void AddNodes(const CostGraph& graph, Problem& problem) {
  problem.nodes.resize(graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const CostNode& from = graph.nodes[i];
    Node& node = problem.nodes[i];
    node.elements = {static_cast<int>(i)};
    node.work_ms = from.forward_ms + from.backward_input_ms + from.backward_weight_ms;
    node.cpu_ms = node.work_ms;
    node.flight_bytes = static_cast<double>(from.saved_bytes);
    node.temporary_bytes = static_cast<double>(from.temporary_bytes);
  }
}

double BytesOrNoLimit(int64_t bytes) {
  return bytes == std::numeric_limits<int64_t>::max() ? std::numeric_limits<double>::infinity()
                                                      : static_cast<double>(bytes);
}

double FastestLink(const PartitionOptions& options) {
  if (options.link_speeds.empty()) return 1;
  return *std::max_element(options.link_speeds.begin(), options.link_speeds.end());
}

void AddTensors(const CostGraph& graph, const PartitionOptions& options, Problem& problem) {
  const double fastest = FastestLink(options);
  for (const CostValue& value : graph.values) {
    const int producer = value.producer == kModelInput ? kCaller : value.producer;
    if (producer != kCaller) {
      for (const int consumer : value.consumers) {
        problem.nodes[producer].successors.push_back(consumer);
        problem.nodes[consumer].predecessors.push_back(producer);
      }
      if (graph.nodes[producer].copyable) continue;  // its readers run copies
    }
    Tensor tensor;
    tensor.producer = producer;
    tensor.nodes = value.consumers;
    if (producer != kCaller) tensor.nodes.insert(tensor.nodes.begin(), producer);
    tensor.forward_ms = (options.latency_ms + value.bytes / options.bytes_per_ms) / fastest;
    if (value.gradient_bytes > 0) {
      tensor.backward_ms =
          (options.latency_ms + value.gradient_bytes / options.bytes_per_ms) / fastest;
    }
    problem.tensors.push_back(std::move(tensor));
  }
  for (Node& node : problem.nodes) {
    SortUnique(node.successors);
    SortUnique(node.predecessors);
  }
}

void AddParameters(const CostGraph& graph, const PartitionOptions& options, Problem& problem) {
  problem.shared.resize(graph.parameters.size());
  for (size_t p = 0; p < graph.parameters.size(); ++p) {
    const CostParameter& parameter = graph.parameters[p];
    problem.shared[p].bytes =
        (parameter.trains ? options.state_factor : 1) * static_cast<double>(parameter.bytes);
    if (parameter.trains) {
      problem.shared[p].gradient_bytes = static_cast<double>(parameter.bytes);
    }
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const int p : graph.nodes[n].parameters) problem.shared[p].nodes.push_back(n);
  }
}

// `levels` is empty where stages do not recompute.
void AddSavedValues(const CostGraph& graph, const std::vector<int>& levels, Problem& problem) {
  const auto is_read_again = [&](const CostValue& value) {
    return !levels.empty() && !value.consumers.empty() &&
           (value.producer == kModelInput || !graph.nodes[value.producer].copyable);
  };
  std::vector<bool> needed(graph.values.size());
  for (const CostNode& node : graph.nodes) {
    for (const int value : node.saved_values) needed[value] = true;
  }
  for (int v = static_cast<int>(graph.values.size()) - 1; v >= 0; --v) {
    if (is_read_again(graph.values[v])) needed[v] = true;
    if (needed[v] && graph.values[v].view_of != kNoView) needed[graph.values[v].view_of] = true;
  }
  std::vector<int> index(graph.values.size(), -1);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (!needed[v]) continue;
    const CostValue& from = graph.values[v];
    index[v] = static_cast<int>(problem.saved_values.size());
    SavedValue& value = problem.saved_values.emplace_back();
    value.producer = from.producer == kModelInput ? kCaller : from.producer;
    value.view_of = from.view_of == kNoView ? -1 : index[from.view_of];
    value.bytes = static_cast<double>(from.bytes);
    value.storage_bytes = static_cast<double>(from.storage_bytes);
    if (!levels.empty() && from.producer != kModelInput) value.level = levels[from.producer];
    if (!is_read_again(from)) continue;
    for (const int reader : from.consumers) {
      problem.nodes[reader].reads.push_back({index[v], levels[reader]});
    }
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const int value : graph.nodes[n].saved_values) {
      problem.nodes[n].saves.push_back(index[value]);
    }
  }
}

void AddRecompute(const CostGraph& graph, const std::vector<int>& levels, Problem& problem) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    Node& node = problem.nodes[n];
    node.again_ms.resize(problem.num_recompute_levels);
    node.again_flight_bytes.resize(problem.num_recompute_levels);
    if (levels[n] >= problem.num_recompute_levels) continue;
    node.again_ms[levels[n]] = graph.nodes[n].forward_ms;
    node.again_flight_bytes[levels[n]] = static_cast<double>(graph.nodes[n].saved_bytes);
  }
}

// Numbers of replicas that a stage may have. Of many devices all small numbers and a ladder of
// larger ones 6 % apart, which costs a stage 6 % at most, and all devices of a type.
void AddReplicaCounts(const PartitionOptions& options, Problem& problem) {
  int most = 0;
  for (const DeviceType& type : problem.device_types) most = std::max(most, type.count);
  const auto are_all_of_a_type = [&](int d) {
    return std::any_of(problem.device_types.begin(), problem.device_types.end(),
                       [&](const DeviceType& type) { return type.count == d; });
  };
  std::vector<int>& counts = problem.replicas;
  counts.clear();
  for (int d = 1; d <= most; ++d) {
    if (options.micro_batches > 0) {
      if (options.micro_batches % d == 0) counts.push_back(d);
    } else if (d <= 64 || d >= counts.back() * 1.06 || are_all_of_a_type(d)) {
      counts.push_back(d);
    } else {
      problem.more_replicas_are_allowed = true;
    }
  }
}

void AddDevices(const PartitionOptions& options, Problem& problem) {
  if (options.TotalDevices() == 0) return;
  if (options.device_types.empty()) {
    problem.device_types = {{options.num_devices, 1, problem.memory_bytes}};
  }
  for (const autopart::DeviceType& type : options.device_types) {
    problem.device_types.push_back({type.count, type.speed, BytesOrNoLimit(type.memory_bytes)});
  }
  AddReplicaCounts(options, problem);
  problem.micro_batches = options.micro_batches;
  problem.all_reduce_ms_per_byte = 1 / options.all_reduce_bytes_per_ms;
  if (options.num_stages == 0) {
    problem.num_stages = options.TotalDevices();
    problem.allow_empty_stages = true;
  }
}

std::vector<int> GroupLabels(const CostGraph& graph) {
  std::vector<int> label(graph.nodes.size());
  const int num_nodes = static_cast<int>(graph.nodes.size());
  for (int n = 0; n < num_nodes; ++n) {
    label[n] = graph.nodes[n].group == kNoGroup ? -1 - n : graph.nodes[n].group;
  }
  return label;
}

std::vector<int> Relabel(const std::vector<int>& nodes, const std::vector<int>& label) {
  std::vector<int> out;
  out.reserve(nodes.size());
  for (const int node : nodes) out.push_back(label[node]);
  SortUnique(out);
  return out;
}

void AddUp(const std::vector<double>& from, std::vector<double>& to) {
  if (to.size() < from.size()) to.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

void KeepLowestLevels(std::vector<ReadAgain>& reads) {
  std::sort(reads.begin(), reads.end());
  reads.erase(
      std::unique(reads.begin(), reads.end(),
                  [](const ReadAgain& a, const ReadAgain& b) { return a.value == b.value; }),
      reads.end());
}

void ContractNodes(const Problem& from, const std::vector<int>& label, Problem& to) {
  for (size_t n = 0; n < from.nodes.size(); ++n) {
    const Node& node = from.nodes[n];
    const int self = label[n];
    Node& into = to.nodes[self];
    into.elements.insert(into.elements.end(), node.elements.begin(), node.elements.end());
    into.work_ms += node.work_ms;
    into.cpu_ms += node.cpu_ms;
    into.resident_bytes += node.resident_bytes;
    into.gradient_bytes += node.gradient_bytes;
    into.flight_bytes += node.flight_bytes;
    into.temporary_bytes = std::max(into.temporary_bytes, node.temporary_bytes);
    into.saves.insert(into.saves.end(), node.saves.begin(), node.saves.end());
    into.reads.insert(into.reads.end(), node.reads.begin(), node.reads.end());
    AddUp(node.again_ms, into.again_ms);
    AddUp(node.again_flight_bytes, into.again_flight_bytes);
    for (const int s : node.successors) {
      if (label[s] != self) into.successors.push_back(label[s]);
    }
    for (const int p : node.predecessors) {
      if (label[p] != self) into.predecessors.push_back(label[p]);
    }
  }
  for (Node& node : to.nodes) {
    SortUnique(node.saves);
    KeepLowestLevels(node.reads);
    SortUnique(node.successors);
    SortUnique(node.predecessors);
  }
}

// Tensors over the same nodes become one; those inside a node go.
void ContractTensors(const Problem& from, const std::vector<int>& label, Problem& to) {
  for (const Tensor& tensor : from.tensors) {
    Tensor out = tensor;
    out.nodes = Relabel(tensor.nodes, label);
    const bool from_caller = tensor.producer == kCaller;
    if (!from_caller) out.producer = label[tensor.producer];
    if (out.nodes.size() + from_caller >= 2) to.tensors.push_back(std::move(out));
  }
  std::stable_sort(to.tensors.begin(), to.tensors.end(), [](const Tensor& a, const Tensor& b) {
    return a.producer != b.producer ? a.producer < b.producer : a.nodes < b.nodes;
  });
  size_t kept = 0;
  for (size_t t = 0; t < to.tensors.size(); ++t) {
    if (kept > 0 && to.tensors[kept - 1].producer == to.tensors[t].producer &&
        to.tensors[kept - 1].nodes == to.tensors[t].nodes) {
      to.tensors[kept - 1].forward_ms += to.tensors[t].forward_ms;
      to.tensors[kept - 1].backward_ms += to.tensors[t].backward_ms;
    } else {
      if (kept != t) to.tensors[kept] = std::move(to.tensors[t]);
      ++kept;
    }
  }
  to.tensors.resize(kept);
}

void ContractMemory(const Problem& from, const std::vector<int>& label, Problem& to) {
  for (const SharedBytes& shared : from.shared) {
    std::vector<int> nodes = Relabel(shared.nodes, label);
    if (nodes.size() == 1) {
      to.nodes[nodes[0]].resident_bytes += shared.bytes;
      to.nodes[nodes[0]].gradient_bytes += shared.gradient_bytes;
    } else if (nodes.size() > 1) {
      to.shared.push_back({std::move(nodes), shared.bytes, shared.gradient_bytes});
    }
  }
  to.saved_values = from.saved_values;
  for (SavedValue& value : to.saved_values) {
    if (value.producer != kCaller) value.producer = label[value.producer];
  }
}

}  // namespace

int MakeDense(std::vector<int>& label) {
  absl::flat_hash_map<int, int> dense;
  for (int& l : label) l = dense.try_emplace(l, static_cast<int>(dense.size())).first->second;
  return static_cast<int>(dense.size());
}

Problem Contract(const Problem& problem, const std::vector<int>& label, int num_labels) {
  Problem to;
  to.num_elements = problem.num_elements;
  to.num_stages = problem.num_stages;
  to.num_cpus = problem.num_cpus;
  to.objective = problem.objective;
  to.allow_empty_stages = problem.allow_empty_stages;
  to.memory_bytes = problem.memory_bytes;
  to.in_flight = problem.in_flight;
  to.device_types = problem.device_types;
  to.replicas = problem.replicas;
  to.more_replicas_are_allowed = problem.more_replicas_are_allowed;
  to.all_reduce_ms_per_byte = problem.all_reduce_ms_per_byte;
  to.micro_batches = problem.micro_batches;
  to.link_slowness = problem.link_slowness;
  to.first_recompute_level = problem.first_recompute_level;
  to.num_recompute_levels = problem.num_recompute_levels;
  to.nodes.resize(num_labels);
  ContractNodes(problem, label, to);
  ContractTensors(problem, label, to);
  ContractMemory(problem, label, to);
  return to;
}

Problem MakeProblem(const CostGraph& graph, const PartitionOptions& options) {
  Problem problem;
  problem.num_elements = static_cast<int>(graph.nodes.size());
  problem.num_stages = options.num_stages;
  problem.objective = options.objective;
  problem.allow_empty_stages = options.allow_empty_stages;
  problem.memory_bytes = BytesOrNoLimit(options.memory_bytes);
  problem.in_flight = options.in_flight;
  AddDevices(options, problem);
  for (const double speed : options.link_speeds) {
    problem.link_slowness.push_back(FastestLink(options) / speed);
  }
  std::vector<int> levels;
  if (options.recompute != Recompute::kNone) {
    const RecomputeLevels chosen = ChooseRecomputeLevels(graph, options.recompute);
    problem.first_recompute_level = chosen.first;
    problem.num_recompute_levels = chosen.end;
    levels = chosen.level_of_node;
  }
  AddNodes(graph, problem);
  AddTensors(graph, options, problem);
  AddParameters(graph, options, problem);
  AddSavedValues(graph, levels, problem);
  if (!levels.empty()) AddRecompute(graph, levels, problem);
  std::vector<int> label = GroupLabels(graph);
  const int num_labels = MakeDense(label);
  return Contract(problem, label, num_labels);
}

LargestNode FindLargestNode(const Problem& problem) {
  int in_flight = *std::min_element(problem.in_flight.begin(), problem.in_flight.end());
  if (problem.num_recompute_levels > 1) in_flight = std::min(in_flight, 1);
  std::vector<double> bytes;
  for (const Node& node : problem.nodes) {
    bytes.push_back(node.resident_bytes + in_flight * node.flight_bytes + node.temporary_bytes);
  }
  for (const SharedBytes& shared : problem.shared) {
    for (const int n : shared.nodes) bytes[n] += shared.bytes;
  }
  const auto largest = std::max_element(bytes.begin(), bytes.end());
  return {static_cast<int>(largest - bytes.begin()), *largest};
}

std::vector<int> StageOfElement(const Problem& problem, const std::vector<int>& stage_of_node) {
  std::vector<int> stage(problem.num_elements, -1);
  for (size_t n = 0; n < problem.nodes.size(); ++n) {
    for (const int element : problem.nodes[n].elements) stage[element] = stage_of_node[n];
  }
  return stage;
}

}  // namespace autopart::internal
