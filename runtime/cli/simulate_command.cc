#include "runtime/cli/simulate_command.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "partitioner/byte_size.h"
#include "pipeline/plan_diff.h"
#include "pipeline/report.h"
#include "pipeline/what_if.h"
#include "runtime/cli/saved_plan.h"

namespace autopart {
namespace {

struct SimulateFlags {
  std::string plan;
  std::optional<int> micro_batches;
  std::optional<std::string> schedule;
  std::string cluster, memory;
  std::string format = "text";
};

void Declare(CLI::App& app, SimulateFlags& flags) {
  app.add_option("plan", flags.plan, "plan, as autopart plan writes it")->required();
  app.add_option("--micro-batches", flags.micro_batches,
                 "micro-batches in a step, of the same size")
      ->group("What if");
  app.add_option("--schedule", flags.schedule, absl::StrJoin(ScheduleNames(), ", "))
      ->group("What if");
  app.add_option("--cluster", flags.cluster,
                 "as many devices of other kinds or on other links (docs/clusters.md)")
      ->group("What if");
  app.add_option("--memory", flags.memory, "bytes a device may use, for example 40GiB")
      ->group("What if");
  DeclareReportFormat(app, flags.format);
}

absl::StatusOr<PlanChange> ChangeOf(const SimulateFlags& flags) {
  PlanChange change;
  change.micro_batches = flags.micro_batches;
  change.schedule = flags.schedule;
  if (!flags.cluster.empty()) {
    absl::StatusOr<Cluster> cluster = ReadCluster(flags.cluster);
    if (!cluster.ok()) return cluster.status();
    change.cluster = *std::move(cluster);
  }
  if (!flags.memory.empty()) {
    const absl::StatusOr<int64_t> memory = ParseByteSize(flags.memory);
    if (!memory.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--memory: ", memory.status().message()));
    }
    if (*memory < 1) return absl::InvalidArgumentError("--memory must be at least 1 byte");
    change.memory_bytes = *memory;
  }
  return change;
}

}  // namespace

int SimulateCommand(const Args& args, Streams streams) {
  SimulateFlags flags;
  CLI::App app(
      "Example: autopart simulate plan.json --micro-batches 64\n\n"
      "Simulates a saved plan again, as it is (after an edit by hand) or with something changed.\n"
      "The split into stages stays; `autopart plan` finds a new one.",
      "autopart simulate");
  Declare(app, flags);
  if (const std::optional<int> status = ParseFlags(app, args, streams)) return *status;
  const absl::StatusOr<Plan> saved = ReadPlan(flags.plan);
  if (!saved.ok()) return Fail(saved.status(), streams);
  const absl::StatusOr<PlanChange> change = ChangeOf(flags);
  if (!change.ok()) return Fail(change.status(), streams);
  const absl::StatusOr<WhatIf> result = SimulateAgain(*saved, *change);
  if (!result.ok()) return Fail(result.status(), streams);
  const absl::StatusOr<std::string> report = RenderPlan(result->plan, flags.format, {});
  if (!report.ok()) return Fail(report.status(), streams);

  streams.out << *report;
  std::ostream& notes = flags.format == "text" ? streams.out : streams.err;
  const PlanDiff diff = ComparePlans(*saved, result->plan);
  notes << "\n";
  if (Same(diff)) {
    notes << "The simulation confirms " << flags.plan << ".\n";
  } else {
    notes << flags.plan << " → simulated: " << ToText(diff);
  }
  if (!result->misfit.empty()) {
    streams.err << "autopart: does not fit: " << result->misfit << "\n";
    return kExitNothingFits;
  }
  return kExitGood;
}

}  // namespace autopart
