// Clusters as people write them: YAML or JSON, with units (docs/clusters.md, examples/clusters/).
#ifndef AUTOPART_PIPELINE_CLUSTER_FILE_H_
#define AUTOPART_PIPELINE_CLUSTER_FILE_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "pipeline/cluster.h"

namespace autopart {

// INVALID_ARGUMENT names the line and the field: unknown or missing keys, units that are not
// understood, counts and sizes that make no sense.
absl::StatusOr<Cluster> ClusterFromYaml(std::string_view text);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_CLUSTER_FILE_H_
