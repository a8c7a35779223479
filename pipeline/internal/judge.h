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
  // Nothing is simulated: memory is the least that it can be, and there are no times.
  kLeastMemory,
};

struct Judgement {
  Plan plan;               // with times, memory and idle shares
  int64_t over_bytes = 0;  // most by which a rank has too little memory; at most 0: it fits
  int worst_stage = 0;     // of that rank
  Precision precision = Precision::kExact;

  bool fits() const { return over_bytes <= 0; }
};

// precision: not kLeastMemory; kOnePipeline falls back to kExact where the replicas are not equal
// or are one. INTERNAL: the schedule hangs.
absl::StatusOr<Judgement> Judge(Plan plan, Precision precision);

// By kLeastMemory: on each rank weights, optimizer state, and the greater of gradients and of what
// is saved when the first backward starts. in_flight: micro-batches held then, from the last stage
// on; the last entry serves all earlier ones. Cost: O(storages), where a simulation is O(actions).
Judgement JudgeMemory(Plan plan, const std::vector<int>& in_flight);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_JUDGE_H_
