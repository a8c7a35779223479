// The page of the HTML report (report.html.in), with {{name}} where something is to be put in.
#ifndef AUTOPART_PIPELINE_INTERNAL_REPORT_HTML_TEMPLATE_H_
#define AUTOPART_PIPELINE_INTERNAL_REPORT_HTML_TEMPLATE_H_

namespace autopart::internal {

extern const char kReportHtml[];

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_REPORT_HTML_TEMPLATE_H_
