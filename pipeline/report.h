// Renders a Plan for people and programs. One row per format; all render the same value.
#ifndef AUTOPART_PIPELINE_REPORT_H_
#define AUTOPART_PIPELINE_REPORT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/plan.h"

namespace autopart {

// Facts about the request that are not in the plan.
struct ReportContext {
  std::string plan_path;  // where the plan was saved, empty if not
  double planning_s = 0;  // 0 hides it, for golden tests
};

std::vector<std::string> ReportFormats();
// INVALID_ARGUMENT for an unknown format (lists the known ones). INTERNAL: the schedule hangs.
absl::StatusOr<std::string> RenderPlan(const Plan& plan, std::string_view format,
                                       const ReportContext& context);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_REPORT_H_
