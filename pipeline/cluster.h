// The devices to plan for.
#ifndef AUTOPART_PIPELINE_CLUSTER_H_
#define AUTOPART_PIPELINE_CLUSTER_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "partitioner/device.h"

namespace autopart {

// N equal devices with equal links between any two.
struct Cluster {
  DeviceSpec device;
  int num_devices = 1;
  double link_bytes_per_ms = 0;
  double link_latency_ms = 0;
};

// The cluster of --gpus N --device NAME, with that device's usual link.
absl::StatusOr<Cluster> UniformCluster(std::string_view device, int num_devices);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_CLUSTER_H_
