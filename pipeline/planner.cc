// The search: every p stages x d replicas with p d = N, every schedule, every number of
// micro-batches allowed; each split by the partitioner, simulated, and judged by time per
// micro-batch.
//
// For each p the graph is split once without a memory cap; a candidate that does not fit is split
// again with one (the cap falls by what the simulator finds too much, since only the simulator
// counts messages), but not for GPipe, which holds more than 1F1B and is hardly ever faster. So
// most candidates cost one simulation. Cost: (divisors of N) partitions and (divisors x schedules x
// micro-batch counts) simulations.
#include "pipeline/planner.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "partitioner/partitioner.h"
#include "pipeline/breakdown.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/step_bound.h"
#include "pipeline/simulate.h"

namespace autopart {
namespace {

constexpr int kCappedTries = 3;
// Every action is simulated: beyond these a plan takes minutes and its answer is no better.
constexpr int kMostDevices = 16384;
constexpr int kMostMicroBatches = 100000;

struct Shape {
  int stages = 1, replicas = 1;
};

// The graph as a forward-only plan sees it.
CostGraph ForwardOnly(CostGraph graph) {
  for (CostNode& node : graph.nodes) {
    node.backward_input_ms = node.backward_weight_ms = 0;
    node.saved_values.clear();
    node.saved_bytes = 0;
  }
  for (CostValue& value : graph.values) value.gradient_bytes = 0;
  return graph;
}

absl::StatusOr<std::vector<Shape>> AllowedShapes(const CostGraph& graph, int devices,
                                                 const PlannerOptions& options, int pinned_stages) {
  for (const auto& [name, value] : {std::pair("stages", options.stages),
                                    {"replicas", options.replicas},
                                    {"micro-batches", options.micro_batches}}) {
    if (value.has_value() && *value < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("the number of ", name, " must be at least 1, not ", *value));
    }
  }
  if (options.stages && options.replicas && *options.stages * *options.replicas != devices) {
    return absl::InvalidArgumentError(
        absl::StrCat(*options.stages, " stages of ", internal::Count(*options.replicas, "replica"),
                     " need ", *options.stages * *options.replicas, " devices, not ", devices));
  }
  const int operators = graph.nodes.size();
  if (options.stages && *options.stages > operators && pinned_stages == 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot make ", *options.stages,
                                                   " stages: the model has ",
                                                   internal::Count(operators, "operator")));
  }
  if (options.stages && *options.stages < pinned_stages) {
    return absl::InvalidArgumentError(absl::StrCat("a node is pinned to stage ", pinned_stages - 1,
                                                   ", but there are ", *options.stages,
                                                   " stages, from 0"));
  }
  std::vector<int> divisors;
  std::vector<Shape> shapes;
  for (int p = 1; p <= devices; ++p) {
    if (devices % p != 0) continue;
    divisors.push_back(p);
    if (options.stages ? p != *options.stages : pinned_stages > 0 && p != pinned_stages) continue;
    if (options.replicas && devices / p != *options.replicas) continue;
    if (p <= operators || pinned_stages > 0) shapes.push_back({p, devices / p});
  }
  if (!shapes.empty()) return shapes;
  if (options.stages || pinned_stages > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(internal::Count(devices, "device"), " cannot be shared out evenly among ",
                     options.stages.value_or(pinned_stages), " stages: possible are ",
                     absl::StrJoin(divisors, ", ")));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      internal::Count(devices, "device"), " cannot be shared out evenly among stages of ",
      internal::Count(options.replicas.value_or(1), "replica"), ": replicas may be ",
      absl::StrJoin(divisors, ", "), ", and each stage needs an operator (the model has ",
      operators, ")"));
}

