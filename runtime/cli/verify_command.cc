#include "runtime/cli/verify_command.h"

#include "CLI/CLI.hpp"
#include "partitioner/cost_graph.h"
#include "partitioner/read_file.h"
#include "pipeline/plan.h"
#include "runtime/cli/model_input.h"

namespace autopart {
namespace {

absl::Status Verify(const std::string& plan_path, const ModelFlags& model, Streams streams) {
  absl::StatusOr<std::string> text = ReadFile(plan_path);
  if (!text.ok()) return text.status();
  absl::StatusOr<Plan> plan = PlanFromJson(*text);
  if (!plan.ok()) return In(plan_path, plan.status());
  absl::StatusOr<CostGraph> graph = LoadCostGraph(model, streams);
  if (!graph.ok()) return graph.status();
  if (absl::Status status = Validate(*plan, *graph); !status.ok()) {
    return In(plan_path + " is no plan for " + model.path, status);
  }
  streams.out << plan_path << " is a plan for " << model.path << ": " << plan->model.operators
              << " operators and " << plan->model.parameters << " parameters on "
              << plan->stages.size() << (plan->stages.size() == 1 ? " stage" : " stages") << ", "
              << plan->num_devices() << (plan->num_devices() == 1 ? " device" : " devices") << "\n";
  return absl::OkStatus();
}

}  // namespace

int VerifyCommand(const Args& args, Streams streams) {
  ModelFlags model;
  model.device = "cpu";  // structure only: no time is needed
  std::string plan_path;
  CLI::App app(
      "Example: autopart verify plan.json model.pt\n\n"
      "Says whether a plan is consistent and made for this model, or what differs.",
      "autopart verify");
  app.add_option("plan", plan_path, "plan, as autopart plan writes it")->required();
  DeclareModel(app, model);
  if (const std::optional<int> status = ParseFlags(app, args, streams)) return *status;
  const absl::Status status = Verify(plan_path, model, streams);
  return status.ok() ? kExitGood : Fail(status, streams);
}

}  // namespace autopart
