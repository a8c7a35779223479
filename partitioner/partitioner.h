// Splits a cost graph into pipeline stages.
#ifndef AUTOPART_PARTITIONER_PARTITIONER_H_
#define AUTOPART_PARTITIONER_PARTITIONER_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "partitioner/cost_graph.h"
#include "partitioner/partition.h"

namespace autopart {

enum class Objective {
  // Load of a stage = compute + time of every value that it sends or receives, each once per
  // stage; the published cost of Tarnawski et al. (NeurIPS 2020), where sends block.
  kSum,
  // Load of a stage = max(compute, send, receive): sends overlap with compute, as in our runtime.
  kOverlap,
};

// Which forward work stages do again before their backward, to hold less meanwhile. A node that is
// recomputed costs its forward_ms once more for every micro-batch. What it keeps for backward (its
// private bytes, and the values that it makes) is then held for one micro-batch only, while its
// backward runs; instead the stage holds, for each micro-batch in flight, the values that
// recomputed nodes read and that others, or other stages, make. Nodes of one group, and nodes of
// one stage whose outputs are views of one storage, are recomputed together or not at all.
enum class Recompute {
  kNone,
  kCheap,  // on every stage, operators with little time for their bytes: a tenth of forward at most
  kAll,    // every stage keeps its inputs and runs its whole forward again
  kAuto,   // for each stage the set of nodes that makes it fit in least time
};

// How long to search, and for what. The same seed and iterations give the same answer whatever the
// threads and the machine; a time limit that is hit, or a stop, ends with the best answer so far.
struct Effort {
  // Rounds of re-order, slice and refine. Empty: a number that depends on the graph's size only,
  // or, with a time limit, as many as it allows.
  std::optional<int> iterations;
  uint64_t seed = 0;
  int threads = 0;  // 0: as many as the machine has
  double time_limit_s = std::numeric_limits<double>::infinity();
  // Off: no exact search and no bounds that cost more than reading the graph. For searches that
  // call the partitioner many times and use its answer only.
  bool prove = true;
  std::stop_token stop;  // for a caller that may want the answer at once
};

// INVALID_ARGUMENT names the bad one.
absl::Status Validate(const Effort& effort);

// Devices that are alike.
struct DeviceType {
  int count = 1;
  double speed = 1;  // milliseconds of the graph's costs that it does in a millisecond
  int64_t memory_bytes = std::numeric_limits<int64_t>::max();
};

struct PartitionOptions {
  int num_stages = 2;  // 0, with num_devices or device_types: any number
  Objective objective = Objective::kOverlap;
  double bytes_per_ms = std::numeric_limits<double>::infinity();  // link rate
  double latency_ms = 0;                                          // per value sent

  // Memory of a device = state_factor * bytes of its trained parameters + bytes of the others
  //   + in_flight * (saved values, each storage once, + private bytes)
  //   + those of one micro-batch that are recomputed + largest temporary.
  int64_t memory_bytes = std::numeric_limits<int64_t>::max();  // cap per device
  double state_factor = 4;  // weights + gradients + Adam's two moments
  // Micro-batches whose saved values stage s holds at once, counted from the LAST stage: entry 0 is
  // the last stage. The last entry serves all earlier stages. 1F1B: 1, 2, 3, ... up to m.
  std::vector<int> in_flight = {1};

  bool allow_empty_stages = false;  // with num_devices: fewer stages rather than empty ones

  // Replicas. With num_devices > 0 each stage has d >= 1 of them, one device each, no more than
  // num_devices in all, and micro-batches go round them. A micro-batch then takes 1/d of the
  // stage's time, and each replica has as many in flight as in_flight says for the stage ceil(D /
  // d) - 1 from the last, where D are the devices from this stage to the last. After a step its
  // replicas add up the gradients of trained parameters in a ring: 2 (d - 1) / d * bytes at
  // all_reduce rate, of which each micro-batch bears its share. 0: every stage has one device.
  int num_devices = 0;
  // Unequal devices, in place of num_devices and memory_bytes: each stage has replicas of one type,
  // in whatever order of types is best. Computing takes 1 / speed of the time; what is sent does
  // not.
  std::vector<DeviceType> device_types;
  double all_reduce_bytes_per_ms = std::numeric_limits<double>::infinity();
  // Of a step; with it d divides it and no replica has more in flight than its share. 0: very many.
  int micro_batches = 0;

  // Unequal links: entry s is the speed of the link between stages s and s + 1, of which there are
  // num_stages - 1; what takes a millisecond by bytes_per_ms and latency_ms takes 1 / speed there.
  // A value (and its gradient) is paid at each end by the link of that end: by the stage that makes
  // it at the speed of the link behind that stage, by each that reads it at the speed of the link
  // before. Stages that are left out stand at the end. Empty: all are as fast as bytes_per_ms says.
  std::vector<double> link_speeds;

  Recompute recompute = Recompute::kNone;
  Effort effort;

  // 0: every stage has one.
  int TotalDevices() const {
    int total = num_devices;
    for (const DeviceType& type : device_types) total += type.count;
    return total;
  }
  int64_t MemoryOf(int device_type) const {
    return device_types.empty() ? memory_bytes : device_types[device_type].memory_bytes;
  }
};

// Each node is on exactly one stage, no edge goes to an earlier stage, groups stay whole, no stage
// exceeds the cap. The same graph and options give the same answer.
// INVALID_ARGUMENT: bad options or graph (more stages than groups, unless empty stages are
// allowed). RESOURCE_EXHAUSTED: no split found that fits; names the stage or node and the missing
// bytes.
absl::StatusOr<Partition> PartitionGraph(const CostGraph& graph, const PartitionOptions& options);

}  // namespace autopart

#endif  // AUTOPART_PARTITIONER_PARTITIONER_H_
