// What the text and HTML reports say in words: request, verdict, reasons. Each takes its numbers
// from the plan only, so that a saved plan reads as a fresh one.
#ifndef AUTOPART_PIPELINE_INTERNAL_REPORT_SUMMARY_H_
#define AUTOPART_PIPELINE_INTERNAL_REPORT_SUMMARY_H_

#include <string>
#include <vector>

#include "pipeline/internal/report_facts.h"
#include "pipeline/plan.h"
#include "pipeline/report.h"

namespace autopart::internal {

// "cluster  8 × h100 80.0 GiB, links 450 GB/s": a line may break between the pieces.
struct Fact {
  std::string name;
  std::vector<std::string> pieces;
  std::string separator = ", ";
};

// What was asked for: model, cluster, batch.
std::vector<Fact> InputFacts(const Plan& plan, const ReportContext& context);

Fact PlanFact(const Plan& plan);  // "4 stages × 2 replicas · 32 micro-batches · schedule 1f1b"
Fact StepFact(const Plan& plan);  // "160 ms predicted · 200 micro-batches/s · ..."

// How far the plan is from the best.
struct BoundFact {
  std::string bound;            // "131 ms: no plan on these 8 devices is faster (...)."
  std::string gap;              // "Gap 28.2 ms (21 %)"
  double parts_ms = 0;          // sum of
  std::vector<TimePart> parts;  // the gap, or the whole step where there is no bound
};
BoundFact BoundFactOf(const Plan& plan);

// "bubble 5.00", those that count, rounded so that they add up.
std::vector<std::string> PartTexts(const std::vector<TimePart>& parts, double total);

// "cut 0|1 after h.5: 1 value, 6.25 MiB forward, 6.25 MiB back"; at most eight, and "[7 other
// cuts]".
std::vector<std::string> CutTexts(const Plan& plan);
// "stage 0 is the fullest, 71.2 of 80.0 GiB"
std::string MemoryText(const Plan& plan);
// The best of each other shape and schedule for as many micro-batches: "2×4 1f1b 455 ms".
std::vector<std::string> NotChosen(const Plan& plan);
// Priced changes that the planner may not make by itself, named by their flag. Costs a simulation
// each; none where that takes long.
std::vector<Fact> Tries(const Plan& plan);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_REPORT_SUMMARY_H_
