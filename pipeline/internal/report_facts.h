// What several formats of the report say of a plan.
#ifndef AUTOPART_PIPELINE_INTERNAL_REPORT_FACTS_H_
#define AUTOPART_PIPELINE_INTERNAL_REPORT_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/plan.h"

namespace autopart::internal {

bool Trains(const Plan& plan);
const std::string& DeviceName(const Plan& plan);  // of the first
// Of each stage: the bytes that its smallest device may use.
std::vector<int64_t> StageCaps(const Plan& plan);
// The devices, counted by their rates of matrix products: two of half the rate are one.
double DevicesWorth(const Plan& plan);

// Length of what all module paths begin with, up to a dot.
size_t CommonPrefix(const Plan& plan);
// "first … last" module of a stage without the common prefix, in at most `width` columns.
std::string FromTo(const PlanStage& stage, size_t prefix, int width);

int SlowestStage(const Plan& plan);
int FullestStage(const Plan& plan);  // by the share of what its devices may use

// Compute of the step on one device, in sequence.
double OneDeviceMs(const Plan& plan);
std::string BoundReason(const Plan& plan);

struct TimePart {
  std::string name;
  double ms = 0;
};
// Where the step goes; the parts add up to it.
std::vector<TimePart> StepParts(const Plan& plan);
// Where the time beyond the bound goes; the parts add up to the gap.
std::vector<TimePart> GapParts(const Plan& plan);

// What passes the border between stage s and s + 1: all edges from at most s to more than s.
struct Cut {
  std::string after;  // last module before it
  int values = 0;
  int64_t bytes = 0, gradient_bytes = 0;
  int skips = 0;  // edges that pass over a stage
};
std::vector<Cut> CutsOf(const Plan& plan);

// Whether the times were measured, and where.
std::string TrustOf(const Plan& plan);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_REPORT_FACTS_H_
