#include "partitioner/piper_instance.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "partitioner/internal/json_fields.h"
#include "partitioner/internal/piper_solver.h"

namespace autopart {
namespace {

using internal::Json;
using internal::JsonFields;

constexpr int kMostDevices = 4096;

void ReadCost(JsonFields& f, const char* key, double& out) {
  f.Read(key, out);
  if (!std::isfinite(out) || out < 0) f.Fail(key, "negative or not finite");
}

// Bytes for each edge, by the id of the node at its other end.
void ReadSync(JsonFields& f, const Json& json, const char* key, const std::vector<int64_t>& others,
              std::vector<double>& out) {
  const auto table = json.find(key);
  if (table == json.end() || !table->is_object()) return f.Fail(key, "want an object");
  for (const int64_t other : others) {
    const auto bytes = table->find(absl::StrCat(other));
    if (bytes == table->end()) {
      return f.Fail(key, absl::StrCat("nothing for the edge with node ", other));
    }
    if (!bytes->is_number()) return f.Fail(key, absl::StrCat(other, ": want a number"));
    out.push_back(bytes->get<double>());
    if (!std::isfinite(out.back()) || out.back() < 0) {
      return f.Fail(key, absl::StrCat(other, ": negative or not finite"));
    }
  }
}

void ReadConfigurations(JsonFields& f, const Json& json, const std::vector<int64_t>& in,
                        const std::vector<int64_t>& out, PiperNode& node) {
  const auto degrees = json.find("TMPCs");
  if (degrees == json.end() || !degrees->is_object()) return f.Fail("TMPCs", "want an object");
  for (const auto& [key, list] : degrees->items()) {
    int degree = 0;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), degree);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || degree < 1) {
      return f.Fail("TMPCs", absl::StrCat("'", key, "' is no tensor degree"));
    }
    if (!list.is_array()) return f.Fail("TMPCs", absl::StrCat(key, ": want an array"));
    std::vector<PiperConfiguration>& configurations = node.configurations[degree];
    for (size_t i = 0; i < list.size() && f.status().ok(); ++i) {
      const Json& entry = list[i];
      JsonFields fields(entry, absl::StrCat(f.path(), ".TMPCs.", key, "[", i, "]"));
      PiperConfiguration& configuration = configurations.emplace_back();
      fields.Read("id", configuration.name);
      ReadCost(fields, "timePerSample", configuration.time);
      ReadCost(fields, "parameterSize", configuration.parameter_bytes);
      ReadCost(fields, "memoryUsageA", configuration.flight_bytes);
      ReadCost(fields, "memoryUsageB", configuration.fixed_bytes);
      if (fields.status().ok()) {
        ReadSync(fields, entry, "syncTimeFw", in, configuration.in_sync_bytes);
        ReadSync(fields, entry, "syncTimeBw", out, configuration.out_sync_bytes);
      }
      for (size_t k = 0; k + 1 < configurations.size(); ++k) {
        if (configurations[k].name == configuration.name) {
          fields.Fail("id", absl::StrCat("'", configuration.name, "' is there twice"));
        }
      }
      if (!fields.status().ok()) return f.Fail("", std::string(fields.status().message()));
    }
    if (configurations.empty()) node.configurations.erase(degree);
  }
  if (node.configurations.empty()) f.Fail("TMPCs", "there is no configuration");
}

absl::Status CheckAcyclic(const PiperInstance& instance) {
  std::vector<int> waiting(instance.nodes.size()), ready;
  for (const PiperEdge& edge : instance.edges) ++waiting[edge.to];
  for (size_t n = 0; n < waiting.size(); ++n) {
    if (waiting[n] == 0) ready.push_back(static_cast<int>(n));
  }
  for (size_t done = 0; done < ready.size(); ++done) {
    for (const int e : instance.nodes[ready[done]].out_edges) {
      if (--waiting[instance.edges[e].to] == 0) ready.push_back(instance.edges[e].to);
    }
  }
  for (size_t n = 0; n < waiting.size(); ++n) {
    if (waiting[n] > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("edges: node ", instance.nodes[n].id, " is on or behind a cycle"));
    }
  }
  return absl::OkStatus();
}

