#include "pipeline/cluster.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace autopart {
namespace {

struct UsualHost {
  const char* device;  // null: any other
  int devices;         // 0: as many as there are
  LinkSpec network;
};

// DGX H100: a ConnectX-7 of 400 Gbit/s a device. DGX A100: 200 Gbit/s a device. p3dn: 100 Gbit/s a
// host, of which 90 are usable. Latencies are of RDMA, and of EFA.
constexpr UsualHost kUsualHosts[] = {{"h100", 8, {50e6, 0.01, false}},
                                     {"a100", 8, {25e6, 0.01, false}},
                                     {"v100", 8, {11.25e6, 0.025, true}},
                                     {nullptr, 0, {}}};

absl::Status CheckLink(const std::string& where, std::string_view name, const LinkSpec& link) {
  if (link.bytes_per_ms >= 0 && link.latency_ms >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      where, ": ", std::string(name), " of ", link.bytes_per_ms, " bytes a millisecond and ",
      link.latency_ms, " ms of latency: neither may be negative"));
}

}  // namespace

int HostGroup::devices_per_host() const {
  int sum = 0;
  for (const DeviceGroup& group : devices) sum += group.count;
  return sum;
}

int Cluster::num_devices() const {
  int sum = 0;
  for (const HostGroup& group : hosts) sum += group.count * group.devices_per_host();
  return sum;
}

int Cluster::num_hosts() const {
  int sum = 0;
  for (const HostGroup& group : hosts) sum += group.count;
  return sum;
}

std::vector<DeviceSpec> DeviceTypes(const Cluster& cluster) {
  std::vector<DeviceSpec> types;
  for (const HostGroup& hosts : cluster.hosts) {
    for (const DeviceGroup& devices : hosts.devices) {
      if (std::find(types.begin(), types.end(), devices.device) == types.end()) {
        types.push_back(devices.device);
      }
    }
  }
  return types;
}

std::vector<DevicePlace> PlacesOf(const Cluster& cluster) {
  const std::vector<DeviceSpec> types = DeviceTypes(cluster);
  std::vector<DevicePlace> places;
  int host = 0;
  for (size_t g = 0; g < cluster.hosts.size(); ++g) {
    for (int h = 0; h < cluster.hosts[g].count; ++h, ++host) {
      for (const DeviceGroup& devices : cluster.hosts[g].devices) {
        const int type = std::find(types.begin(), types.end(), devices.device) - types.begin();
        places.insert(places.end(), devices.count, {host, static_cast<int>(g), type});
      }
    }
  }
  return places;
}

LinkSpec LinkBetween(const Cluster& cluster, const DevicePlace& a, const DevicePlace& b) {
  if (a.host == b.host) return cluster.hosts[a.host_group].link;
  const LinkSpec& from = cluster.hosts[a.host_group].network;
  const LinkSpec& to = cluster.hosts[b.host_group].network;
  LinkSpec slower = from;
  if (to.bytes_per_ms > 0 && (from.bytes_per_ms == 0 || to.bytes_per_ms < from.bytes_per_ms)) {
    slower = to;
  }
  slower.latency_ms = std::max(from.latency_ms, to.latency_ms);
  return slower;
}

absl::Status Validate(const Cluster& cluster) {
  if (cluster.hosts.empty()) return absl::InvalidArgumentError("the cluster has no hosts");
  for (size_t g = 0; g < cluster.hosts.size(); ++g) {
    const HostGroup& hosts = cluster.hosts[g];
    const std::string where =
        absl::StrCat("hosts[", g, "]", hosts.name.empty() ? "" : " (" + hosts.name + ")");
    if (hosts.count < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": the number of hosts must be at least 1, not ", hosts.count));
    }
    if (hosts.devices.empty()) return absl::InvalidArgumentError(where + " has no devices");
    for (const DeviceGroup& devices : hosts.devices) {
      if (devices.count < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": the number of devices must be at least 1, not ", devices.count));
      }
      if (devices.device.memory_bytes < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": device '", devices.device.name, "' has no memory"));
      }
    }
    if (absl::Status s = CheckLink(where, "link", hosts.link); !s.ok()) return s;
    if (absl::Status s = CheckLink(where, "network", hosts.network); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<Cluster> UniformCluster(std::string_view device, int num_devices) {
  if (num_devices < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("number of devices must be at least 1, not ", num_devices));
  }
  absl::StatusOr<DeviceSpec> spec = FindDevice(device);
  if (!spec.ok()) return spec.status();
  const UsualHost& usual = *std::find_if(
      std::begin(kUsualHosts), std::end(kUsualHosts),
      [&](const UsualHost& u) { return u.device == nullptr || spec->name == u.device; });
  HostGroup host;
  host.link = {spec->link_bytes_per_ms, spec->link_latency_ms, false};
  host.network = usual.network;
  const int per_host = usual.devices > 0 ? usual.devices : num_devices;
  Cluster cluster;
  if (num_devices >= per_host) {
    host.count = num_devices / per_host;
    host.devices = {{*spec, per_host}};
    cluster.hosts.push_back(host);
  }
  if (num_devices % per_host > 0) {
    host.count = 1;
    host.devices = {{*spec, num_devices % per_host}};
    cluster.hosts.push_back(host);
  }
  return cluster;
}

}  // namespace autopart
