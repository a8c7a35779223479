#include "runtime/cli/explain_command.h"

#include "CLI/CLI.hpp"
#include "pipeline/report.h"
#include "runtime/cli/saved_plan.h"

namespace autopart {

int ExplainCommand(const Args& args, Streams streams) {
  std::string path;
  std::string format = "text";
  CLI::App app(
      "Example: autopart explain plan.json --format mermaid\n\n"
      "Shows a saved plan as `autopart plan` did, in any format.",
      "autopart explain");
  app.add_option("plan", path, "plan, as autopart plan writes it")->required();
  DeclareReportFormat(app, format);
  if (const std::optional<int> status = ParseFlags(app, args, streams)) return *status;
  const absl::StatusOr<Plan> plan = ReadPlan(path);
  if (!plan.ok()) return Fail(plan.status(), streams);
  const absl::StatusOr<std::string> report = RenderPlan(*plan, format, {});
  if (!report.ok()) return Fail(report.status(), streams);
  streams.out << *report;
  return kExitGood;
}

}  // namespace autopart
