// The larger sections of the text report.
#ifndef AUTOPART_PIPELINE_INTERNAL_REPORT_TEXT_H_
#define AUTOPART_PIPELINE_INTERNAL_REPORT_TEXT_H_

#include <string>
#include <vector>

#include "pipeline/plan.h"

namespace autopart::internal {

inline constexpr int kTextWidth = 100;

// `first` and then the pieces, broken between them; further lines begin with `indent` blanks. A
// separator that is more than a dot stays at the end of its line.
std::string Wrap(const std::string& first, const std::vector<std::string>& pieces,
                 const std::string& separator, int indent);

// A row a stage, and totals that add up.
std::string StageTable(const Plan& plan);
// A line a stage (its first replica), a column a time slot. Empty where there is nothing to show.
std::string Timeline(const Plan& plan);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_REPORT_TEXT_H_
