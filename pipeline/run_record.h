// What happened when a plan was run: times of steps and actions, bytes of memory. A value; run.json
// is its saved form (docs/run-schema.md). `autopart run` writes it, `autopart explain --actual`
// sets it beside the plan, `autopart profile --actual` takes a model's scale factor from it.
#ifndef AUTOPART_PIPELINE_RUN_RECORD_H_
#define AUTOPART_PIPELINE_RUN_RECORD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pipeline/plan.h"
#include "pipeline/schedule.h"

namespace autopart {

inline constexpr int kRunVersion = 1;

struct RunAction {
  Action action;
  double start_s = 0, end_s = 0;   // in the typical step, from its begin
  double p10_s = 0, median_s = 0;  // how long it took, over the counted steps

  bool operator==(const RunAction&) const = default;
};

struct RunRank {
  int rank = 0;
  std::vector<RunAction> actions;  // the rank's list, in its order
  // Bytes of live tensor storage, as the allocator handed them out to this rank; without the
  // batches that the caller made.
  int64_t held_bytes = 0;      // before the first step: parameters and buffers of the model
  int64_t peak_bytes = 0;      // most at once in any step, what is held included
  int64_t resident_bytes = 0;  // of the rank's process, which several ranks may share

  bool operator==(const RunRank&) const = default;
};

struct RunRecord {
  int version = kRunVersion;
  std::string plan_hash;   // PlanHash of the plan that was run
  std::string model_hash;  // of the OpGraph
  std::string autopart_version, torch_version;
  std::string processor;       // for people
  std::string transport;       // "threads", "shared memory"
  bool pinned = false;         // each rank had a core of its own
  int warm_up_steps = 0;       // run before, and not counted
  std::vector<double> step_s;  // wall time of each counted step, in order
  int typical_step = 0;        // into step_s: the step whose actions are told
  std::vector<double> losses;  // of each counted step; empty without a loss
  std::vector<RunRank> ranks;

  // The share `q` of the counted steps were not slower: 0.1 is the figure that predictions are held
  // against, as what disturbs a step makes it longer.
  double StepQuantile(double q) const;
  bool operator==(const RunRecord&) const = default;
};

// The q-quantile of values, 0 of none.
double Quantile(std::vector<double> values, double q);

// Of what a plan decides (model, nodes, ranks, edges, schedule, micro-batches, optimizer), 32 hex
// digits. What it predicts does not count: a plan that was only costed anew has the same.
std::string PlanHash(const Plan& plan);

// Ranks in order, times that are numbers and not negative, actions that end after they start. Run
// on every load.
absl::Status Validate(const RunRecord& record);
// Also made by this plan: FAILED_PRECONDITION says what differs.
absl::Status Validate(const RunRecord& record, const Plan& plan);

std::string ToJson(const RunRecord& record);
// INVALID_ARGUMENT for broken text, a missing or wrong field (names it), or another version.
absl::StatusOr<RunRecord> RunRecordFromJson(std::string_view text);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_RUN_RECORD_H_
