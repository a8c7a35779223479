#include "runtime/cli/saved_plan.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "partitioner/read_file.h"
#include "pipeline/cluster_file.h"
#include "pipeline/report.h"

namespace autopart {
namespace {

absl::Status At(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

void DeclareReportFormat(CLI::App& app, std::string& format) {
  app.add_option("--format", format,
                 absl::StrCat("of stdout: ", absl::StrJoin(ReportFormats(), ", ")))
      ->check(CLI::IsMember(ReportFormats()))
      ->capture_default_str()
      ->group("Output");
}

absl::StatusOr<Plan> ReadPlan(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<Plan> plan = PlanFromJson(*text);
  if (plan.ok()) return plan;
  if (text->find("\"autopart.cost_graph\"") != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": this is a cost graph, not a plan: make one with `autopart plan ", path, "`"));
  }
  return At(path, plan.status());
}

absl::StatusOr<RunRecord> ReadRunRecord(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<RunRecord> record = RunRecordFromJson(*text);
  return record.ok() ? record : At(path, record.status());
}

absl::StatusOr<Cluster> ReadCluster(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<Cluster> cluster = ClusterFromYaml(*text);
  return cluster.ok() ? cluster : At(path, cluster.status());
}

}  // namespace autopart
