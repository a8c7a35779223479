#include "pipeline/internal/wishes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "pipeline/internal/format.h"
#include "pipeline/schedule.h"

namespace autopart::internal {

absl::Status CheckWishes(int devices, const PlannerOptions& options) {
  for (const auto& [name, value] : {std::pair("stages", options.stages),
                                    {"replicas", options.replicas},
                                    {"micro-batches", options.micro_batches}}) {
    if (value.has_value() && *value < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("the number of ", name, " must be at least 1, not ", *value));
    }
  }
  if (options.batch.value_or(1) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the batch must be at least 1 sample, not ", *options.batch));
  }
  if (devices > kMostDevices) {
    return absl::InvalidArgumentError(
        absl::StrCat("plans are for at most ", kMostDevices, " devices, not ", devices));
  }
  if (options.micro_batches.value_or(1) > kMostMicroBatches) {
    return absl::InvalidArgumentError(absl::StrCat("the number of micro-batches must be at most ",
                                                   kMostMicroBatches, ", not ",
                                                   *options.micro_batches));
  }
  if (options.stages && options.replicas && *options.stages * *options.replicas != devices) {
    return absl::InvalidArgumentError(
        absl::StrCat(*options.stages, " stages of ", Count(*options.replicas, "replica"), " need ",
                     *options.stages * *options.replicas, " devices, not ", devices));
  }
  const std::set<std::string> known = {"none", "all", "auto"};
  if (options.recompute && known.count(*options.recompute) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("unknown --recompute '", *options.recompute,
                                                   "': known are ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Shape>> AllowedShapes(const CostGraph& graph, int devices,
                                                 const PlannerOptions& options, int pinned_stages) {
  const int operators = graph.nodes.size();
  const bool may_be_empty = !options.pinned_stage_of_node.empty();
  if (options.stages && *options.stages > operators && !may_be_empty) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot make ", *options.stages, " stages: the model has ", Count(operators, "operator")));
  }
  if (options.stages && *options.stages < pinned_stages) {
    return absl::InvalidArgumentError(absl::StrCat("a node is pinned to stage ", pinned_stages - 1,
                                                   ", but there are ", *options.stages,
                                                   " stages, from 0"));
  }
  std::vector<int> divisors;
  std::vector<Shape> shapes;
  for (int p = 1; p <= devices; ++p) {
    if (devices % p != 0) continue;
    divisors.push_back(p);
    if (options.stages ? p != *options.stages
                       : (may_be_empty ? p != pinned_stages : p < pinned_stages)) {
      continue;
    }
    if (options.replicas && devices / p != *options.replicas) continue;
    if (p <= operators || may_be_empty) shapes.push_back({p, devices / p});
  }
  if (!shapes.empty()) return shapes;
  if (options.stages || pinned_stages > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Count(devices, "device"), " cannot be shared out evenly among ",
                     options.stages.value_or(pinned_stages), " stages: possible are ",
                     absl::StrJoin(divisors, ", ")));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Count(devices, "device"), " cannot be shared out evenly among stages of ",
                   Count(options.replicas.value_or(1), "replica"), ": replicas may be ",
                   absl::StrJoin(divisors, ", "),
                   ", and each stage needs an operator (the model has ", operators, ")"));
}

absl::StatusOr<std::vector<std::string>> AllowedSchedules(const PlannerOptions& options) {
  std::vector<std::string> all = ScheduleNames();
  const auto forward_only = [](const std::string& name) { return name == "forward"; };
  if (options.schedule) {
    if (std::find(all.begin(), all.end(), *options.schedule) == all.end()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown schedule '", *options.schedule,
                                                     "': known are ", absl::StrJoin(all, ", ")));
    }
    if (forward_only(*options.schedule) == options.training) {
      return absl::InvalidArgumentError(
          absl::StrCat("schedule '", *options.schedule, "' is ",
                       options.training ? "for inference, but the plan is for training"
                                        : "for training, but the plan is for inference"));
    }
    return std::vector<std::string>{*options.schedule};
  }
  if (options.search == SearchSpace::kExecutable) all = ExecutableScheduleNames();
  std::erase_if(all,
                [&](const std::string& name) { return forward_only(name) == options.training; });
  return all;
}

absl::StatusOr<std::vector<int>> AllowedMicroBatches(int64_t samples, int devices,
                                                     const PlannerOptions& options) {
  if (options.batch) {
    if (samples == 0) {
      if (options.micro_batches) return std::vector<int>{*options.micro_batches};
      return absl::InvalidArgumentError(
          "a batch needs a model whose samples can be counted: give --micro-batches instead");
    }
    if (*options.batch % samples != 0) {
      return absl::InvalidArgumentError(absl::StrCat("a batch of ", Count(*options.batch, "sample"),
                                                     " cannot be cut into micro-batches of ",
                                                     samples));
    }
    const int64_t count = *options.batch / samples;
    if (options.micro_batches.value_or(count) != count) {
      return absl::InvalidArgumentError(absl::StrCat(*options.micro_batches, " micro-batches of ",
                                                     Count(samples, "sample"),
                                                     " are not a batch of ", *options.batch));
    }
    if (count > kMostMicroBatches) {
      return absl::InvalidArgumentError(absl::StrCat("a batch of ", *options.batch, " would be ",
                                                     count, " micro-batches, more than ",
                                                     kMostMicroBatches));
    }
    return std::vector<int>{static_cast<int>(count)};
  }
  if (options.micro_batches) return std::vector<int>{*options.micro_batches};
  // p, 2p and 4p micro-batches a replica: the same N, 2N, 4N for every shape.
  return std::vector<int>{devices, 2 * devices, 4 * devices};
}

}  // namespace autopart::internal
