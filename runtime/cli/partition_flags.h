// The flags of `autopart partition`, and what they say to the partitioner. A flag that a form of
// graph has no use for is refused, not ignored.
#ifndef AUTOPART_RUNTIME_CLI_PARTITION_FLAGS_H_
#define AUTOPART_RUNTIME_CLI_PARTITION_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "partitioner/partitioner.h"

namespace CLI {
class App;
}

namespace autopart {

struct PartitionFlags {
  std::string graph, output;
  std::optional<int> stages, devices, micro_batches;
  std::string memory, bandwidth;
  std::vector<std::string> device_types;
  std::string schedule, recompute, objective;
  std::optional<int> iterations;
  std::optional<double> time_limit;
  std::optional<int> threads;
  std::optional<uint64_t> seed;
  std::string format = "text";
};

void DeclarePartitionFlags(CLI::App& app, PartitionFlags& flags);

Objective ObjectiveOf(const PartitionFlags& flags, Objective otherwise);
Effort EffortOf(const PartitionFlags& flags);
// INVALID_ARGUMENT names the flag.
absl::StatusOr<int64_t> SizeOf(const char* flag, std::string_view text);

// Of a CostGraph.
absl::StatusOr<PartitionOptions> PartitionOptionsOf(const PartitionFlags& flags);

// INVALID_ARGUMENT "--bandwidth: <why>" for the first of `refused` that is set.
struct RefusedFlag {
  const char* name;  // "--bandwidth"
  const char* why;
};
absl::Status CheckUnused(const PartitionFlags& flags, const std::vector<RefusedFlag>& refused);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_PARTITION_FLAGS_H_
