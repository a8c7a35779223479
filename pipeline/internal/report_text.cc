// The text report: does it fit, how fast, how far from the best, why, can it be trusted.
//
// One function a section, in reading order; each takes its numbers from the plan only, so that a
// saved plan renders as a fresh one. At most 100 columns.
#include "pipeline/internal/report_text.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/renderers.h"
#include "pipeline/internal/report_facts.h"

namespace autopart::internal {
namespace {

constexpr int kMaxAlternatives = 5;

std::string Inputs(const Plan& plan, const ReportContext& context) {
  std::string out;
  const std::string name = plan.model.name.empty() ? "model" : plan.model.name;
  absl::StrAppend(
      &out, Left(name, 13), " ", Grouped(plan.model.parameters), " parameters (",
      HumanBytes(plan.model.parameter_bytes), "), ", Count(plan.model.operators, "operator"),
      Trains(plan) && !plan.model.has_loss ? ", no loss: gradients assumed for every float output"
                                           : "",
      "\n");
  absl::StrAppend(&out, Left("cluster", 14), plan.num_devices(), " × ", DeviceName(plan), " ",
                  HumanBytes(CapOf(plan)));
  if (plan.cluster.hosts[0].link.bytes_per_ms > 0) {
    absl::StrAppend(&out, ", links ", HumanNumber(plan.cluster.hosts[0].link.bytes_per_ms / 1e6),
                    " GB/s, ", HumanNumber(plan.cluster.hosts[0].link.latency_ms * 1e3), " us");
  }
  absl::StrAppend(&out, "\n", Left("batch", 14), Count(plan.micro_batches, "micro-batch"),
                  Trains(plan) ? absl::StrCat(", ", plan.optimizer) : ", inference", ", seed ",
                  plan.seed);
  if (context.planning_s > 0) {
    absl::StrAppend(&out, ", planned in ", HumanNumber(context.planning_s), " s");
  }
  return out + "\n";
}

// Indented lines "bubble 5.00 · imbalance 3.00", rounded so that they add up to the total.
std::string Parts(const std::vector<TimePart>& parts, double total) {
  std::vector<double> values;
  for (const TimePart& part : parts) values.push_back(part.ms);
  const std::vector<std::string> texts = RoundedToAddUp(values, DecimalsFor(total));
  std::vector<std::string> shown;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (values[i] > 5e-4 * total) {
      shown.push_back(absl::StrCat(parts[i].name, " ", texts[i]));
    }
  }
  if (shown.empty()) return "";
  std::string out;
  std::string line = std::string(15, ' ');
  for (size_t i = 0; i < shown.size(); ++i) {
    const std::string item = absl::StrCat(i > 0 ? " · " : " ", shown[i]);
    if (Columns(line) + Columns(item) > kTextWidth) {
      absl::StrAppend(&out, line, "\n");
      line = absl::StrCat(std::string(16, ' '), shown[i]);
    } else {
      line += item;
    }
  }
  return absl::StrCat(out, line, "\n");
}

std::string Verdict(const Plan& plan) {
  std::string out;
  const size_t replicas = plan.stages[0].ranks.size();
  bool equal = true;
  for (const PlanStage& stage : plan.stages) {
    equal &= stage.ranks.size() == replicas;
  }
  absl::StrAppend(&out, Left("PLAN", 14), Count(plan.stages.size(), "stage"), " × ",
                  equal ? Count(replicas, "replica") : std::string("unequal replicas"), " · ",
                  Count(plan.micro_batches, "micro-batch"), " · schedule ", plan.schedule, "\n");
  absl::StrAppend(&out, Left("STEP", 14), Ms(plan.predicted_step_ms), " predicted");
  if (plan.predicted_step_ms > 0) {
    const double speedup = OneDeviceMs(plan) / plan.predicted_step_ms;
    absl::StrAppend(&out, " · ", HumanNumber(1e3 * plan.micro_batches / plan.predicted_step_ms),
                    " micro-batches/s · ", HumanNumber(speedup), "× the compute of one device (",
                    Percent(speedup / plan.num_devices()), ")");
  }
  if (plan.bound_kind.empty()) {
    return absl::StrCat(out, "\n", Left("BOUND", 14),
                        "none: it was of the plan before the change.  ", "Step:\n",
                        Parts(StepParts(plan), plan.predicted_step_ms));
  }
  const double gap = std::max(0.0, plan.predicted_step_ms - plan.bound_ms);
  absl::StrAppend(&out, "\n", Left("BOUND", 14), Ms(plan.bound_ms), ": no plan on ",
                  plan.num_devices() == 1 ? std::string("this device")
                                          : absl::StrCat("these ", plan.num_devices(), " devices"),
                  " is faster (", BoundReason(plan), ").\n", std::string(14, ' '), "Gap ", Ms(gap));
  if (plan.bound_ms > 0) absl::StrAppend(&out, " (", Percent(gap / plan.bound_ms), ")");
  absl::StrAppend(&out, gap > 0 ? ":" : "", "\n",
                  gap > 1e-9 * plan.predicted_step_ms ? Parts(GapParts(plan), gap) : "");
  return out;
}

std::string Why(const Plan& plan) {
  std::vector<std::string> lines;
  const std::vector<Cut> cuts = CutsOf(plan);
  const int p = plan.stages.size();
  constexpr int kMaxCuts = 8;
  for (int s = 0; s + 1 < std::min(p, kMaxCuts + 1); ++s) {
    const Cut& cut = cuts[s];
    lines.push_back(absl::StrCat(
        "cut ", s, "|", s + 1, cut.after.empty() ? "" : " after ", Shorten(cut.after, 20), ": ",
        Count(cut.values, "value"), ", ", HumanBytes(cut.bytes), " forward",
        Trains(plan) ? absl::StrCat(", ", HumanBytes(cut.gradient_bytes), " back") : "",
        cut.skips > 0 ? absl::StrCat(", ", Count(cut.skips, "skip")) : ""));
  }
  if (p > kMaxCuts + 1) lines.push_back(absl::StrCat("[", p - 1 - kMaxCuts, " other cuts]"));

  const PlanStage& fullest = plan.stages[FullestStage(plan)];
  lines.push_back(absl::StrCat("memory: stage ", fullest.index, " is the fullest, ",
                               BytesOf(fullest.peak_memory_bytes, CapOf(plan))));

  // The best of each other shape and schedule, for as many micro-batches.
  const int replicas = plan.stages[0].ranks.size();
  std::vector<std::string> lost;
  std::set<std::tuple<int, int, std::string>> seen = {{p, replicas, plan.schedule}};
  int others = 0;
  for (const PlanAlternative& a : plan.alternatives) {
    if (a.micro_batches != plan.micro_batches) continue;
    if (!seen.emplace(a.stages, a.replicas, a.schedule).second) continue;
    if (static_cast<int>(lost.size()) == kMaxAlternatives) {
      ++others;
      continue;
    }
    const bool misfit = a.reason.find("does not fit") == 0;
    lost.push_back(absl::StrCat(a.stages, "×", a.replicas, " ", a.schedule, " ",
                                misfit ? a.reason : Ms(a.step_ms)));
  }
  if (others > 0) lost.push_back(absl::StrCat("[", others, " others]"));
  if (!lost.empty()) {
    // Wrapped between alternatives.
    std::string line = "not chosen:";
    for (size_t i = 0; i < lost.size(); ++i) {
      const std::string item = absl::StrCat(i > 0 ? " · " : " ", lost[i]);
      if (Columns(line) + Columns(item) > kTextWidth - 6) {
        lines.push_back(line);
        line = absl::StrCat("  ", lost[i]);
      } else {
        line += item;
      }
    }
    lines.push_back(line);
  }
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::StrAppend(&out, i == 0 ? "WHY   " : "      ", lines[i], "\n");
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> RenderText(const Plan& plan, const ReportContext& context) {
  std::string out =
      absl::StrCat(Inputs(plan, context), "\n", Verdict(plan), "\n", StageTable(plan), "\n",
                   Timeline(plan), "\n", Why(plan), "TRUST ", TrustOf(plan), "\n");
  if (!context.plan_path.empty()) absl::StrAppend(&out, "\nsaved ", context.plan_path, "\n");
  return out;
}

absl::StatusOr<std::string> RenderJson(const Plan& plan, const ReportContext&) {
  return ToJson(plan);
}

}  // namespace autopart::internal
