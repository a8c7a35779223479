// Everything decided: which node on which stage on which ranks, how many micro-batches, in which
// order, and what that is predicted to cost. A value; plan.json is its saved form
// (docs/plan-schema.md). The runtime takes no decision of its own.
#ifndef AUTOPART_PIPELINE_PLAN_H_
#define AUTOPART_PIPELINE_PLAN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "partitioner/cost_graph.h"
#include "pipeline/cluster.h"
#include "pipeline/schedule.h"
#include "pipeline/stage_memory.h"

namespace autopart {

inline constexpr int kPlanVersion = 3;

struct PlanModel {
  std::string name;        // for people (the file, or the class of the module): decides nothing
  std::string hash;        // of the OpGraph: structure, not values
  int64_t parameters = 0;  // numbers in trainable and frozen parameters (buffers apart)
  int64_t operators = 0;   // nodes of the graph
  int64_t parameter_bytes = 0;
  bool has_loss = false;

  // A file and the module that it was saved from have equal plans: the name does not count.
  bool operator==(const PlanModel& o) const {
    return std::tie(hash, parameters, operators, parameter_bytes, has_loss) ==
           std::tie(o.hash, o.parameters, o.operators, o.parameter_bytes, o.has_loss);
  }
};

// Bytes on one rank, by what they are for.
struct MemoryByKind {
  int64_t weights = 0;      // parameters and the model's own buffers
  int64_t gradients = 0;    // of parameters
  int64_t optimizer = 0;    // its state
  int64_t activations = 0;  // kept for the backward, or handed back to the caller
  int64_t buffers = 0;      // messages on their way, and scratch of operators

  int64_t total() const { return weights + gradients + optimizer + activations + buffers; }
  bool operator==(const MemoryByKind&) const = default;
};

// Where the predicted step goes, as the mean over the ranks; the parts sum to the step.
struct StepBreakdown {
  double compute_ms = 0;    // forward and backward
  double recompute_ms = 0;  // forward work done again
  double bubble_ms = 0;     // waiting that remains when messages and reductions take no time and
                            // all stages are equally heavy
  double imbalance_ms = 0;  // waiting for heavier stages
  double messages_ms = 0;   // exposed sends and receives
  double reduce_ms = 0;     // exposed reduction of gradients
  double optimizer_ms = 0;

  double total() const {
    return compute_ms + recompute_ms + bubble_ms + imbalance_ms + messages_ms + reduce_ms +
           optimizer_ms;
  }
  bool operator==(const StepBreakdown&) const = default;
};

struct PlanStage {
  int index = 0;
  std::vector<int> ranks;         // one per replica
  std::vector<int> nodes;         // that the stage owns, ascending: the assignment
  std::vector<int> copied_nodes;  // owned elsewhere, computed here too (copyable chains)
  // Indices into the graph's parameters. A parameter used on several stages is owned by the lowest
  // and replicated on the others, its gradients summed. A parameter that nobody uses is owned by
  // stage 0.
  std::vector<int> owned_parameters;
  std::vector<int> copied_parameters;
  std::vector<int> recomputed_nodes;  // that run forward again before their backward, ascending
  std::string first_module, last_module;

  int64_t operators = 0;   // == nodes.size(); they sum to the model's
  int64_t parameters = 0;  // numbers in what it owns; they sum to the model's
  int64_t copied_operators = 0;
  int64_t copied_parameters_count = 0;  // JSON key "copied_parameters"
  double forward_ms = 0;                // of one micro-batch
  double backward_ms = 0;
  double backward_weight_ms = 0;  // of backward_ms, for the gradients of parameters
  double recompute_ms = 0;        // forward work done again, not part of backward_ms
  double optimizer_ms = 0;        // once a step
  int64_t send_bytes = 0;         // a micro-batch, activations and gradients
  int64_t peak_memory_bytes = 0;  // of its fullest rank
  MemoryByKind memory;            // of that rank at that moment; sums to peak_memory_bytes
  double idle_fraction = 0;
  StageMemory held;  // what the simulator counts

