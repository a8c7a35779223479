#include "runtime/cli/plan_command.h"

#include <cctype>
#include <chrono>
#include <fstream>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "partitioner/cost_graph.h"
#include "partitioner/read_file.h"
#include "runtime/cli/plan_graph.h"
#include "runtime/cli/plan_options.h"

namespace autopart {
namespace {

// Text or gzip; a model is a zip archive. Reads two bytes, as models are large.
bool MayBeCostGraph(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const int first = file.get();
  const int second = file.get();
  return !file || first == '{' || (first == 0x1f && second == 0x8b) || std::isspace(first);
}

}  // namespace

int PlanCommand(const Args& args, Streams streams) {
  const auto start = std::chrono::steady_clock::now();
  PlanFlags flags;
  CLI::App app(
      "Example: autopart plan model.pt --gpus 8 --device h100 -o plan.json\n\n"
      "Finds the fastest way to train a model on N devices, and says why.",
      "autopart plan");
  DeclarePlanFlags(app, flags);
  if (const std::optional<int> status = ParseFlags(app, args, streams)) return *status;
  if (!MayBeCostGraph(flags.input)) return HandToModelProgram("plan", args, streams);

  const absl::StatusOr<std::string> text = ReadFile(flags.input);
  if (!text.ok()) return Fail(text.status(), streams);
  if (text->find("autopart.cost_graph") == std::string::npos) {
    return HandToModelProgram("plan", args, streams);
  }
  const absl::StatusOr<CostGraph> graph = CostGraphFromJson(*text);
  if (!graph.ok()) {
    return Fail(absl::Status(graph.status().code(),
                             absl::StrCat(flags.input, ": ", graph.status().message())),
                streams);
  }
  if (!flags.input_specs.empty()) {
    return Fail(absl::InvalidArgumentError("--input is for models; a cost graph has its shapes"),
                streams);
  }
  return PlanGraph(*graph, flags, start, streams);
}

}  // namespace autopart
