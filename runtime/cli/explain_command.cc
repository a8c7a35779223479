#include "runtime/cli/explain_command.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "pipeline/accuracy.h"
#include "pipeline/report.h"
#include "runtime/cli/saved_plan.h"

namespace autopart {
namespace {

int Compare(const Plan& plan, const std::string& actual, const std::string& format,
            Streams streams) {
  if (format != "text" && format != "json") {
    return Fail(absl::InvalidArgumentError(
                    absl::StrCat("--actual is shown as text or json, not as ", format)),
                streams);
  }
  const absl::StatusOr<RunRecord> record = ReadRunRecord(actual);
  if (!record.ok()) return Fail(record.status(), streams);
  const absl::StatusOr<Accuracy> accuracy = CompareRun(plan, *record);
  if (!accuracy.ok()) {
    return Fail(absl::Status(accuracy.status().code(),
                             absl::StrCat(actual, ": ", accuracy.status().message())),
                streams);
  }
  streams.out << (format == "json" ? AccuracyJson(*accuracy) : AccuracyText(*accuracy));
  return kExitGood;
}

}  // namespace

int ExplainCommand(const Args& args, Streams streams) {
  std::string path;
  std::string actual;
  std::string format = "text";
  CLI::App app(
      "Example: autopart explain plan.json --format mermaid\n\n"
      "Shows a saved plan as `autopart plan` did, in any format. With --actual: what it predicted\n"
      "beside what a run of it measured, as text or JSON.",
      "autopart explain");
  app.add_option("plan", path, "plan, as autopart plan writes it")->required();
  app.add_option("--actual", actual, "record of a run of this plan, as autopart run -o writes it");
  DeclareReportFormat(app, format);
  if (const std::optional<int> status = ParseFlags(app, args, streams)) return *status;
  const absl::StatusOr<Plan> plan = ReadPlan(path);
  if (!plan.ok()) return Fail(plan.status(), streams);
  if (!actual.empty()) return Compare(*plan, actual, format, streams);
  const absl::StatusOr<std::string> report = RenderPlan(*plan, format, {});
  if (!report.ok()) return Fail(report.status(), streams);
  streams.out << *report;
  return kExitGood;
}

}  // namespace autopart
