// A plan's predictions beside what was measured when it was run.
#ifndef AUTOPART_PIPELINE_ACCURACY_H_
#define AUTOPART_PIPELINE_ACCURACY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/plan.h"
#include "pipeline/run_record.h"

namespace autopart {

struct Compared {
  double predicted = 0, measured = 0;

  // Of the measured: 0.1 where 10 % too much was predicted. 0 where nothing was measured.
  double error() const { return measured > 0 ? (predicted - measured) / measured : 0; }
  bool operator==(const Compared&) const = default;
};

struct StageAccuracy {
  int stage = 0;
  // Of one micro-batch, mean over the micro-batches of what each took at the 10th percentile.
  Compared forward_ms, backward_ms;
  Compared optimizer_ms;       // of a step
  Compared peak_memory_bytes;  // of the fullest of its ranks
};

struct Accuracy {
  Compared step_ms;  // measured: the 10th percentile
  double measured_median_ms = 0;
  int steps = 0;                 // that were counted
  double measured_fraction = 0;  // of the predicted compute
  std::vector<StageAccuracy> stages;
  // Where the step goes, as the mean over the ranks. Measured: compute, optimizer and reduction as
  // they took in the typical step (of a reduction, what the rank took that came last); bubble and
  // imbalance by simulating the stages at their measured times; what is left counts as messages.
  StepBreakdown predicted, measured;
};

// FAILED_PRECONDITION where the record is not of this plan.
absl::StatusOr<Accuracy> CompareRun(const Plan& plan, const RunRecord& record);

// A table for people.
std::string AccuracyText(const Accuracy& accuracy);
// The same numbers, each as {"predicted", "measured", "error"}.
std::string AccuracyJson(const Accuracy& accuracy);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_ACCURACY_H_
