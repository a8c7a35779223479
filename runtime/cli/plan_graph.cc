#include "runtime/cli/plan_graph.h"

#include <filesystem>

#include "partitioner/read_file.h"
#include "pipeline/planner.h"
#include "pipeline/report.h"
#include "runtime/cli/interrupt.h"
#include "runtime/cli/progress.h"

namespace autopart {
namespace {

void UseMeasuredLinks(const CostMachine& machine, Cluster& cluster) {
  if (machine.link_bytes_per_ms <= 0) return;
  for (HostGroup& host : cluster.hosts) {
    host.link.bytes_per_ms = machine.link_bytes_per_ms;
    host.link.latency_ms = machine.link_latency_ms;
  }
}

}  // namespace

int PlanGraph(const CostGraph& graph, const PlanFlags& flags,
              std::chrono::steady_clock::time_point start, Streams streams) {
  absl::StatusOr<PlannerOptions> options = PlannerOptionsOf(flags);
  if (!options.ok()) return Fail(options.status(), streams);
  absl::StatusOr<Cluster> cluster = ClusterOf(flags, graph.device);
  if (!cluster.ok()) return Fail(cluster.status(), streams);
  if (flags.cluster.empty() && (flags.device.empty() || flags.device == graph.device)) {
    UseMeasuredLinks(graph.machine, *cluster);
  }
  const Interrupt interrupt;
  options->stop = interrupt.token();
  Progress progress(streams.err);
  options->progress = [&](const std::string& line) { progress.Say(line); };
  absl::StatusOr<Plan> plan = MakePlan(graph, *cluster, *options);
  if (!plan.ok()) return Fail(plan.status(), streams);
  if (interrupt.came()) streams.err << "interrupted: this is the best plan so far\n";
  plan->model.name = std::filesystem::path(flags.input).filename().string();
  if (absl::Status status = WriteFile(flags.output, ToJson(*plan)); !status.ok()) {
    return Fail(status, streams);
  }
  ReportContext context;
  context.plan_path = flags.output;
  context.planning_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const absl::StatusOr<std::string> report = RenderPlan(*plan, flags.format, context);
  if (!report.ok()) return Fail(report.status(), streams);
  streams.out << *report;
  return kExitGood;
}

}  // namespace autopart
