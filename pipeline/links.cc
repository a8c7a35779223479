#include "pipeline/links.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace autopart {

double OccupiedMs(const LinkSpec& link, int64_t bytes) {
  return link.bytes_per_ms > 0 ? bytes / link.bytes_per_ms : 0;
}

double AllReduceMs(const Cluster& cluster, const std::vector<DevicePlace>& places,
                   const std::vector<int>& ranks, int64_t bytes, int rings_at_once) {
  const int n = ranks.size();
  if (n < 2 || bytes == 0 || cluster.hosts.empty()) return 0;
  std::map<int, int> on_host;  // host -> ranks
  std::map<int, int> group_of;
  for (const int rank : ranks) {
    ++on_host[places[rank].host];
    group_of[places[rank].host] = places[rank].host_group;
  }
  double rate = 0;  // 0: not known yet, and free of charge
  double latency = 0;
  const auto pass = [&](double bytes_per_ms, double latency_ms) {
    if (bytes_per_ms > 0 && (rate == 0 || bytes_per_ms < rate)) rate = bytes_per_ms;
    latency = std::max(latency, latency_ms);
  };
  for (const auto& [host, count] : on_host) {
    const HostGroup& hosts = cluster.hosts[group_of[host]];
    // A shared link inside a host carries the traffic of all its ranks.
    if (count > 1) {
      pass(hosts.link.bytes_per_ms / (hosts.link.shared ? count : 1), hosts.link.latency_ms);
    }
    if (on_host.size() > 1) {
      const double share = hosts.network.shared ? 1.0 / std::max(1, rings_at_once) : count;
      pass(hosts.network.bytes_per_ms * share, hosts.network.latency_ms);
    }
  }
  const double steps = std::min<double>(2.0 * (n - 1), 2 * std::ceil(std::log2(n)));
  return (rate > 0 ? 2.0 * (n - 1) / n * bytes / rate : 0) + steps * latency;
}

}  // namespace autopart
