#include "pipeline/internal/report_stage_rows.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/report_facts.h"

namespace autopart::internal {
namespace {

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

// A column of numbers: texts that add up to the text of their sum.
class Column {
 public:
  Column(const std::vector<double>& values, int decimals)
      : decimals_(decimals), texts_(RoundedToAddUp(values, decimals)) {}

  const std::string& operator[](size_t i) const { return texts_[i]; }
  std::string Sum(size_t first, size_t end) const {
    double sum = 0;
    for (size_t i = first; i < end; ++i) sum += std::stod(texts_[i]);
    return absl::StrFormat("%.*f", decimals_, sum);
  }
  std::string Sum() const { return Sum(0, texts_.size()); }

 private:
  int decimals_;
  std::vector<std::string> texts_;
};

std::vector<double> OfStages(const Plan& plan, const std::function<double(const PlanStage&)>& f) {
  std::vector<double> values;
  for (const PlanStage& stage : plan.stages) values.push_back(f(stage));
  return values;
}

std::string Copies(const Plan& plan) {
  int64_t operators = 0, parameters = 0;
  for (const PlanStage& stage : plan.stages) {
    operators += stage.copied_operators;
    parameters += stage.copied_parameters_count;
  }
  if (operators + parameters == 0) return "";
  return absl::StrCat(Count(operators, "operator"), ", ", Count(parameters, "parameter"),
                      " shared by stages");
}

}  // namespace

StageRows StageRowsOf(const Plan& plan, const RowWidths& widths) {
  const int p = plan.stages.size();
  const ParameterUnit unit = UnitFor(plan.model.parameters);
  const std::vector<double> forward_ms = OfStages(plan, [](auto& s) { return s.forward_ms; });
  const std::vector<double> backward_ms = OfStages(plan, [](auto& s) { return s.backward_ms; });
  const int decimals = DecimalsFor(std::accumulate(forward_ms.begin(), forward_ms.end(), 0.0) +
                                   std::accumulate(backward_ms.begin(), backward_ms.end(), 0.0));
  const Column forward(forward_ms, decimals);
  const Column backward(backward_ms, decimals);
  const Column parameters(OfStages(plan, [&](auto& s) { return s.parameters / unit.size; }),
                          unit.size > 1 ? DecimalsFor(plan.model.parameters / unit.size) : 0);
  const std::vector<int64_t> caps = StageCaps(plan);
  const auto [least, most] = std::minmax_element(caps.begin(), caps.end());
  double memory_unit = 1;
  while (*most / memory_unit >= 1024) memory_unit *= 1024;
  const std::string none = "–";
  const auto backward_text = [&](const std::string& text) { return Trains(plan) ? text : none; };
  const size_t prefix = CommonPrefix(plan);
  const int slowest = SlowestStage(plan);

  StageRows result;
  result.parameter_unit = unit.name;
  result.memory_title = *least == *most ? absl::StrCat("of ", HumanBytes(*most))
                                        : absl::StrCat("of ≤ ", HumanBytes(*most));
  const int head = p <= widths.most_rows ? p : widths.most_rows / 2;
  const int tail = p <= widths.most_rows ? 0 : widths.most_rows / 4;
  for (int s = 0; s < p; ++s) {
    StageRow row;
    if (s == head) {
      int64_t operators = 0;
      for (int o = head; o < p - tail; ++o) operators += plan.stages[o].operators;
      row.modules = absl::StrCat("[", p - tail - head, " others]");
      row.operators = Grouped(operators);
      row.parameters = parameters.Sum(head, p - tail);
      row.forward = forward.Sum(head, p - tail);
      row.backward = backward_text(backward.Sum(head, p - tail));
      result.rows.push_back(row);
      s = p - tail - 1;
      continue;
    }
    const PlanStage& stage = plan.stages[s];
    row.stage = s;
    row.slowest = s == slowest && p > 1;
    row.ranks = RankList(stage.ranks, widths.ranks);
    row.modules = FromTo(stage, prefix, widths.modules);
    row.operators = Grouped(stage.operators);
    row.parameters = parameters[s];
    row.forward = forward[s];
    row.backward = backward_text(backward[s]);
    row.send = stage.send_bytes > 0 ? HumanBytes(stage.send_bytes) : none;
    const double memory = stage.peak_memory_bytes / memory_unit;
    row.memory = memory > 0 && memory < 0.001 ? "0.00" : HumanNumber(memory);
    row.memory_share = caps[s] > 0 ? static_cast<double>(stage.peak_memory_bytes) / caps[s] : 0;
    row.idle = Percent(stage.idle_fraction);
    result.rows.push_back(row);
  }
  result.total.operators = Grouped(plan.model.operators);
  result.total.parameters = parameters.Sum();
  result.total.forward = forward.Sum();
  result.total.backward = backward_text(backward.Sum());
  result.copies = Copies(plan);
  return result;
}

}  // namespace autopart::internal