double LargestStageBytes(const PiperInstance& instance, const PiperPlan& plan) {
  double bytes = 0;
  for (const PiperStageMetrics& stage : PiperMetrics(instance, plan)) {
    bytes = std::max(bytes, stage.memory_bytes);
  }
  return bytes;
}

}  // namespace

bool LooksLikePiperInstance(std::string_view text) {
  return text.find("\"TMPCs\"") != std::string_view::npos;
}

absl::Status ValidateLimits(const PiperInstance& instance) {
  const auto bad = [](const auto&... pieces) {
    return absl::InvalidArgumentError(absl::StrCat(pieces...));
  };
  if (instance.max_devices < 1 || instance.max_devices > kMostDevices) {
    return bad("maxDevices is ", instance.max_devices, ", want 1 to ", kMostDevices);
  }
  if (!(instance.memory_bytes >= 0)) return bad("maxMemoryPerDevice is ", instance.memory_bytes);
  if (instance.micro_batches < 1) return bad("mbsInBatch is ", instance.micro_batches);
  if (!(instance.bandwidth > 0)) return bad("bandwidth is ", instance.bandwidth);
  return absl::OkStatus();
}

namespace {

// Sums of costs, however they are taken, stay finite.
absl::Status CheckTotals(const PiperInstance& instance) {
  double time = 0, bytes = 0;
  for (const PiperNode& node : instance.nodes) {
    for (const auto& [degree, configurations] : node.configurations) {
      for (const PiperConfiguration& c : configurations) {
        time += c.time;
        bytes += 4 * c.parameter_bytes + c.flight_bytes * instance.micro_batches + c.fixed_bytes;
        for (const double sync : c.in_sync_bytes) bytes += 2 * sync;
        for (const double sync : c.out_sync_bytes) bytes += 2 * sync;
      }
    }
  }
  for (const PiperEdge& edge : instance.edges) bytes += 4 * edge.bytes;
  if (!std::isfinite(time)) return absl::InvalidArgumentError("the times add up to infinity");
  if (!std::isfinite(bytes) || !std::isfinite(bytes / instance.bandwidth)) {
    return absl::InvalidArgumentError("the sizes add up to infinity");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PiperInstance> PiperInstanceFromJson(std::string_view text) {
  absl::StatusOr<Json> json = internal::ParseJson(text);
  if (!json.ok()) return json.status();
  JsonFields fields(*json, "");
  PiperInstance instance;
  fields.Read("maxDevices", instance.max_devices);
  fields.Read("maxMemoryPerDevice", instance.memory_bytes);
  fields.Read("mbsInBatch", instance.micro_batches);
  fields.Read("bandwidth", instance.bandwidth);

  absl::flat_hash_map<int64_t, int> index;
  fields.Each("nodes", [&](JsonFields& f) {
    PiperNode& node = instance.nodes.emplace_back();
    f.Read("id", node.id);
    f.Read("name", node.name, std::string());
    if (!index.emplace(node.id, static_cast<int>(instance.nodes.size()) - 1).second) {
      f.Fail("id", absl::StrCat(node.id, " is there twice"));
    }
  });
  fields.Each("edges", [&](JsonFields& f) {
    const auto node = [&](const char* key) {
      int64_t id = 0;
      f.Read(key, id);
      const auto it = index.find(id);
      if (it == index.end()) f.Fail(key, absl::StrCat("there is no node ", id));
      return it == index.end() ? 0 : it->second;
    };
    PiperEdge edge;
    edge.from = node("sourceId");
    edge.to = node("destId");
    ReadCost(f, "communicationCost", edge.bytes);
    if (!f.status().ok()) return;
    if (edge.from == edge.to) return f.Fail("destId", "an edge from a node to itself");
    instance.nodes[edge.from].out_edges.push_back(static_cast<int>(instance.edges.size()));
    instance.nodes[edge.to].in_edges.push_back(static_cast<int>(instance.edges.size()));
    instance.edges.push_back(edge);
  });
  size_t i = 0;
  fields.Each("nodes", [&](JsonFields& f) {
    PiperNode& node = instance.nodes[i];
    std::vector<int64_t> in, out;
    for (const int e : node.in_edges) in.push_back(instance.nodes[instance.edges[e].from].id);
    for (const int e : node.out_edges) out.push_back(instance.nodes[instance.edges[e].to].id);
    ReadConfigurations(f, (*json)["nodes"][i++], in, out, node);
  });
  if (!fields.status().ok()) return fields.status();
  if (instance.nodes.empty()) return absl::InvalidArgumentError("nodes: there are none");
  if (auto status = ValidateLimits(instance); !status.ok()) return status;
  if (auto status = CheckAcyclic(instance); !status.ok()) return status;
  if (auto status = CheckTotals(instance); !status.ok()) return status;
  return instance;
}

std::vector<PiperStageMetrics> PiperMetrics(const PiperInstance& instance, const PiperPlan& plan) {
  std::vector<int> stage_of_node(instance.nodes.size());
  int devices = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    for (const int n : plan.stages[s].nodes) stage_of_node[n] = static_cast<int>(s);
    devices += plan.stages[s].replicas;
  }
  std::vector<PiperStageMetrics> metrics;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const PiperStage& stage = plan.stages[s];
    const double d = stage.replicas;
    PiperStageMetrics& m = metrics.emplace_back();
    m.in_flight = (devices + stage.replicas - 1) / stage.replicas;
    devices -= stage.replicas;
    double border = 0, parameters = 0;
    for (size_t i = 0; i < stage.nodes.size(); ++i) {
      const PiperNode& node = instance.nodes[stage.nodes[i]];
      const PiperConfiguration& c =
          node.configurations.at(stage.tensor_degree)[stage.configurations[i]];
      m.compute += c.time / d;
      m.memory_bytes += c.flight_bytes * m.in_flight + c.fixed_bytes;
      parameters += c.parameter_bytes;
      for (size_t e = 0; e < node.in_edges.size(); ++e) {
        const PiperEdge& edge = instance.edges[node.in_edges[e]];
        if (stage_of_node[edge.from] != static_cast<int>(s))
          border += edge.bytes + c.in_sync_bytes[e];
      }
      for (size_t e = 0; e < node.out_edges.size(); ++e) {
        const PiperEdge& edge = instance.edges[node.out_edges[e]];
        if (stage_of_node[edge.to] != static_cast<int>(s))
          border += edge.bytes + c.out_sync_bytes[e];
      }
    }
    m.edges = 2 * border / d / instance.bandwidth;
    m.all_reduce = 4 * (d - 1) / d * parameters / instance.micro_batches / instance.bandwidth;
    m.load = m.compute + m.edges + m.all_reduce;
  }
  return metrics;
}

absl::Status VerifyPlan(const PiperInstance& instance, const PiperPlan& plan) {
  const auto bad = [](const auto&... pieces) {
    return absl::InvalidArgumentError(absl::StrCat("plan: ", pieces...));
  };
  std::vector<int> stage_of_node(instance.nodes.size(), -1);
  int64_t devices = 0, replicas = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const PiperStage& stage = plan.stages[s];
    if (stage.nodes.empty()) return bad("stage ", s, " is empty");
    if (stage.nodes.size() != stage.configurations.size()) {
      return bad("stage ", s, " has ", stage.nodes.size(), " nodes and ",
                 stage.configurations.size(), " configurations");
    }
    if (stage.replicas < 1 || instance.micro_batches % stage.replicas != 0) {
      return bad("stage ", s, " has ", stage.replicas, " replicas, which do not divide ",
                 instance.micro_batches, " micro-batches");
    }
    for (size_t i = 0; i < stage.nodes.size(); ++i) {
      const int n = stage.nodes[i];
      if (n < 0 || static_cast<size_t>(n) >= instance.nodes.size() || stage_of_node[n] >= 0) {
        return bad("stage ", s, " holds node ", n, ", which there is not or comes twice");
      }
      stage_of_node[n] = static_cast<int>(s);
      const auto found = instance.nodes[n].configurations.find(stage.tensor_degree);
      if (found == instance.nodes[n].configurations.end() || stage.configurations[i] < 0 ||
          static_cast<size_t>(stage.configurations[i]) >= found->second.size()) {
        return bad("node ", instance.nodes[n].id, " has no such configuration at tensor degree ",
                   stage.tensor_degree);
      }
    }
    devices += int64_t{stage.replicas} * stage.tensor_degree;
    replicas += stage.replicas;
  }
  for (size_t n = 0; n < stage_of_node.size(); ++n) {
    if (stage_of_node[n] < 0) return bad("node ", instance.nodes[n].id, " is on no stage");
  }
  for (const PiperEdge& edge : instance.edges) {
    if (stage_of_node[edge.from] > stage_of_node[edge.to]) {
      return bad("the edge from node ", instance.nodes[edge.from].id, " on stage ",
                 stage_of_node[edge.from], " goes back to node ", instance.nodes[edge.to].id,
                 " on stage ", stage_of_node[edge.to]);
    }
  }
  if (devices > instance.max_devices) {
    return bad("takes ", devices, " devices of ", instance.max_devices);
  }
  if (replicas > instance.micro_batches) {
    return bad("has ", replicas, " replicas for ", instance.micro_batches, " micro-batches");
  }
  double value = 0;
  const std::vector<PiperStageMetrics> metrics = PiperMetrics(instance, plan);
  for (size_t s = 0; s < metrics.size(); ++s) {
    if (metrics[s].memory_bytes > instance.memory_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("plan: stage %d needs %.0f bytes, a device has %.0f", s,
                          metrics[s].memory_bytes, instance.memory_bytes));
    }
    value = std::max(value, metrics[s].load);
  }
  if (std::abs(plan.value - value) > 1e-9 * value) {
    return bad("value says ", plan.value, ", the slowest stage takes ", value);
  }
  if (plan.bound > value * (1 + 1e-9)) {
    return bad("bound ", plan.bound, " is above the value ", value);
  }
  return absl::OkStatus();
}

