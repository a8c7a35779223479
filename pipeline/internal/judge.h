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
};

struct Judgement {
  Plan plan;               // with times, memory and idle shares
  int64_t over_bytes = 0;  // most by which a rank has too little memory; at most 0: it fits
  int worst_stage = 0;     // of that rank
  Precision precision = Precision::kExact;

  bool fits() const { return over_bytes <= 0; }
};

// kOnePipeline falls back to kExact where the replicas are not equal or are one.
// INTERNAL: the schedule hangs.
absl::StatusOr<Judgement> Judge(Plan plan, Precision precision);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_JUDGE_H_
