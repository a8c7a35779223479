// Devices by name: what the roofline estimate and the planner need to know of one.
#ifndef AUTOPART_PARTITIONER_DEVICE_H_
#define AUTOPART_PARTITIONER_DEVICE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace autopart {

struct DeviceSpec {
  std::string name;
  int64_t memory_bytes = 0;
  // Peak dense matrix rates, floating-point operations a millisecond.
  double fp32_flops_per_ms = 0;
  double half_flops_per_ms = 0;    // fp16 and bf16
  double memory_bytes_per_ms = 0;  // peak memory bandwidth
  double matrix_efficiency = 0.6;  // share of the peak that large matrix products reach
  double memory_efficiency = 0.8;  // share of the bandwidth that element-wise operators reach
  double launch_ms = 0;            // least time of one operator
  double link_bytes_per_ms = 0;    // usual link to a neighbour, one direction
  double link_latency_ms = 0;

  bool operator==(const DeviceSpec&) const = default;
};

// INVALID_ARGUMENT lists the known names.
absl::StatusOr<DeviceSpec> FindDevice(std::string_view name);
std::vector<std::string> DeviceNames();

}  // namespace autopart

#endif  // AUTOPART_PARTITIONER_DEVICE_H_