absl::StatusOr<std::vector<std::string>> AllowedSchedules(const PlannerOptions& options) {
  std::vector<std::string> all = ScheduleNames();
  const auto forward_only = [](const std::string& name) { return name == "forward"; };
  if (options.schedule) {
    if (std::find(all.begin(), all.end(), *options.schedule) == all.end()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown schedule '", *options.schedule,
                                                     "': known are ", absl::StrJoin(all, ", ")));
    }
    if (forward_only(*options.schedule) == options.training) {
      return absl::InvalidArgumentError(
          absl::StrCat("schedule '", *options.schedule, "' is ",
                       options.training ? "for inference, but the plan is for training"
                                        : "for training, but the plan is for inference"));
    }
    return std::vector<std::string>{*options.schedule};
  }
  all = ExecutableScheduleNames();
  std::erase_if(all,
                [&](const std::string& name) { return forward_only(name) == options.training; });
  return all;
}

// Places what the user left free: after all that it reads, at the earliest stage; what reads
// nothing goes where it is first read. Groups go together.
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

// The search of one call.
class Planner {
 public:
  Planner(const CostGraph& graph, const Cluster& cluster, const PlannerOptions& options)
      : graph_(graph), cluster_(cluster), options_(options) {
    devices_ = cluster.num_devices();
    if (cluster.hosts.empty() || cluster.hosts[0].devices.empty()) return;
    memory_ = options.memory_bytes.value_or(cluster.hosts[0].devices[0].device.memory_bytes);
  }

  absl::StatusOr<Plan> Run() {
    if (graph_.nodes.empty()) return absl::InvalidArgumentError("the model has no operators");
    if (absl::Status s = Validate(cluster_); !s.ok()) return s;
    if (devices_ > kMostDevices) {
      return absl::InvalidArgumentError(
          absl::StrCat("plans are for at most ", kMostDevices, " devices, not ", devices_));
    }
    if (options_.micro_batches.value_or(1) > kMostMicroBatches) {
      return absl::InvalidArgumentError(absl::StrCat("the number of micro-batches must be at most ",
                                                     kMostMicroBatches, ", not ",
                                                     *options_.micro_batches));
    }
    int pinned_stages = 0;
    if (!options_.pinned_stage_of_node.empty()) {
      if (options_.pinned_stage_of_node.size() != graph_.nodes.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("pins for ", options_.pinned_stage_of_node.size(),
                         " nodes, the model has ", graph_.nodes.size()));
      }
      pinned_stages = 1 + *std::max_element(options_.pinned_stage_of_node.begin(),
                                            options_.pinned_stage_of_node.end());
    }
    auto shapes = AllowedShapes(graph_, devices_, options_, pinned_stages);
    if (!shapes.ok()) return shapes.status();
    auto schedules = AllowedSchedules(options_);
    if (!schedules.ok()) return schedules.status();

