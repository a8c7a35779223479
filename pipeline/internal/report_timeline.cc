// The timeline of the text report, of a simulation of the plan.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/report_facts.h"
#include "pipeline/internal/report_text.h"
#include "pipeline/simulate.h"

namespace autopart::internal {
namespace {

constexpr int kMaxTimelineRows = 16;

}  // namespace

std::string Timeline(const Plan& plan) {
  const absl::StatusOr<Simulation> simulation = SimulatePlan(plan);
  if (!simulation.ok() || simulation->makespan_ms <= 0) return "";
  constexpr int kColumns = kTextWidth - 6;
  constexpr int kShown = 8;
  double slot = 0;
  for (const PlanStage& stage : plan.stages) {
    for (const double ms : {stage.forward_ms, stage.backward_ms}) {
      if (ms > 0 && (slot == 0 || ms < slot)) slot = ms;
    }
  }
  if (slot == 0) return "";
  // The whole step, or until stage 0 has done its first micro-batches.
  double until = simulation->makespan_ms;
  const int own = (plan.micro_batches - 1) / static_cast<int>(plan.stages[0].ranks.size()) + 1;
  if (own > kShown) {
    const int last = (kShown - 1) * plan.stages[0].ranks.size();
    for (const Event& e : simulation->events) {
      const int stage = Trains(plan) ? 0 : static_cast<int>(plan.stages.size()) - 1;
      const bool ends_it = Trains(plan) ? e.action.kind == ActionKind::kBackward ||
                                              e.action.kind == ActionKind::kBackwardWeight
                                        : e.action.kind == ActionKind::kForward;
      if (ends_it && e.action.stage == stage && e.action.micro_batch == last) until = e.end_ms;
    }
  }
  slot = std::max(slot, until / kColumns);
  const int columns = std::min<int>(kColumns, std::lround(until / slot));

  const bool splits =
      std::any_of(simulation->events.begin(), simulation->events.end(),
                  [](const Event& e) { return e.action.kind == ActionKind::kBackwardWeight; });
  std::vector<std::string> legend = {"0-9 forward"};
  if (own > kShown) legend[0] = "start; 0-9 forward";
  if (splits) {
    legend.insert(legend.end(), {"a-j backward of inputs", "A-J of weights"});
  } else if (Trains(plan)) {
    legend.push_back("a-j backward");
  }
  if (plan.micro_batches > 10) legend.push_back("micro-batch modulo 10");
  legend.push_back(absl::StrCat(". idle; a column is ", Ms(slot), ")"));
  std::string out = Wrap("timeline (", legend, ", ", 10);
  const int p = plan.stages.size();
  for (int s = 0; s < std::min(p, kMaxTimelineRows); ++s) {
    std::string line(std::max(columns, 1), '.');
    for (const Event& e : simulation->events) {
      if (e.action.stage != s || e.rank != plan.stages[s].ranks[0]) continue;
      if (e.action.kind > ActionKind::kBackwardWeight) continue;
      const char first = e.action.kind == ActionKind::kForward          ? '0'
                         : e.action.kind == ActionKind::kBackwardWeight ? 'A'
                                                                        : 'a';
      const char letter = first + static_cast<char>(e.action.micro_batch % 10);
      // A column belongs to the action that runs in its middle.
      for (int c = std::max(0, static_cast<int>(std::ceil(e.start_ms / slot - 0.5)));
           c < columns && (c + 0.5) * slot < e.end_ms; ++c) {
        line[c] = letter;
      }
    }
    absl::StrAppend(&out, Right(absl::StrCat(s), 3), " |", line, "\n");
  }
  if (p > kMaxTimelineRows) absl::StrAppend(&out, "[", p - kMaxTimelineRows, " others]\n");
  return out;
}

}  // namespace autopart::internal
