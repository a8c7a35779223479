// The published form of hybrid parallelism and its plans, as in the piper repository of Tarnawski
// et al. (Piper: Multidimensional Planner for DNN Parallelization, NeurIPS 2021): layers with
// tensor parallelism and recompute as configurations to choose from, stages with replicas.
//
// Time per sample of a stage with d replicas, whose nodes all have tensor degree t:
//     sum of the chosen configurations' times / d
//   + 2 * (bytes of the edges that cross its border + the chosen configurations' sync bytes on
//     them) / d / bandwidth
//   + 4 (d - 1) / d * parameter bytes / micro-batches / bandwidth
// Memory of each of its devices, D being the sum of d over this stage and those behind it:
//     sum of A * ceil(D / d) + B
// All d * t together are at most the devices, d divides the micro-batches, and the sum of d is at
// most their number. No edge goes to an earlier stage. What counts is the slowest stage.
#ifndef AUTOPART_PARTITIONER_PIPER_INSTANCE_H_
#define AUTOPART_PARTITIONER_PIPER_INSTANCE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace autopart {

// One way to run a node ("TMPC").
struct PiperConfiguration {
  std::string name;  // "vanilla", "activation recomp", ...
  double time = 0;   // of a sample, forward and backward
  double parameter_bytes = 0;
  double flight_bytes = 0;  // A: for each micro-batch in flight
  double fixed_bytes = 0;   // B
  // By edge, in the order of the node's in_edges and out_edges.
  std::vector<double> in_sync_bytes, out_sync_bytes;
};

struct PiperNode {
  int64_t id = 0;
  std::string name;
  std::map<int, std::vector<PiperConfiguration>> configurations;  // by tensor degree
  std::vector<int> in_edges, out_edges;                           // into PiperInstance::edges
};

struct PiperEdge {
  int from = 0, to = 0;  // indices into nodes
  double bytes = 0;
};

struct PiperInstance {
  std::vector<PiperNode> nodes;
  std::vector<PiperEdge> edges;
  int max_devices = 1;
  double memory_bytes = 0;  // of a device
  int micro_batches = 1;
  double bandwidth = 0;  // bytes a second
};

struct PiperStage {
  std::vector<int> nodes;           // ascending
  std::vector<int> configurations;  // chosen for each of them, at the tensor degree
  int replicas = 1;
  int tensor_degree = 1;
};

struct PiperPlan {
  std::vector<PiperStage> stages;
  // The certificate, as in Partition: no plan is below `bound`.
  double value = 0;
  double bound = 0;
  std::string bound_kind;
  bool optimal = false;
};

struct PiperStageMetrics {
  double compute = 0, edges = 0, all_reduce = 0;  // of a sample
  double load = 0;
  double memory_bytes = 0;
  int in_flight = 1;
};

// Does the text hold this form rather than another?
bool LooksLikePiperInstance(std::string_view text);

// INVALID_ARGUMENT names the node or edge at fault.
absl::StatusOr<PiperInstance> PiperInstanceFromJson(std::string_view text);
// What the numbers outside of nodes and edges want to be; also run by PlanPiperInstance.
absl::Status ValidateLimits(const PiperInstance& instance);

// The referee: written from the definitions above alone, apart from what makes plans.
std::vector<PiperStageMetrics> PiperMetrics(const PiperInstance& instance, const PiperPlan& plan);
absl::Status VerifyPlan(const PiperInstance& instance, const PiperPlan& plan);

struct PiperOptions {
  // Sets of nodes that stages may be cut between: all that there are, or, above this number, those
  // of a few orders only, and then the plan is not proven.
  int max_cuts = 20'000;
};

// RESOURCE_EXHAUSTED: nothing fits; says the least memory that works.
absl::StatusOr<PiperPlan> PlanPiperInstance(const PiperInstance& instance,
                                            const PiperOptions& options = {});

// {"stages": [{"nodes": [ids], "dataParallelDegree": d, "tensorParallelDegree": t,
//              "TMPCids": [[id, name], ..]}, ..], "tps": .., and the limits}
std::string ToJson(const PiperInstance& instance, const PiperPlan& plan);

}  // namespace autopart

#endif  // AUTOPART_PARTITIONER_PIPER_INSTANCE_H_