absl::StatusOr<PiperPlan> PlanPiperInstance(const PiperInstance& instance,
                                            const PiperOptions& options) {
  if (auto status = ValidateLimits(instance); !status.ok()) return status;
  if (options.max_cuts < 1) return absl::InvalidArgumentError("max_cuts wants to be positive");
  absl::StatusOr<PiperPlan> plan = internal::SolvePiper(instance, options);
  if (plan.ok() && LargestStageBytes(instance, *plan) > instance.memory_bytes) {
    // Bytes that are no whole numbers, added up in another order.
    PiperInstance smaller = instance;
    smaller.memory_bytes *= 1 - 1e-12;
    const double bound = plan->bound;
    plan = internal::SolvePiper(smaller, options);
    if (plan.ok()) plan->bound = std::min(plan->bound, bound);
  }
  if (!plan.ok()) return plan.status();
  for (const PiperStageMetrics& stage : PiperMetrics(instance, *plan)) {
    plan->value = std::max(plan->value, stage.load);
  }
  plan->bound = std::min(plan->bound, plan->value);
  plan->optimal = plan->value <= plan->bound * (1 + 1e-9);
  if (auto status = VerifyPlan(instance, *plan); !status.ok()) {
    return absl::InternalError(absl::StrCat("a bug in autopart: ", std::string(status.message())));
  }
  return plan;
}

std::string ToJson(const PiperInstance& instance, const PiperPlan& plan) {
  Json stages = Json::array();
  for (const PiperStage& stage : plan.stages) {
    Json nodes = Json::array(), names = Json::array();
    for (size_t i = 0; i < stage.nodes.size(); ++i) {
      const PiperNode& node = instance.nodes[stage.nodes[i]];
      nodes.push_back(node.id);
      names.push_back(Json::array(
          {node.id, node.configurations.at(stage.tensor_degree)[stage.configurations[i]].name}));
    }
    stages.push_back({{"nodes", std::move(nodes)},
                      {"dataParallelDegree", stage.replicas},
                      {"tensorParallelDegree", stage.tensor_degree},
                      {"TMPCids", std::move(names)}});
  }
  const Json json = {{"maxDevices", instance.max_devices},
                     {"maxMemoryPerDevice", instance.memory_bytes},
                     {"mbsInBatch", instance.micro_batches},
                     {"bandwidth", instance.bandwidth},
                     {"tps", plan.value},
                     {"stages", std::move(stages)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace autopart
