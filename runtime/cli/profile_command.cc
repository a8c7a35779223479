#include "runtime/cli/profile_command.h"

#include <algorithm>
#include <map>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "partitioner/byte_size.h"
#include "partitioner/cost_graph.h"
#include "partitioner/read_file.h"
#include "pipeline/calibrate.h"
#include "runtime/cli/model_input.h"
#include "runtime/cli/saved_plan.h"

namespace autopart {
namespace {

constexpr size_t kMaxRows = 12;

// The costs of all operators of one name.
struct Row {
  int operators = 0;
  double forward_ms = 0, backward_ms = 0;
  double total() const { return forward_ms + backward_ms; }
};

void PrintText(const CostGraph& graph, const std::string& model, std::ostream& out) {
  std::map<std::string, Row> rows;
  Row total;
  int measured = 0;
  for (const CostNode& node : graph.nodes) {
    for (Row* row : {&rows[node.name], &total}) {
      ++row->operators;
      row->forward_ms += node.forward_ms;
      row->backward_ms += node.backward_input_ms + node.backward_weight_ms;
    }
    measured += node.measured;
  }
  int64_t elements = 0, bytes = 0;
  for (const CostParameter& parameter : graph.parameters) {
    elements += parameter.elements;
    bytes += parameter.bytes;
  }
  out << absl::StrFormat(
      "%s  %d operators, %d parameters, %s; %s on %s%s\n\n", model, total.operators, elements,
      FormatByteSize(bytes), measured > 0 ? "measured" : "estimated", graph.device,
      graph.scale != 1 ? absl::StrFormat(", times %.3f by a run", graph.scale) : "");
  std::vector<std::pair<std::string, Row>> sorted(rows.begin(), rows.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second.total() > b.second.total();
  });
  if (sorted.size() > kMaxRows) {
    Row others;
    for (size_t i = kMaxRows - 1; i < sorted.size(); ++i) {
      others.operators += sorted[i].second.operators;
      others.forward_ms += sorted[i].second.forward_ms;
      others.backward_ms += sorted[i].second.backward_ms;
    }
    const std::string name = absl::StrFormat("[%d others]", sorted.size() - (kMaxRows - 1));
    sorted.resize(kMaxRows - 1);
    sorted.emplace_back(name, others);
  }
  sorted.emplace_back("total", total);
  out << "operator                              count   forward ms  backward ms\n";
  for (const auto& [name, row] : sorted) {
    out << absl::StrFormat("%-36s %6d %12.3f %12.3f\n", name, row.operators, row.forward_ms,
                           row.backward_ms);
  }
}

absl::StatusOr<CostGraph> ReadOrMeasure(const ModelFlags& model, Streams streams) {
  const absl::StatusOr<std::string> text = ReadFile(model.path);
  if (!text.ok() || text->find("autopart.cost_graph") == std::string::npos) {
    return LoadCostGraph(model, streams);
  }
  absl::StatusOr<CostGraph> graph = CostGraphFromJson(*text);
  if (!graph.ok()) return In(model.path, graph.status());
  return graph;
}

absl::Status Calibrate(const std::string& plan_path, const std::string& actual, CostGraph& graph) {
  const absl::StatusOr<Plan> plan = ReadPlan(plan_path);
  if (!plan.ok()) return plan.status();
  const absl::StatusOr<RunRecord> record = ReadRunRecord(actual);
  if (!record.ok()) return record.status();
  const absl::StatusOr<double> factor = FindScale(graph, *plan, *record);
  if (!factor.ok()) return In(actual, factor.status());
  ScaleTimes(graph, *factor);
  return absl::OkStatus();
}

}  // namespace

int ProfileCommand(const Args& args, Streams streams) {
  ModelFlags model;
  model.at_once = ThreadsAtOnce(2);
  std::string output, plan, actual;
  CLI::App app(
      "Example: autopart profile model.pt -o costs.json\n\n"
      "What each operator of a model costs: measured on this CPU, or estimated for a device.\n"
      "Of a cost graph (JSON) that is known: it is only calibrated, with --actual.",
      "autopart profile");
  DeclareModel(app, model);
  DeclareDevice(app, model);
  app.add_option("--at-once", model.at_once,
                 "measure operators where they stand, on so many threads side by side, as many as "
                 "there will be ranks on this machine; 0: each kind alone, with no other work")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_option("--actual", actual,
                 "record of a run (autopart run -o): all times are multiplied by the one factor "
                 "with which the plan takes as long as that run did");
  app.add_option("--plan", plan, "the plan that was run");
  app.add_option("-o,--output", output, "write the cost graph here; without it, it goes to stdout");
  if (const std::optional<int> status = ParseFlags(app, args, streams)) return *status;

  if (actual.empty() != plan.empty()) {
    return Fail(absl::InvalidArgumentError("--actual and --plan go together: the record of a run, "
                                           "and the plan that was run"),
                streams);
  }
  absl::StatusOr<CostGraph> graph = ReadOrMeasure(model, streams);
  if (!graph.ok()) return Fail(graph.status(), streams);
  if (!actual.empty()) {
    if (absl::Status status = Calibrate(plan, actual, *graph); !status.ok()) {
      return Fail(status, streams);
    }
  }
  if (output.empty()) {
    streams.out << ToJson(*graph);
    return kExitGood;
  }
  if (absl::Status status = WriteFile(output, ToJson(*graph)); !status.ok()) {
    return Fail(status, streams);
  }
  PrintText(*graph, model.path, streams.out);
  streams.out << "\nsaved " << output << "\n";
  return kExitGood;
}

}  // namespace autopart
