// What a plan costs, by simulation.
#ifndef AUTOPART_PIPELINE_INTERNAL_JUDGE_H_
#define AUTOPART_PIPELINE_INTERNAL_JUDGE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "pipeline/plan.h"

namespace autopart::internal {

enum class Precision {
  kExact,  // every rank is simulated
  // One pipeline of stages with equal replicas stands for all; its share of links that are shared
  // is what is left to it, and its reductions take the time of all replicas.
  kOnePipeline,
  // Nothing is simulated: neither the step nor the memory of a rank can be less.
  kBound,
};

struct Judgement {
  Plan plan;               // with times, memory and idle shares
  int64_t over_bytes = 0;  // most by which a rank has too little memory; at most 0: it fits
  int worst_stage = 0;     // of that rank
  Precision precision = Precision::kExact;

  bool fits() const { return over_bytes <= 0; }
};

// precision: not kBound; kOnePipeline falls back to kExact where the replicas are not equal or are
// one. INTERNAL: the schedule hangs.
absl::StatusOr<Judgement> Judge(Plan plan, Precision precision);

// By kBound, from the order of the computes (internal/order_bound.h). `later`: the precision whose
// judgement has to be no less. INTERNAL: the order waits for itself.
absl::StatusOr<Judgement> JudgeByOrder(Plan plan, Precision later);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_JUDGE_H_
