// The published form of the max-throughput problem and its answers, as in the dnn-partitioning
// repository of Tarnawski et al. (Efficient Algorithms for Device Placement of DNN Graph Operators,
// NeurIPS 2020). There an accelerator is called "fpga".
//
// Load of an accelerator: its nodes' times plus, for each node with an edge of which exactly one
// end is on the accelerator, the time to move that node's output, once. Load of a CPU: its nodes'
// times. Forward nodes run through the devices as a pipeline; a backward node goes where the
// forward nodes of its colour class go.
#ifndef AUTOPART_PARTITIONER_DNN_INSTANCE_H_
#define AUTOPART_PARTITIONER_DNN_INSTANCE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/partition.h"
#include "partitioner/partitioner.h"

namespace autopart {

struct DnnNode {
  std::string id;  // as JSON
  double accelerator_ms = 0;
  double cpu_ms = 0;
  double bytes = 0;      // on an accelerator
  double output_ms = 0;  // to move its output on or off an accelerator
  bool on_accelerator = true;
  bool backward = false;
  int color = -1;  // nodes of one colour stay together; -1 for none
};

struct DnnEdge {
  int from = 0, to = 0;  // indices into nodes
};

struct DnnInstance {
  std::vector<DnnNode> nodes;
  std::vector<DnnEdge> edges;
  int max_accelerators = 1;
  int max_cpus = 0;
  double accelerator_bytes = 0;
};

// Does the text hold this form rather than one of ours?
bool LooksLikeDnnInstance(std::string_view text);

// INVALID_ARGUMENT names the node or edge at fault.
absl::StatusOr<DnnInstance> DnnInstanceFromJson(std::string_view text);

// The Partition's stages are the places of a chain, some of them CPUs.
struct DnnPartition {
  Partition partition;
  std::vector<bool> is_cpu;  // by stage
};

struct DnnLoad {
  double compute_ms = 0;
  double communication_ms = 0;
  double load_ms = 0;
  double bytes = 0;
  int nodes = 0;
};

// The load of each stage by the definition above; written apart from what makes partitions. With
// kOverlap a load is the larger of computing, sending and receiving.
std::vector<DnnLoad> DnnLoads(const DnnInstance& instance, const DnnPartition& partition,
                              Objective objective);

struct DnnOptions {
  Objective objective = Objective::kSum;
  Effort effort;
};

// At most the instance's devices are used. Errors as of PartitionGraph.
absl::StatusOr<DnnPartition> PartitionDnnInstance(const DnnInstance& instance,
                                                  const DnnOptions& options);

// {"fpgas": [{"load": .., "nodes": [ids]}, ..], "cpus": [..], "maxLoad": ..}
std::string ToJson(const DnnInstance& instance, const DnnPartition& partition, Objective objective);

}  // namespace autopart

#endif  // AUTOPART_PARTITIONER_DNN_INSTANCE_H_
