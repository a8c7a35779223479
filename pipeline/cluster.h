// The devices to plan for: hosts with devices, and the links between them. A value; `--cluster
// FILE` and plan.json hold it.
//
// Global ranks are numbered host by host, and within a host in the order of its devices.
#ifndef AUTOPART_PIPELINE_CLUSTER_H_
#define AUTOPART_PIPELINE_CLUSTER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "partitioner/device.h"

namespace autopart {

// One direction of a link; both directions work at once.
struct LinkSpec {
  double bytes_per_ms = 0;  // 0: not known, and free of charge
  double latency_ms = 0;
  bool shared = false;  // one for all devices behind it together; else each device has its own

  bool operator==(const LinkSpec&) const = default;
};

struct DeviceGroup {
  DeviceSpec device;
  int count = 1;

  bool operator==(const DeviceGroup&) const = default;
};

// Hosts that are alike.
struct HostGroup {
  std::string name;
  int count = 1;
  std::vector<DeviceGroup> devices;
  LinkSpec link;     // between devices of one host: NVLink, PCIe
  LinkSpec network;  // from a host to the others

  int devices_per_host() const;
  bool operator==(const HostGroup&) const = default;
};

struct Cluster {
  std::string name;
  std::vector<HostGroup> hosts;

  int num_devices() const;
  int num_hosts() const;
  bool operator==(const Cluster&) const = default;
};

// Where a rank is.
struct DevicePlace {
  int host = 0;         // over all groups
  int host_group = 0;   // into Cluster::hosts
  int device_type = 0;  // into DeviceTypes()
};

// Rank -> place. Cost: O(devices).
std::vector<DevicePlace> PlacesOf(const Cluster& cluster);
// The different devices, in the order of the ranks.
std::vector<DeviceSpec> DeviceTypes(const Cluster& cluster);
// The way between two ranks: free of charge for one rank with itself, the hosts' link within a
// host, else the slower of the two hosts' networks.
LinkSpec LinkBetween(const Cluster& cluster, const DevicePlace& a, const DevicePlace& b);

// At least one host and device, counts, rates and sizes that make sense. INVALID_ARGUMENT names the
// host.
absl::Status Validate(const Cluster& cluster);

// The cluster of --gpus N --device NAME: hosts of eight (the last may have fewer) with that
// device's usual link and network; one host of any number for "cpu".
absl::StatusOr<Cluster> UniformCluster(std::string_view device, int num_devices);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_CLUSTER_H_