    for (const Shape& shape : *shapes) {
      absl::StatusOr<std::vector<int>> free = FreeAssignment(shape.stages);
      if (!free.ok()) {
        // Too many stages for what may be divided: only the caller's own wish makes that an error.
        if (shapes->size() == 1) return free.status();
        continue;
      }
      const absl::StatusOr<Base> base = Describe(shape, *free);
      if (!base.ok()) return base.status();
      for (const std::string& schedule : *schedules) {
        for (const int micro_batches : MicroBatches()) {
          absl::Status status = Try(*base, schedule, micro_batches);
          if (!status.ok()) return status;
        }
      }
    }
    if (fits_.empty()) return NothingFits();
    return Best(*shapes);
  }

 private:
  // What does not depend on schedule and micro-batches.
  struct Base {
    Shape shape;
    Plan plan;
  };
  struct Candidate {
    Plan plan;
    Shape shape;
    int64_t peak_bytes = 0;
    int worst_stage = 0;

    double ms_per_micro_batch() const { return plan.predicted_step_ms / plan.micro_batches; }
    int64_t over(int64_t memory) const { return peak_bytes - memory; }
  };

  // p, 2p and 4p micro-batches a replica: the same N, 2N, 4N for every shape.
  std::vector<int> MicroBatches() const {
    if (options_.micro_batches) return {*options_.micro_batches};
    return {devices_, 2 * devices_, 4 * devices_};
  }

  PartitionOptions SplitOptions(int stages) const {
    PartitionOptions split;
    split.num_stages = stages;
    split.objective = Objective::kOverlap;
    const LinkSpec& link = cluster_.hosts[0].link;
    if (link.bytes_per_ms > 0) split.bytes_per_ms = link.bytes_per_ms;
    split.latency_ms = link.latency_ms;
    split.effort.seed = options_.seed;
    split.effort.iterations = options_.iterations;
    split.effort.prove = false;  // one of dozens of searches; only the chosen plan counts
    return split;
  }

  absl::StatusOr<std::vector<int>> FreeAssignment(int stages) const {
    if (!options_.pinned_stage_of_node.empty()) {
      return CompletePins(graph_, options_.pinned_stage_of_node, stages);
    }
    if (stages == 1) return std::vector<int>(graph_.nodes.size(), 0);
    absl::StatusOr<Partition> partition = PartitionGraph(graph_, SplitOptions(stages));
    if (!partition.ok()) return partition.status();
    return partition->stage_of_node;
  }

  absl::StatusOr<Base> Describe(const Shape& shape, const std::vector<int>& stage_of_node) const {
    Plan plan;
    plan.model.hash = graph_.model_hash;
    plan.model.operators = graph_.nodes.size();
    plan.model.has_loss = graph_.loss >= 0;
    plan.costs_device = graph_.device;
    plan.cluster = cluster_;
    plan.memory_bytes = memory_;
    plan.optimizer = options_.optimizer;
    plan.seed = options_.seed;

    const auto copied = ComputeCopiedNodes(graph_, stage_of_node, shape.stages);
    plan.edges = ComputeEdges(graph_, stage_of_node, copied);
    plan.stages.resize(shape.stages);
    std::vector<std::set<int>> used(shape.stages);
    for (int s = 0; s < shape.stages; ++s) {
      PlanStage& stage = plan.stages[s];
      stage.index = s;
      for (int r = 0; r < shape.replicas; ++r) stage.ranks.push_back(r * shape.stages + s);
      stage.copied_nodes = copied[s];
      stage.copied_operators = copied[s].size();
      for (const int n : copied[s]) {
        used[s].insert(graph_.nodes[n].parameters.begin(), graph_.nodes[n].parameters.end());
      }
    }
    double measured = 0;
    double all = 0;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const CostNode& node = graph_.nodes[n];
      PlanStage& stage = plan.stages[stage_of_node[n]];
      stage.nodes.push_back(n);
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
    for (size_t q = 0; q < graph_.parameters.size(); ++q) {
      const CostParameter& parameter = graph_.parameters[q];
      plan.model.parameters += parameter.elements;
      if (parameter.elements > 0) plan.model.parameter_bytes += parameter.bytes;  // no buffers
      PlanStage* owner = nullptr;
      for (int s = 0; s < shape.stages; ++s) {
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
    plan.schedule = options_.training ? "1f1b" : "forward";  // either kind composes the same
    if (!options_.training) {
      for (StageEdge& edge : plan.edges) edge = ForwardOnly(edge);
    }
    if (absl::Status s = ComposeCosts(graph_, plan); !s.ok()) return s;
    for (const StageEdge& edge : plan.edges) {
      plan.stages[edge.from].send_bytes += edge.bytes;
      plan.stages[edge.to].send_bytes += edge.gradient_bytes;
    }
    return Base{shape, std::move(plan)};
  }

  // Completes a described plan by simulation.
  absl::StatusOr<Candidate> Judge(const Base& base, const std::string& schedule,
                                  int micro_batches) const {
    Plan plan = base.plan;
    plan.schedule = schedule;
    plan.micro_batches = micro_batches;
    const absl::StatusOr<Simulation> simulation = SimulatePlan(plan);
    if (!simulation.ok()) return simulation.status();

    Candidate candidate;
    candidate.shape = base.shape;
    plan.predicted_step_ms = simulation->makespan_ms;
    for (PlanStage& stage : plan.stages) {
      double idle = 0;
      for (const int rank : stage.ranks) {
        const RankUse& use = simulation->ranks[rank];
        idle += use.idle_ms;
        if (use.peak_bytes >= stage.peak_memory_bytes) {
          stage.peak_memory_bytes = use.peak_bytes;
          stage.memory = use.peak;
        }
      }
      if (simulation->makespan_ms > 0) {
        stage.idle_fraction = std::max(0.0, idle / stage.ranks.size() / simulation->makespan_ms);
      }
      if (stage.peak_memory_bytes > candidate.peak_bytes) {
        candidate.peak_bytes = stage.peak_memory_bytes;
        candidate.worst_stage = stage.index;
      }
    }
    candidate.plan = std::move(plan);
    return candidate;
  }

  // Judges one candidate, splitting again under a memory cap where it does not fit.
  absl::Status Try(const Base& base, const std::string& schedule, int micro_batches) {
    const Shape& shape = base.shape;
    absl::StatusOr<Candidate> candidate = Judge(base, schedule, micro_batches);
    if (!candidate.ok()) return candidate.status();
    Candidate best = *std::move(candidate);
    int64_t cap = memory_;
    const bool may_split = shape.stages > 1 && options_.pinned_stage_of_node.empty() &&
                           (schedule != "gpipe" || options_.schedule);
    for (int tries = 0; may_split && best.over(memory_) > 0 && tries < kCappedTries; ++tries) {
      const absl::StatusOr<Base>& capped =
          CappedSplit(shape, InFlight(shape, schedule, micro_batches), cap);
      if (!capped.ok()) break;
      candidate = Judge(*capped, schedule, micro_batches);
      if (!candidate.ok()) return candidate.status();
      const int64_t over = candidate->over(memory_);
      if (over < best.over(memory_)) best = *std::move(candidate);
      if (over > 0) cap -= over;
      if (cap <= 0) break;
    }
    (best.over(memory_) > 0 ? misses_ : fits_).push_back(std::move(best));
    return absl::OkStatus();
  }

  // Kept, as candidates that differ in micro-batches only often ask for the same.
  const absl::StatusOr<Base>& CappedSplit(const Shape& shape, const std::vector<int>& in_flight,
                                          int64_t cap) {
    const auto key = std::tuple(shape.stages, in_flight, cap);
    if (const auto it = capped_.find(key); it != capped_.end()) return it->second;
    PartitionOptions split = SplitOptions(shape.stages);
    split.memory_bytes = cap;
    split.state_factor = StateFactor();
    split.in_flight = in_flight;
    const absl::StatusOr<Partition> partition = PartitionGraph(graph_, split);
    return capped_
        .emplace(key, partition.ok() ? Describe(shape, partition->stage_of_node)
                                     : absl::StatusOr<Base>(partition.status()))
        .first->second;
  }

  double StateFactor() const {
    if (!options_.training) return 1;
    if (options_.optimizer == "sgd") return 2;
    if (options_.optimizer == "sgd-momentum") return 3;
    return 4;
  }

  // Micro-batches held at once, from the last stage on.
  std::vector<int> InFlight(const Shape& shape, const std::string& schedule,
                            int micro_batches) const {
    const int own = (micro_batches + shape.replicas - 1) / shape.replicas;
    if (schedule == "zb-h1") return {std::min(own, shape.stages)};
    if (schedule != "1f1b") return {own};
    std::vector<int> in_flight;
    for (int s = 1; s <= shape.stages; ++s) in_flight.push_back(std::min(own, s));
    return in_flight;
  }

  std::string Misfit(const Candidate& c) const {
    return absl::StrCat("stage ", c.worst_stage, " needs ",
                        internal::BytesOf(c.peak_bytes, memory_));
  }

  absl::Status NothingFits() const {
    const Candidate& nearest = *std::min_element(
        misses_.begin(), misses_.end(),
        [](const Candidate& a, const Candidate& b) { return a.peak_bytes < b.peak_bytes; });
    return absl::ResourceExhaustedError(absl::StrCat(
        "no plan fits into ", internal::HumanBytes(memory_),
        " a device. Nearest: ", internal::Count(nearest.shape.stages, "stage"), " x ",
        internal::Count(nearest.shape.replicas, "replica"), ", ", nearest.plan.schedule, ", ",
        internal::Count(nearest.plan.micro_batches, "micro-batch"), ": ", Misfit(nearest), ", ",
        nearest.over(memory_), " bytes too many. Try more devices, a smaller micro-batch",
        options_.micro_batches ? ", fewer micro-batches" : "",
        options_.optimizer == "sgd" || !options_.training ? "" : ", or --optimizer sgd"));
  }

  absl::StatusOr<Plan> Best(const std::vector<Shape>& shapes) {
    // Faster first, then what needs less memory, then fewer stages; times within 1e-9 are equal.
    const auto key = [](const Candidate& c) {
      return std::tuple(c.peak_bytes, c.shape.stages, c.plan.micro_batches);
    };
    const double fastest =
        std::min_element(fits_.begin(), fits_.end(), [](const Candidate& a, const Candidate& b) {
          return a.ms_per_micro_batch() < b.ms_per_micro_batch();
        })->ms_per_micro_batch();
    int best = -1;
    for (size_t i = 0; i < fits_.size(); ++i) {
      if (fits_[i].ms_per_micro_batch() > fastest * (1 + 1e-9)) continue;
      if (best < 0 || key(fits_[i]) < key(fits_[best])) best = i;
    }
    Plan plan = fits_[best].plan;
    fits_.erase(fits_.begin() + best);

    std::stable_sort(fits_.begin(), fits_.end(), [](const Candidate& a, const Candidate& b) {
      return a.ms_per_micro_batch() < b.ms_per_micro_batch();
    });
    const double chosen = plan.predicted_step_ms / plan.micro_batches;
    for (const Candidate& c : fits_) {
      plan.alternatives.push_back(
          {c.shape.stages, c.plan.micro_batches, c.shape.replicas, 0, c.plan.schedule, "none",
           false, c.plan.predicted_step_ms,
           c.ms_per_micro_batch() > chosen * (1 + 1e-9) ? "slower" : "as fast, more memory"});
    }
    for (const Candidate& c : misses_) {
      plan.alternatives.push_back({c.shape.stages, c.plan.micro_batches, c.shape.replicas, 0,
                                   c.plan.schedule, "none", false, c.plan.predicted_step_ms,
                                   absl::StrCat("does not fit: ", Misfit(c))});
    }

    std::vector<std::pair<int, int>> allowed;
    for (const Shape& shape : shapes) allowed.emplace_back(shape.stages, shape.replicas);
    const internal::StepBound bound =
        internal::ComputeStepBound(graph_, allowed, plan.micro_batches, options_.training);
    plan.bound_ms = bound.ms;
    plan.bound_kind = bound.kind;
    const absl::StatusOr<StepBreakdown> parts = BreakDown(plan);
    if (!parts.ok()) return parts.status();
    plan.breakdown = *parts;
    return plan;
  }

  const CostGraph& graph_;
  const Cluster& cluster_;
  const PlannerOptions& options_;
  int devices_ = 0;
  int64_t memory_ = 0;
  std::vector<Candidate> fits_, misses_;
  std::map<std::tuple<int, std::vector<int>, int64_t>, absl::StatusOr<Base>> capped_;
};

}  // namespace

absl::StatusOr<Plan> MakePlan(const CostGraph& graph, const Cluster& cluster,
                              const PlannerOptions& options) {
  if (options.training) return Planner(graph, cluster, options).Run();
  const CostGraph forward = ForwardOnly(graph);
  return Planner(forward, cluster, options).Run();
}

}  // namespace autopart
