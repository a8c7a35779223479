// Two plans side by side: what changed, by how much, and in one line whether the step got slower.
#ifndef AUTOPART_PIPELINE_PLAN_DIFF_H_
#define AUTOPART_PIPELINE_PLAN_DIFF_H_

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/plan.h"

namespace autopart {

template <typename T>
struct Change {
  T before{}, after{};

  bool operator==(const Change&) const = default;
};

// Numbers that are equal but for rounding do not differ.
bool Differs(const Change<double>& change);
bool Differs(const Change<int64_t>& change);
bool Differs(const Change<std::string>& change);
// after / before - 1; 0 where there was nothing before.
double Growth(const Change<double>& change);

// A stage of one plan and that of the same number of the other. Where one has no such stage its
// side is empty: no replicas.
struct StageChange {
  int stage = 0;
  Change<int64_t> replicas, operators;
  Change<double> compute_ms;  // of a micro-batch, recomputation included
  Change<int64_t> peak_memory_bytes;
  Change<std::string> cut_after;  // its last module

  bool operator==(const StageChange&) const = default;
};
bool Differs(const StageChange& change);

// A line of the plan as text: "schedule", "1f1b" and "gpipe".
struct ChoiceChange {
  std::string name;
  Change<std::string> value;

  bool operator==(const ChoiceChange&) const = default;
};

struct PartChange {
  std::string name;  // "bubble"
  Change<double> ms;

  bool operator==(const PartChange&) const = default;
};

struct PlanDiff {
  bool same_model = true;  // by hash
  Change<double> step_ms;
  Change<double> bound_ms;      // 0: none
  std::string throughput_unit;  // "samples/s" where both plans know them, else "micro-batches/s"
  Change<double> throughput;
  Change<int64_t> peak_memory_bytes;  // of the fullest stage
  std::vector<ChoiceChange> choices;  // all of them, those that are the same too
  std::vector<PartChange> parts;      // where the step goes; they add up to it
  std::vector<StageChange> stages;    // all, as many as the longer plan has

  bool operator==(const PlanDiff&) const = default;
};

PlanDiff ComparePlans(const Plan& before, const Plan& after);
// Nothing that a PlanDiff holds differs.
bool Same(const PlanDiff& diff);

// "step time up 4 % (160 ms to 167 ms)"
std::string Verdict(const PlanDiff& diff);
// The verdict, then what differs. At most 100 columns.
std::string ToText(const PlanDiff& diff);
// Everything, for programs.
std::string ToJson(const PlanDiff& diff);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_PLAN_DIFF_H_
