#include "pipeline/cluster.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace autopart {

absl::StatusOr<Cluster> UniformCluster(std::string_view device, int num_devices) {
  if (num_devices < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("number of devices must be at least 1, not ", num_devices));
  }
  absl::StatusOr<DeviceSpec> spec = FindDevice(device);
  if (!spec.ok()) return spec.status();
  return Cluster{*spec, num_devices, spec->link_bytes_per_ms, spec->link_latency_ms};
}

}  // namespace autopart
