// The formats of a report, a file each (report_*.cc). All render the same value.
#ifndef AUTOPART_PIPELINE_INTERNAL_RENDERERS_H_
#define AUTOPART_PIPELINE_INTERNAL_RENDERERS_H_

#include <string>

#include "absl/status/statusor.h"
#include "pipeline/plan.h"
#include "pipeline/report.h"

namespace autopart::internal {

absl::StatusOr<std::string> RenderText(const Plan& plan, const ReportContext& context);
absl::StatusOr<std::string> RenderJson(const Plan& plan, const ReportContext& context);
absl::StatusOr<std::string> RenderHtml(const Plan& plan, const ReportContext& context);
absl::StatusOr<std::string> RenderTrace(const Plan& plan, const ReportContext& context);
absl::StatusOr<std::string> RenderMermaid(const Plan& plan, const ReportContext& context);
absl::StatusOr<std::string> RenderDot(const Plan& plan, const ReportContext& context);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_RENDERERS_H_
