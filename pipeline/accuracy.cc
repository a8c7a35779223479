#include "pipeline/accuracy.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "pipeline/breakdown.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/json_visit.h"

namespace autopart {
namespace {

using internal::Json;

constexpr double kMsPerS = 1e3;

// Mean length of a stage's actions of one kind.
double MeanMs(const RunRecord& record, ActionKind kind, int stage) {
  double total = 0;
  int count = 0;
  for (const RunRank& rank : record.ranks) {
    for (const RunAction& action : rank.actions) {
      if (action.action.kind != kind || action.action.stage != stage) continue;
      total += action.p10_s;
      ++count;
    }
  }
  return count > 0 ? kMsPerS * total / count : 0;
}

// What a rank spends in the typical step on actions of one kind.
double SpentMs(const RunRank& rank, ActionKind kind) {
  double total = 0;
  for (const RunAction& action : rank.actions) {
    if (action.action.kind == kind) total += action.end_s - action.start_s;
  }
  return kMsPerS * total;
}

// The rank that comes last to a reduction waits for nobody: what it takes is the reduction's.
double ReduceMs(const Plan& plan, const RunRecord& record) {
  double total = 0;
  for (const PlanStage& stage : plan.stages) {
    double least = 0;
    for (const int rank : stage.ranks) {
      const double spent = SpentMs(record.ranks[rank], ActionKind::kReduce);
      least = rank == stage.ranks[0] ? spent : std::min(least, spent);
    }
    total += least * stage.ranks.size();
  }
  return total / record.ranks.size();
}

absl::StatusOr<StepBreakdown> MeasuredBreakdown(const Plan& plan, const RunRecord& record,
                                                const std::vector<StageAccuracy>& stages) {
  StepBreakdown parts;
  const double step_ms = kMsPerS * record.step_s[record.typical_step];
  for (const RunRank& rank : record.ranks) {
    const double share = 1.0 / record.ranks.size();
    parts.compute_ms +=
        share * (SpentMs(rank, ActionKind::kForward) + SpentMs(rank, ActionKind::kBackward));
    parts.optimizer_ms += share * SpentMs(rank, ActionKind::kStep);
  }
  parts.reduce_ms = ReduceMs(plan, record);

  Plan as_measured = plan;
  for (PlanStage& stage : as_measured.stages) {
    const StageAccuracy& measured = stages[stage.index];
    stage.forward_ms = measured.forward_ms.measured;
    stage.backward_ms = measured.backward_ms.measured;
    stage.backward_weight_ms = stage.recompute_ms = 0;
    stage.optimizer_ms = measured.optimizer_ms.measured;
  }
  const absl::StatusOr<StepBreakdown> simulated = BreakDown(as_measured);
  if (!simulated.ok()) return simulated.status();
  double left = std::max(0.0, step_ms - parts.total());
  const auto take = [&](double wanted) {
    const double taken = std::min(wanted, left);
    left -= taken;
    return taken;
  };
  parts.bubble_ms = take(simulated->bubble_ms);
  parts.imbalance_ms = take(simulated->imbalance_ms);
  parts.messages_ms = left;
  return parts;
}

struct Row {
  const char* name;
  double StepBreakdown::*part;
};
constexpr Row kParts[] = {
    {"compute", &StepBreakdown::compute_ms},    {"recompute", &StepBreakdown::recompute_ms},
    {"bubble", &StepBreakdown::bubble_ms},      {"imbalance", &StepBreakdown::imbalance_ms},
    {"messages", &StepBreakdown::messages_ms},  {"reduce", &StepBreakdown::reduce_ms},
    {"optimizer", &StepBreakdown::optimizer_ms}};

std::string Error(const Compared& compared) {
  if (compared.measured <= 0) return "";
  return absl::StrFormat("%+.1f %%", 100 * compared.error());
}

std::string Line(const std::string& name, const std::string& predicted, const std::string& measured,
                 const std::string& error) {
  return absl::StrCat(internal::Left(name, 26), internal::Right(predicted, 13),
                      internal::Right(measured, 13), internal::Right(error, 11), "\n");
}

std::string TimeLine(const std::string& name, const Compared& ms) {
  return Line(name, internal::Ms(ms.predicted), internal::Ms(ms.measured), Error(ms));
}

Json ToJsonValue(const Compared& compared) {
  Json json = Json::object();
  json["predicted"] = compared.predicted;
  json["measured"] = compared.measured;
  json["error"] = compared.error();
  return json;
}

}  // namespace

absl::StatusOr<Accuracy> CompareRun(const Plan& plan, const RunRecord& record) {
  if (absl::Status status = Validate(record, plan); !status.ok()) return status;
  Accuracy accuracy;
  accuracy.step_ms = {plan.predicted_step_ms, kMsPerS * record.StepQuantile(0.1)};
  accuracy.measured_median_ms = kMsPerS * record.StepQuantile(0.5);
  accuracy.steps = static_cast<int>(record.step_s.size());
  accuracy.measured_fraction = plan.measured_fraction;
  for (const PlanStage& stage : plan.stages) {
    StageAccuracy of;
    of.stage = stage.index;
    of.forward_ms = {stage.forward_ms, MeanMs(record, ActionKind::kForward, stage.index)};
    of.backward_ms = {stage.backward_ms + stage.recompute_ms,
                      MeanMs(record, ActionKind::kBackward, stage.index)};
    of.optimizer_ms = {stage.optimizer_ms, MeanMs(record, ActionKind::kStep, stage.index)};
    of.peak_memory_bytes.predicted = static_cast<double>(stage.peak_memory_bytes);
    for (const int rank : stage.ranks) {
      of.peak_memory_bytes.measured = std::max(of.peak_memory_bytes.measured,
                                               static_cast<double>(record.ranks[rank].peak_bytes));
    }
    accuracy.stages.push_back(of);
  }
  accuracy.predicted = plan.breakdown;
  const absl::StatusOr<StepBreakdown> measured = MeasuredBreakdown(plan, record, accuracy.stages);
  if (!measured.ok()) return measured.status();
  accuracy.measured = *measured;
  return accuracy;
}

std::string AccuracyText(const Accuracy& accuracy) {
  std::string text = Line("", "predicted", "measured", "error");
  text += TimeLine("step", accuracy.step_ms);
  for (const Row& row : kParts) {
    const Compared part = {accuracy.predicted.*row.part, accuracy.measured.*row.part};
    if (part.predicted <= 0 && part.measured <= 0) continue;
    text += Line(absl::StrCat("  ", row.name), internal::Ms(part.predicted),
                 internal::Ms(part.measured), "");
  }
  for (const StageAccuracy& stage : accuracy.stages) {
    const std::string name = absl::StrCat("stage ", stage.stage);
    text += TimeLine(name + "  forward", stage.forward_ms);
    if (stage.backward_ms.measured > 0) text += TimeLine(name + "  backward", stage.backward_ms);
    if (stage.optimizer_ms.measured > 0) {
      text += TimeLine(name + "  optimizer", stage.optimizer_ms);
    }
    text += Line(name + "  peak memory",
                 internal::HumanBytes(std::llround(stage.peak_memory_bytes.predicted)),
                 internal::HumanBytes(std::llround(stage.peak_memory_bytes.measured)),
                 Error(stage.peak_memory_bytes));
  }
  absl::StrAppend(&text, "measured: 10th percentile of ", internal::Count(accuracy.steps, "step"),
                  " (median ", internal::Ms(accuracy.measured_median_ms), "); ",
                  internal::Percent(accuracy.measured_fraction),
                  " of the predicted compute had been measured\n");
  return text;
}

std::string AccuracyJson(const Accuracy& accuracy) {
  Json json = Json::object();
  json["step_ms"] = ToJsonValue(accuracy.step_ms);
  json["measured_median_ms"] = accuracy.measured_median_ms;
  json["steps"] = accuracy.steps;
  json["measured_fraction"] = accuracy.measured_fraction;
  Json parts = Json::object();
  for (const Row& row : kParts) {
    parts[absl::StrCat(row.name, "_ms")] =
        ToJsonValue({accuracy.predicted.*row.part, accuracy.measured.*row.part});
  }
  json["breakdown"] = std::move(parts);
  Json stages = Json::array();
  for (const StageAccuracy& stage : accuracy.stages) {
    Json of = Json::object();
    of["stage"] = stage.stage;
    of["forward_ms"] = ToJsonValue(stage.forward_ms);
    of["backward_ms"] = ToJsonValue(stage.backward_ms);
    of["optimizer_ms"] = ToJsonValue(stage.optimizer_ms);
    of["peak_memory_bytes"] = ToJsonValue(stage.peak_memory_bytes);
    stages.push_back(std::move(of));
  }
  json["stages"] = std::move(stages);
  return internal::Layout(json);
}

}  // namespace autopart