  bool operator==(const PlanStage&) const = default;
};

// A candidate that lost, for the report's WHY.
struct PlanAlternative {
  int stages = 0, micro_batches = 0;
  int replicas = 0;  // of each stage; 0 where they differ
  int64_t micro_batch_samples = 0;
  std::string schedule;
  std::string recompute = "none";  // "none", "all", or "some"
  bool shard_optimizer = false;
  double step_ms =
      0;  // of the simulation, or the bound that ruled it out; 0 where there is neither
  // "does not fit: stage 0 needs 96.1 of 80.0 GiB", "slower", "ruled out: at best as slow as this"
  std::string reason;

  bool operator==(const PlanAlternative&) const = default;
};

// Gradients that are summed over all ranks of some stages: of one stage with replicas, or of
// parameters that several stages use.
struct Reduction {
  std::vector<int> stages;  // ascending
  int64_t bytes = 0;

  bool operator==(const Reduction&) const = default;
};

struct Plan {
  int version = kPlanVersion;
  PlanModel model;
  Cluster cluster;
  int64_t memory_bytes = 0;    // that a device may use; 0: all that it has
  std::string dtype = "fp32";  // of weights and activations that are floating-point numbers
  std::string optimizer = "adam";
  bool shard_optimizer = false;     // its state is spread over the replicas of a stage (ZeRO-1)
  std::string schedule;             // name for GenerateSchedule
  int micro_batches = 1;            // over the whole job
  int64_t micro_batch_samples = 0;  // 0: not known
  double predicted_step_ms = 0;
  StepBreakdown breakdown;
  double bound_ms = 0;
  std::string bound_kind;
  bool optimal = false;          // proven best of all plans for these costs
  std::string costs_device;      // that the operators' times are of; empty: not known
  double costs_scale = 1;        // factor of those times that a calibration run gave
  double measured_fraction = 0;  // share of the predicted compute that was measured
  uint64_t seed = 0;
  std::vector<PlanStage> stages;
  std::vector<StageEdge> edges;  // what crosses which cut
  std::vector<Reduction> reductions;
  // Gradients are reduced in buckets of so many bytes while the backward goes on; 0: after it.
  int64_t reduce_bucket_bytes = 0;
  std::vector<PlanAlternative> alternatives;

  bool operator==(const Plan&) const = default;

  int num_devices() const { return cluster.num_devices(); }
  int64_t batch() const { return micro_batches * micro_batch_samples; }  // samples; 0: not known
  // What a device of the rank's type may use.
  int64_t MemoryOf(const DeviceSpec& device) const {
    return memory_bytes > 0 ? memory_bytes : device.memory_bytes;
  }
  StagePlacement Placement() const;
};

// Builds the lowered schedule of a plan.
absl::StatusOr<Schedule> BuildSchedule(const Plan& plan);

// Nodes that each stage computes itself although another stage owns them, ascending: copyable nodes
// whose value it reads, with the copyable nodes that those depend on.
std::vector<std::vector<int>> ComputeCopiedNodes(const CostGraph& graph,
                                                 const std::vector<int>& stage_of_node,
                                                 int num_stages);

// The edges that an assignment of nodes to stages needs, sorted by (from, to). Values of copyable
// nodes that a stage computes itself do not appear.
std::vector<StageEdge> ComputeEdges(const CostGraph& graph, const std::vector<int>& stage_of_node,
                                    const std::vector<std::vector<int>>& copied_nodes);

// The edge of a plan that has no backward.
StageEdge ForwardOnly(StageEdge edge);

// Consistent in itself: ranks of a stage distinct, every rank has a stage, nodes once, edges
// forward, a schedule that ends. Run on every load.
absl::Status Validate(const Plan& plan);
// Also fits this graph: FAILED_PRECONDITION says what differs (hash, operators, parameters).
absl::Status Validate(const Plan& plan, const CostGraph& graph);

std::string ToJson(const Plan& plan);
// INVALID_ARGUMENT for broken text, a missing or wrong field (names it), or a newer version.
absl::StatusOr<Plan> PlanFromJson(std::string_view text);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_PLAN_H_
