// The stage table of the text report. Rows are rounded so that they add up to the total shown.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/report_facts.h"
#include "pipeline/internal/report_text.h"

namespace autopart::internal {
namespace {

constexpr int kMaxRows = 32;

struct ParameterUnit {
  const char* name;
  double size;
};

ParameterUnit UnitFor(int64_t parameters) {
  if (parameters >= 1000000) return {"M params", 1e6};
  if (parameters >= 10000) return {"K params", 1e3};
  return {"params", 1};
}

std::string RankList(const std::vector<int>& ranks, int width) {
  const std::string all = absl::StrJoin(ranks, ",");
  if (static_cast<int>(all.size()) <= width) return all;
  return Shorten(absl::StrCat(ranks.front(), "…", ranks.back()), width + 2);
}

std::string Bar(double share, int cells) {
  const int full = std::clamp<int>(std::lround(share * cells), 0, cells);
  std::string bar;
  for (int i = 0; i < cells; ++i) bar += i < full ? "█" : "░";
  return bar;
}

}  // namespace

std::string StageTable(const Plan& plan) {
  const bool trains = Trains(plan);
  const size_t prefix = CommonPrefix(plan);
  std::vector<double> forward, backward, parameters;
  const ParameterUnit unit = UnitFor(plan.model.parameters);
  const int slowest = SlowestStage(plan);
  for (const PlanStage& stage : plan.stages) {
    forward.push_back(stage.forward_ms);
    backward.push_back(stage.backward_ms);
    parameters.push_back(stage.parameters / unit.size);
  }
  const double total_forward = std::accumulate(forward.begin(), forward.end(), 0.0);
  const double total_backward = std::accumulate(backward.begin(), backward.end(), 0.0);
  const int decimals = DecimalsFor(total_forward + total_backward);
  const double total_parameters = plan.model.parameters / unit.size;
  const int parameter_decimals = unit.size > 1 ? DecimalsFor(total_parameters) : 0;
  const auto forward_text = RoundedToAddUp(forward, decimals);
  const auto backward_text = RoundedToAddUp(backward, decimals);
  const auto parameters_text = RoundedToAddUp(parameters, parameter_decimals);

  const auto row = [&](const std::string& stage, const std::string& ranks,
                       const std::string& modules, const std::string& ops,
                       const std::string& params, const std::string& fwd, const std::string& bwd,
                       const std::string& send, const std::string& memory,
                       const std::string& idle) {
    std::string line = absl::StrCat(Left(stage, 5), "  ", Left(ranks, 7), "  ", Left(modules, 21),
                                    Right(ops, 7), Right(params, 9), Right(fwd, 8), Right(bwd, 8));
    absl::StrAppend(&line, Right(send, 10), "  ", Left(memory, 14), Right(idle, 5));
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  };
  std::string out = row("stage", "ranks", "from … to", "ops", unit.name, "fwd ms", "bwd ms",
                        "send/mb", absl::StrCat("of ", HumanBytes(CapOf(plan))), "idle");
  const int p = plan.stages.size();
  const int head = p <= kMaxRows ? p : kMaxRows / 2;
  const int tail = p <= kMaxRows ? 0 : kMaxRows / 4;
  const double memory_unit = [&] {
    double u = 1;
    while (CapOf(plan) / u >= 1024) u *= 1024;
    return u;
  }();
  for (int s = 0; s < p; ++s) {
    if (s == head && tail > 0) {
      int64_t ops = 0;
      double fwd = 0, bwd = 0, params = 0;
      for (int o = head; o < p - tail; ++o) {
        ops += plan.stages[o].operators;
        fwd += std::stod(forward_text[o]);
        bwd += std::stod(backward_text[o]);
        params += std::stod(parameters_text[o]);
      }
      absl::StrAppend(&out, row("", "", absl::StrCat("[", p - tail - head, " others]"),
                                Grouped(ops), absl::StrFormat("%.*f", parameter_decimals, params),
                                absl::StrFormat("%.*f", decimals, fwd),
                                trains ? absl::StrFormat("%.*f", decimals, bwd) : "–", "", "", ""));
      s = p - tail;
    }
    const PlanStage& stage = plan.stages[s];
    const double share =
        CapOf(plan) > 0 ? static_cast<double>(stage.peak_memory_bytes) / CapOf(plan) : 0;
    absl::StrAppend(
        &out,
        row(absl::StrCat(" ", s, s == slowest && p > 1 ? "*" : ""), RankList(stage.ranks, 7),
            FromTo(stage, prefix, 21), Grouped(stage.operators), parameters_text[s],
            forward_text[s], trains ? backward_text[s] : "–",
            stage.send_bytes > 0 ? HumanBytes(stage.send_bytes) : "–",
            absl::StrCat(Bar(share, 8), " ", HumanNumber(stage.peak_memory_bytes / memory_unit)),
            Percent(stage.idle_fraction)));
  }
  absl::StrAppend(
      &out, row("total", "", p > 1 ? "(* slowest)" : "", Grouped(plan.model.operators),
                absl::StrFormat("%.*f", parameter_decimals, total_parameters),
                absl::StrFormat("%.*f", decimals, total_forward),
                trains ? absl::StrFormat("%.*f", decimals, total_backward) : "–", "", "", ""));
  int64_t copied_operators = 0;
  int64_t copied_parameters = 0;
  for (const PlanStage& stage : plan.stages) {
    copied_operators += stage.copied_operators;
    copied_parameters += stage.copied_parameters_count;
  }
  if (copied_operators + copied_parameters > 0) {
    absl::StrAppend(&out, "and copies: ", Count(copied_operators, "operator"), ", ",
                    Count(copied_parameters, "parameter"), " shared by stages\n");
  }
  return out;
}

}  // namespace autopart::internal
