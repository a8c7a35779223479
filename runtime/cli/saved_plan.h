// A plan as an argument of a verb, and the formats to show it in.
#ifndef AUTOPART_RUNTIME_CLI_SAVED_PLAN_H_
#define AUTOPART_RUNTIME_CLI_SAVED_PLAN_H_

#include <string>

#include "absl/status/statusor.h"
#include "pipeline/cluster.h"
#include "pipeline/plan.h"
#include "pipeline/run_record.h"

namespace CLI {
class App;
}

namespace autopart {

// --format, one of ReportFormats().
void DeclareReportFormat(CLI::App& app, std::string& format);

// Reads and validates; messages begin with the path.
absl::StatusOr<Plan> ReadPlan(const std::string& path);
absl::StatusOr<RunRecord> ReadRunRecord(const std::string& path);
absl::StatusOr<Cluster> ReadCluster(const std::string& path);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_SAVED_PLAN_H_
