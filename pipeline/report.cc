#include "pipeline/report.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "pipeline/internal/renderers.h"

namespace autopart {
namespace {

struct Format {
  std::string_view name;
  absl::StatusOr<std::string> (*render)(const Plan&, const ReportContext&);
};

// A format is a row here and a file in internal/.
constexpr Format kFormats[] = {
    {"text", internal::RenderText},       {"json", internal::RenderJson},
    {"html", internal::RenderHtml},       {"trace", internal::RenderTrace},
    {"mermaid", internal::RenderMermaid}, {"dot", internal::RenderDot},
};

}  // namespace

std::vector<std::string> ReportFormats() {
  std::vector<std::string> names;
  for (const Format& format : kFormats) names.emplace_back(format.name);
  return names;
}

absl::StatusOr<std::string> RenderPlan(const Plan& plan, std::string_view format,
                                       const ReportContext& context) {
  const auto row = std::find_if(std::begin(kFormats), std::end(kFormats),
                                [format](const Format& f) { return f.name == format; });
  if (row == std::end(kFormats)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown format '", std::string(format),
                                                   "': known are ",
                                                   absl::StrJoin(ReportFormats(), ", ")));
  }
  if (plan.stages.empty()) return absl::InvalidArgumentError("the plan has no stage");
  return row->render(plan, context);
}

}  // namespace autopart
