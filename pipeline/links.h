// How long messages and reductions take on a cluster.
#ifndef AUTOPART_PIPELINE_LINKS_H_
#define AUTOPART_PIPELINE_LINKS_H_

#include <cstdint>
#include <vector>

#include "pipeline/cluster.h"

namespace autopart {

// Milliseconds that `bytes` occupy a link, its latency apart.
double OccupiedMs(const LinkSpec& link, int64_t bytes);
// One message on a link that nothing else uses.
inline double MessageMs(const LinkSpec& link, int64_t bytes) {
  return link.latency_ms + OccupiedMs(link, bytes);
}

// The sum of `bytes` over the ranks, given to all of them. A ring: each rank moves 2 (n - 1) / n of
// the bytes (Patarasuk and Yuan, 2009), in 2 (n - 1) messages or, over a tree, in 2 log2 n,
// whichever is sooner. The slowest link of the ring decides. `rings_at_once` such reductions (of
// other stages, at the same hosts) share the hosts' networks; where every device has its own
// network link, a ring uses those of all its devices on a host together.
double AllReduceMs(const Cluster& cluster, const std::vector<DevicePlace>& places,
                   const std::vector<int>& ranks, int64_t bytes, int rings_at_once);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_LINKS_H_
