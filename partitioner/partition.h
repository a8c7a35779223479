// Which node is on which stage, and how good that is known to be.
#ifndef AUTOPART_PARTITIONER_PARTITION_H_
#define AUTOPART_PARTITIONER_PARTITION_H_

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace autopart {

// What a stage runs on, and how.
struct StageConfiguration {
  int replicas = 1;
  int device_type = 0;
  std::vector<int> recomputed;  // nodes of the stage that run forward again, ascending

  bool operator==(const StageConfiguration&) const = default;
};

struct Partition {
  int num_stages = 0;
  std::vector<int> stage_of_node;          // no edge goes to a lower stage
  std::vector<StageConfiguration> stages;  // empty: one device each, nothing recomputed

  // The certificate: value is the heaviest stage's load, bound what no partition can be below.
  double value = 0;
  double bound = 0;
  std::string bound_kind;       // "average", "indivisible", ...
  bool optimal = false;         // value is proven best, within rounding
  bool time_limit_hit = false;  // or stopped: another run may answer otherwise

  bool operator==(const Partition&) const = default;

  // 0.05: at most 5 % from best; infinity where nothing is known, the bound being 0.
  double gap() const {
    if (value <= bound) return 0;
    return bound > 0 ? value / bound - 1 : std::numeric_limits<double>::infinity();
  }
};

std::string ToJson(const Partition& partition);
absl::StatusOr<Partition> PartitionFromJson(std::string_view text);

}  // namespace autopart

#endif  // AUTOPART_PARTITIONER_PARTITION_H_
