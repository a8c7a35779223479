#include "runtime/cli/diff_command.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "pipeline/plan_diff.h"
#include "runtime/cli/saved_plan.h"

namespace autopart {

int DiffCommand(const Args& args, Streams streams) {
  std::string before_path, after_path;
  std::string format = "text";
  std::optional<double> fail_above;
  CLI::App app(
      "Example: autopart diff old.json new.json --fail-above 5\n\n"
      "Says what changed from one plan to another, stage by stage, and whether the step got "
      "slower.",
      "autopart diff");
  app.add_option("before", before_path, "plan, as autopart plan writes it")->required();
  app.add_option("after", after_path, "plan to compare with it")->required();
  app.add_option("--fail-above", fail_above,
                 "end with status 1 where the step time is up by more than so many percent")
      ->check(CLI::Range(0.0, 1e9));
  app.add_option("--format", format, "of stdout: text, json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str()
      ->group("Output");
  if (const std::optional<int> status = ParseFlags(app, args, streams)) return *status;
  const absl::StatusOr<Plan> before = ReadPlan(before_path);
  if (!before.ok()) return Fail(before.status(), streams);
  const absl::StatusOr<Plan> after = ReadPlan(after_path);
  if (!after.ok()) return Fail(after.status(), streams);

  const PlanDiff diff = ComparePlans(*before, *after);
  streams.out << (format == "json" ? ToJson(diff) : ToText(diff));
  const double percent = 100 * Growth(diff.step_ms);
  if (fail_above && percent > *fail_above) {
    streams.err << absl::StrFormat(
        "autopart: the step of %s takes %.1f %% more than that of %s, --fail-above allows %g %%\n",
        after_path, percent, before_path, *fail_above);
    return kExitFailed;
  }
  return kExitGood;
}

}  // namespace autopart
