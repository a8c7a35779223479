#include "pipeline/plan_diff.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/report_facts.h"
#include "pipeline/internal/report_summary.h"

namespace autopart {
namespace {

using internal::Columns;
using internal::Left;

constexpr double kRounding = 1e-9;
constexpr int kMostStages = 32;
constexpr int kValueWidth = 24;  // of a side in the list of choices
constexpr int kModuleWidth = 17;

std::string Joined(const internal::Fact& fact) {
  return absl::StrJoin(fact.pieces, fact.separator);
}

// Samples a second where they are known and asked for, else micro-batches.
double Throughput(const Plan& plan, bool samples) {
  if (plan.predicted_step_ms <= 0) return 0;
  return 1e3 * (samples ? plan.batch() : plan.micro_batches) / plan.predicted_step_ms;
}

int64_t PeakOf(const Plan& plan) {
  int64_t peak = 0;
  for (const PlanStage& stage : plan.stages) peak = std::max(peak, stage.peak_memory_bytes);
  return peak;
}

std::string ReplicasOf(const Plan& plan) {
  const size_t first = plan.stages[0].ranks.size();
  const bool equal =
      std::all_of(plan.stages.begin(), plan.stages.end(),
                  [&](const PlanStage& stage) { return stage.ranks.size() == first; });
  if (equal) return absl::StrCat(first);
  return absl::StrJoin(plan.stages, "+", [](std::string* out, const PlanStage& stage) {
    absl::StrAppend(out, stage.ranks.size());
  });
}

std::string RecomputeOf(const Plan& plan) {
  const auto stages =
      std::count_if(plan.stages.begin(), plan.stages.end(),
                    [](const PlanStage& stage) { return !stage.recomputed_nodes.empty(); });
  return stages == 0 ? "none" : absl::StrCat("in ", internal::Count(stages, "stage"));
}

struct Choice {
  const char* name;
  std::string (*text)(const Plan&);
};

constexpr Choice kChoices[] = {
    {"model", [](const Plan& p) { return p.model.hash; }},
    {"cluster", [](const Plan& p) { return Joined(internal::InputFacts(p, {})[1]); }},
    {"stages", [](const Plan& p) { return absl::StrCat(p.stages.size()); }},
    {"replicas", ReplicasOf},
    {"micro-batches", [](const Plan& p) { return absl::StrCat(p.micro_batches); }},
    {"samples in one", [](const Plan& p) { return absl::StrCat(p.micro_batch_samples); }},
    {"schedule", [](const Plan& p) { return p.schedule; }},
    {"dtype", [](const Plan& p) { return p.dtype; }},
    {"optimizer", [](const Plan& p) { return p.optimizer; }},
    {"optimizer state",
     [](const Plan& p) { return std::string(p.shard_optimizer ? "sharded" : "replicated"); }},
    {"recompute", RecomputeOf},
    {"reduce bucket",
     [](const Plan& p) {
       return p.reduce_bucket_bytes > 0 ? internal::HumanBytes(p.reduce_bucket_bytes) : "none";
     }},
};

void SetSide(const PlanStage& stage, size_t prefix, bool last, StageChange& change, bool after) {
  const auto set = [after](auto& field, auto value) {
    (after ? field.after : field.before) = std::move(value);
  };
  set(change.replicas, static_cast<int64_t>(stage.ranks.size()));
  set(change.operators, stage.operators);
  set(change.compute_ms, stage.forward_ms + stage.backward_ms + stage.recompute_ms);
  set(change.peak_memory_bytes, stage.peak_memory_bytes);
  const bool has_prefix = stage.last_module.size() >= prefix;
  set(change.cut_after,
      last ? std::string("end") : stage.last_module.substr(has_prefix ? prefix : 0));
}

std::string Signed(double growth) {
  const double percent = 100 * growth;
  if (std::abs(percent) < 0.05) return "";
  return absl::StrFormat(std::abs(percent) < 9.95 ? "%+.1f %%" : "%+.0f %%", percent);
}

std::string Arrow(const std::string& before, const std::string& after) {
  return before == after ? before : absl::StrCat(before, " → ", after);
}

std::string Numbers(const Change<double>& change) {
  return Arrow(internal::HumanNumber(change.before), internal::HumanNumber(change.after));
}

void AddLine(const std::string& name, const std::string& text, std::string& out) {
  std::string line = absl::StrCat(Left(name, 17), " ", text);
  line.erase(line.find_last_not_of(' ') + 1);
  absl::StrAppend(&out, line, "\n");
}

void AddNumber(const std::string& name, const Change<double>& change, const std::string& unit,
               std::string& out) {
  AddLine(name,
          absl::StrCat(Left(absl::StrCat(Numbers(change), " ", unit), 34), Signed(Growth(change))),
          out);
}

std::string Bytes(const Change<int64_t>& change) {
  return Arrow(internal::HumanBytes(change.before), internal::HumanBytes(change.after));
}

Change<double> AsDouble(const Change<int64_t>& change) {
  return {static_cast<double>(change.before), static_cast<double>(change.after)};
}

// At most `width` columns, of the start: a cluster says most there.
std::string Start(const std::string& text, int width) {
  if (Columns(text) <= width) return text;
  size_t end = 0;
  for (int columns = 0; columns < width - 1; ++columns) {
    do {
      ++end;
    } while ((text[end] & 0xC0) == 0x80);  // the rest of a UTF-8 character
  }
  return absl::StrCat(text.substr(0, end), "…");
}

std::string Choices(const PlanDiff& diff) {
  std::string out;
  for (const ChoiceChange& choice : diff.choices) {
    if (!Differs(choice.value)) continue;
    const auto& [before, after] = choice.value;
    if (Columns(before) <= kValueWidth && Columns(after) <= kValueWidth) {
      AddLine(choice.name, Arrow(before, after), out);
    } else {
      AddLine(choice.name, Start(before, 82), out);
      AddLine("", absl::StrCat("→ ", Start(after, 80)), out);
    }
  }
  return out;
}

std::string StageLine(const StageChange& change) {
  const auto& [was, is] = change.replicas;
  const std::string only = was == 0 ? "new" : is == 0 ? "gone" : "";
  std::string line = absl::StrCat(Left(absl::StrCat(" ", change.stage), 5), " ");
  if (!only.empty()) {
    const bool after = was == 0;
    absl::StrAppend(
        &line, only, ": ",
        internal::Count(after ? change.operators.after : change.operators.before, "operator"), ", ",
        internal::Ms(after ? change.compute_ms.after : change.compute_ms.before), ", ",
        internal::HumanBytes(after ? change.peak_memory_bytes.after
                                   : change.peak_memory_bytes.before));
    return line + "\n";
  }
  absl::StrAppend(&line, Left(Arrow(absl::StrCat(was), absl::StrCat(is)), 9), " ",
                  Left(Numbers(change.compute_ms), 15), " ",
                  Left(Bytes(change.peak_memory_bytes), 22), " ",
                  Arrow(internal::Shorten(change.cut_after.before, kModuleWidth),
                        internal::Shorten(change.cut_after.after, kModuleWidth)));
  return line + "\n";
}

std::string Stages(const PlanDiff& diff) {
  std::string lines;
  int shown = 0, others = 0, same = 0;
  for (const StageChange& change : diff.stages) {
    const std::string line = StageLine(change);
    const bool exists_twice = change.replicas.before > 0 && change.replicas.after > 0;
    if (exists_twice && line.find("→") == std::string::npos) {  // but for what is not shown
      ++same;
    } else if (shown == kMostStages) {
      ++others;
    } else {
      ++shown;
      lines += line;
    }
  }
  if (shown == 0) return "";
  if (others > 0) absl::StrAppend(&lines, "[", others, " others]\n");
  if (same > 0) absl::StrAppend(&lines, "[", same, " the same]\n");
  return absl::StrCat("\nstage ", Left("replicas", 9), " ", Left("compute ms", 15), " ",
                      Left("peak memory", 22), " cut after\n", lines);
}

std::string Parts(const PlanDiff& diff) {
  std::string out;
  const double least = 1e-4 * std::max(diff.step_ms.before, diff.step_ms.after);
  for (const PartChange& part : diff.parts) {
    if (std::abs(part.ms.after - part.ms.before) > least) AddNumber(part.name, part.ms, "ms", out);
  }
  return out.empty() ? "" : absl::StrCat("\nwhere the step goes\n", out);
}

template <typename T>
nlohmann::ordered_json JsonOf(const Change<T>& change) {
  return {{"before", change.before}, {"after", change.after}};
}

}  // namespace

bool Differs(const Change<double>& change) {
  const double most = std::max(std::abs(change.before), std::abs(change.after));
  return std::abs(change.after - change.before) > kRounding * most;
}
bool Differs(const Change<int64_t>& change) { return change.before != change.after; }
bool Differs(const Change<std::string>& change) { return change.before != change.after; }
bool Differs(const StageChange& change) {
  return Differs(change.replicas) || Differs(change.operators) || Differs(change.compute_ms) ||
         Differs(change.peak_memory_bytes) || Differs(change.cut_after);
}

double Growth(const Change<double>& change) {
  return change.before > 0 ? change.after / change.before - 1 : 0;
}

PlanDiff ComparePlans(const Plan& before, const Plan& after) {
  PlanDiff diff;
  diff.same_model = before.model.hash == after.model.hash;
  diff.step_ms = {before.predicted_step_ms, after.predicted_step_ms};
  diff.bound_ms = {before.bound_ms, after.bound_ms};
  const bool samples = before.micro_batch_samples > 0 && after.micro_batch_samples > 0;
  diff.throughput_unit = samples ? "samples/s" : "micro-batches/s";
  diff.throughput = {Throughput(before, samples), Throughput(after, samples)};
  diff.peak_memory_bytes = {PeakOf(before), PeakOf(after)};
  for (const Choice& choice : kChoices) {
    diff.choices.push_back({choice.name, {choice.text(before), choice.text(after)}});
  }
  const std::vector<internal::TimePart> was = internal::StepParts(before);
  const std::vector<internal::TimePart> is = internal::StepParts(after);
  for (size_t i = 0; i < was.size(); ++i) {
    diff.parts.push_back({was[i].name, {was[i].ms, is[i].ms}});
  }
  // What both cut off their module paths.
  const size_t prefix = std::min(internal::CommonPrefix(before), internal::CommonPrefix(after));
  const size_t most = std::max(before.stages.size(), after.stages.size());
  for (size_t s = 0; s < most; ++s) {
    StageChange& change = diff.stages.emplace_back();
    change.stage = s;
    for (const bool second : {false, true}) {  // both may be one object
      const std::vector<PlanStage>& stages = second ? after.stages : before.stages;
      if (s >= stages.size()) continue;
      SetSide(stages[s], prefix, s + 1 == stages.size(), change, second);
    }
  }
  return diff;
}

bool Same(const PlanDiff& diff) {
  const auto differs = [](const auto& change) { return Differs(change); };
  return !Differs(diff.step_ms) && !Differs(diff.throughput) && !Differs(diff.bound_ms) &&
         !Differs(diff.peak_memory_bytes) &&
         std::none_of(diff.choices.begin(), diff.choices.end(),
                      [&](const ChoiceChange& c) { return differs(c.value); }) &&
         std::none_of(diff.parts.begin(), diff.parts.end(),
                      [&](const PartChange& p) { return differs(p.ms); }) &&
         std::none_of(diff.stages.begin(), diff.stages.end(), differs);
}

std::string Verdict(const PlanDiff& diff) {
  const double growth = Growth(diff.step_ms);
  const std::string text = Signed(growth);
  std::string verdict = "step time the same";
  if (!text.empty()) {
    verdict = absl::StrCat("step time ", growth > 0 ? "up " : "down ", text.substr(1));
  }
  const std::string rate = Signed(Growth(diff.throughput));
  // The batch is not the same: time alone does not say which is better.
  const double work = (1 + Growth(diff.throughput)) * (1 + growth);
  if (std::abs(work - 1) > 1e-6 && diff.throughput.before > 0) {
    absl::StrAppend(
        &verdict, ", throughput ",
        rate.empty() ? "the same" : absl::StrCat(rate[0] == '+' ? "up " : "down ", rate.substr(1)));
  }
  return diff.same_model ? verdict : absl::StrCat(verdict, "; the plans are for different models");
}

std::string ToText(const PlanDiff& diff) {
  std::string out = absl::StrCat(Verdict(diff), "\n\n");
  AddNumber("step", diff.step_ms, "ms", out);
  AddNumber("throughput", diff.throughput, diff.throughput_unit, out);
  if (diff.bound_ms.before > 0 && diff.bound_ms.after > 0 && Differs(diff.bound_ms))
    AddNumber("bound", diff.bound_ms, "ms", out);
  AddLine("peak memory",
          absl::StrCat(Left(Bytes(diff.peak_memory_bytes), 34),
                       Signed(Growth(AsDouble(diff.peak_memory_bytes)))),
          out);
  return absl::StrCat(out, Choices(diff), Parts(diff), Stages(diff));
}

std::string ToJson(const PlanDiff& diff) {
  nlohmann::ordered_json json = {
      {"version", 1},
      {"verdict", Verdict(diff)},
      {"same_model", diff.same_model},
      {"step_ms", JsonOf(diff.step_ms)},
      {"step_growth", Growth(diff.step_ms)},
      {"throughput_unit", diff.throughput_unit},
      {"throughput", JsonOf(diff.throughput)},
      {"bound_ms", JsonOf(diff.bound_ms)},
      {"peak_memory_bytes", JsonOf(diff.peak_memory_bytes)},
  };
  for (const ChoiceChange& choice : diff.choices) {
    json["choices"][choice.name] = JsonOf(choice.value);
  }
  for (const PartChange& part : diff.parts) json["parts_ms"][part.name] = JsonOf(part.ms);
  for (const StageChange& change : diff.stages) {
    json["stages"].push_back({{"stage", change.stage},
                              {"replicas", JsonOf(change.replicas)},
                              {"operators", JsonOf(change.operators)},
                              {"compute_ms", JsonOf(change.compute_ms)},
                              {"peak_memory_bytes", JsonOf(change.peak_memory_bytes)},
                              {"cut_after", JsonOf(change.cut_after)}});
  }
  return json.dump(1) + "\n";
}

}  // namespace autopart
