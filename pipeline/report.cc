// The report of a plan: does it fit, how fast, how far from the best, why, can it be trusted.
//
// One function a section, in reading order; each takes its numbers from the plan only, so that a
// saved plan renders as a fresh one. At most 100 columns. Rows of a table are rounded so that they
// add up to the total shown.
#include "pipeline/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "pipeline/internal/format.h"
#include "pipeline/simulate.h"

namespace autopart {
namespace {

using internal::Count;
using internal::Grouped;
using internal::HumanBytes;
using internal::HumanNumber;

constexpr int kWidth = 100;
constexpr int kMaxRows = 32;
constexpr int kMaxTimelineRows = 16;
constexpr int kMaxAlternatives = 5;

// Columns that a text takes: UTF-8 continuation bytes take none.
int Columns(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::string Left(std::string text, int width) {
  if (const int n = Columns(text); n < width) text.append(width - n, ' ');
  return text;
}

std::string Right(std::string text, int width) {
  if (const int n = Columns(text); n < width) text.insert(0, width - n, ' ');
  return text;
}

// ASCII only: keeps the end, which says most in a module path.
std::string Shorten(const std::string& text, int width) {
  if (static_cast<int>(text.size()) <= width) return text;
  return absl::StrCat("…", text.substr(text.size() - (width - 1)));
}

std::string Ms(double ms) { return absl::StrCat(HumanNumber(ms), " ms"); }

std::string Percent(double share) { return absl::StrFormat("%.0f %%", 100 * share); }

const DeviceSpec& FirstDevice(const Plan& plan) { return plan.cluster.hosts[0].devices[0].device; }
const std::string& DeviceName(const Plan& plan) { return FirstDevice(plan).name; }
int64_t CapOf(const Plan& plan) { return plan.MemoryOf(FirstDevice(plan)); }

bool Trains(const Plan& plan) { return plan.schedule != "forward"; }

// Values rounded to `decimals` so that the texts add up to the rounded sum: those with the largest
// remainders are rounded up.
std::vector<std::string> RoundedToAddUp(const std::vector<double>& values, int decimals) {
  const double scale = std::pow(10, decimals);
  std::vector<int64_t> units;
  for (const double v : values) units.push_back(static_cast<int64_t>(std::floor(v * scale)));
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  int64_t missing =
      std::llround(sum * scale) - std::accumulate(units.begin(), units.end(), int64_t{0});
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return values[a] * scale - units[a] > values[b] * scale - units[b];
  });
  for (size_t i = 0; i < order.size() && missing > 0; ++i, --missing) ++units[order[i]];
  std::vector<std::string> texts;
  for (const int64_t u : units) texts.push_back(absl::StrFormat("%.*f", decimals, u / scale));
  return texts;
}

int DecimalsFor(double total) { return total >= 1000 ? 0 : total >= 100 ? 1 : total >= 1 ? 2 : 4; }

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

// What all module paths begin with, up to a dot.
size_t CommonPrefix(const Plan& plan) {
  std::string_view common;
  bool first = true;
  for (const PlanStage& stage : plan.stages) {
    for (const std::string_view module :
         {std::string_view(stage.first_module), std::string_view(stage.last_module)}) {
      if (module.empty()) continue;
      if (first) common = module;
      first = false;
      size_t n = 0;
      while (n < std::min(common.size(), module.size()) && common[n] == module[n]) ++n;
      common = common.substr(0, n);
    }
  }
  const size_t dot = common.rfind('.');
  return dot == std::string_view::npos ? 0 : dot + 1;
}

std::string FromTo(const PlanStage& stage, size_t prefix, int width) {
  if (stage.nodes.empty()) return "(empty)";
  if (stage.first_module.empty()) {
    return Shorten(absl::StrCat("operators ", stage.nodes.front(), "-", stage.nodes.back()), width);
  }
  const std::string from = stage.first_module.substr(prefix);
  const std::string to = stage.last_module.substr(prefix);
  if (from == to) return Shorten(from, width);
  const int room = width - 3;  // " … "
  const int from_width = std::max<int>(room / 2, room - static_cast<int>(to.size()));
  const std::string head = Shorten(from, from_width);
  return absl::StrCat(head, " … ", Shorten(to, room - Columns(head)));
}

std::string Bar(double share, int cells) {
  const int full = std::clamp<int>(std::lround(share * cells), 0, cells);
  std::string bar;
  for (int i = 0; i < cells; ++i) bar += i < full ? "█" : "░";
  return bar;
}

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

// Where the time beyond the bound goes; the parts add up to the gap.
std::string Gap(const Plan& plan, double gap) {
  const StepBreakdown& b = plan.breakdown;
  std::vector<std::pair<std::string, double>> parts = {{"bubble", b.bubble_ms},
                                                       {"imbalance", b.imbalance_ms},
                                                       {"exposed messages", b.messages_ms},
                                                       {"exposed reduction", b.reduce_ms},
                                                       {"recompute", b.recompute_ms},
                                                       {"optimizer", b.optimizer_ms}};
  double rest = gap;
  for (const auto& [name, ms] : parts) rest -= ms;
  // A bound by one operator or a chain of them exceeds the mean compute: it excuses waiting.
  for (auto& [name, ms] : parts) {
    if (rest >= 0) break;
    const double excused = std::min(ms, -rest);
    ms -= excused;
    rest += excused;
  }
  parts.emplace_back("copied operators", std::max(0.0, rest));
  std::vector<double> values;
  for (const auto& [name, ms] : parts) values.push_back(ms);
  const std::vector<std::string> texts = RoundedToAddUp(values, DecimalsFor(gap));
  std::vector<std::string> shown;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (values[i] > 1e-6 * plan.predicted_step_ms) {
      shown.push_back(absl::StrCat(parts[i].first, " ", texts[i]));
    }
  }
  if (shown.empty()) return "";
  std::string out;
  std::string line = std::string(15, ' ');
  for (size_t i = 0; i < shown.size(); ++i) {
    const std::string item = absl::StrCat(i > 0 ? " · " : " ", shown[i]);
    if (Columns(line) + Columns(item) > kWidth) {
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
  double one_device_ms = 0;
  for (const PlanStage& stage : plan.stages) {
    equal &= stage.ranks.size() == replicas;
    one_device_ms += plan.micro_batches * (stage.forward_ms + stage.backward_ms);
  }
  absl::StrAppend(&out, Left("PLAN", 14), Count(plan.stages.size(), "stage"), " × ",
                  equal ? Count(replicas, "replica") : std::string("unequal replicas"), " · ",
                  Count(plan.micro_batches, "micro-batch"), " · schedule ", plan.schedule, "\n");
  absl::StrAppend(&out, Left("STEP", 14), Ms(plan.predicted_step_ms), " predicted");
  if (plan.predicted_step_ms > 0) {
    const double speedup = one_device_ms / plan.predicted_step_ms;
    absl::StrAppend(&out, " · ", HumanNumber(1e3 * plan.micro_batches / plan.predicted_step_ms),
                    " micro-batches/s · ", HumanNumber(speedup), "× the compute of one device (",
                    Percent(speedup / plan.num_devices()), ")");
  }
  const std::string kind = plan.bound_kind == "work"          ? "total work / devices"
                           : plan.bound_kind == "indivisible" ? "heaviest operator"
                           : plan.bound_kind == "path"        ? "chain of operators"
                                                              : plan.bound_kind;
  const double gap = std::max(0.0, plan.predicted_step_ms - plan.bound_ms);
  absl::StrAppend(&out, "\n", Left("BOUND", 14), Ms(plan.bound_ms), ": no plan on ",
                  plan.num_devices() == 1 ? std::string("this device")
                                          : absl::StrCat("these ", plan.num_devices(), " devices"),
                  " is faster (", kind, ").\n", std::string(14, ' '), "Gap ", Ms(gap));
  if (plan.bound_ms > 0) absl::StrAppend(&out, " (", Percent(gap / plan.bound_ms), ")");
  absl::StrAppend(&out, gap > 0 ? ":" : "", "\n", Gap(plan, gap));
  return out;
}

std::string StageTable(const Plan& plan) {
  const bool trains = Trains(plan);
  const size_t prefix = CommonPrefix(plan);
  std::vector<double> forward, backward, parameters;
  const ParameterUnit unit = UnitFor(plan.model.parameters);
  int slowest = 0;
  for (const PlanStage& stage : plan.stages) {
    forward.push_back(stage.forward_ms);
    backward.push_back(stage.backward_ms);
    parameters.push_back(stage.parameters / unit.size);
    const auto load = [](const PlanStage& s) {
      return (s.forward_ms + s.backward_ms) / s.ranks.size();
    };
    if (load(stage) > load(plan.stages[slowest]) * (1 + 1e-9)) slowest = stage.index;
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

// A line a stage (its first replica), a column a time slot.
std::string Timeline(const Plan& plan) {
  const absl::StatusOr<Simulation> simulation = SimulatePlan(plan);
  if (!simulation.ok() || simulation->makespan_ms <= 0) return "";
  constexpr int kColumns = kWidth - 6;
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
  std::string out =
      absl::StrCat("timeline (", own > kShown ? "start; " : "", "0-9 forward",
                   Trains(plan) ? ", a-j backward" : "", splits ? " of inputs, A-J of weights" : "",
                   plan.micro_batches > 10 ? ", micro-batch modulo 10" : "",
                   ", . idle; a column is ", Ms(slot), ")\n");
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

std::string Why(const Plan& plan) {
  std::vector<std::string> lines;
  const size_t prefix = CommonPrefix(plan);
  const int p = plan.stages.size();
  constexpr int kMaxCuts = 8;
  for (int s = 0; s + 1 < std::min(p, kMaxCuts + 1); ++s) {
    // What passes the border: all edges from at most s to more than s.
    std::set<int> values;
    int64_t bytes = 0;
    int64_t gradient_bytes = 0;
    int skips = 0;
    for (const StageEdge& edge : plan.edges) {
      if (edge.from > s || edge.to <= s) continue;
      values.insert(edge.values.begin(), edge.values.end());
      bytes += edge.bytes;
      gradient_bytes += edge.gradient_bytes;
      skips += edge.to - edge.from > 1;
    }
    std::string after = plan.stages[s].last_module;
    after = after.size() >= prefix ? after.substr(prefix) : after;
    lines.push_back(
        absl::StrCat("cut ", s, "|", s + 1, after.empty() ? "" : " after ", Shorten(after, 20),
                     ": ", Count(values.size(), "value"), ", ", HumanBytes(bytes), " forward",
                     Trains(plan) ? absl::StrCat(", ", HumanBytes(gradient_bytes), " back") : "",
                     skips > 0 ? absl::StrCat(", ", Count(skips, "skip")) : ""));
  }
  if (p > kMaxCuts + 1) lines.push_back(absl::StrCat("[", p - 1 - kMaxCuts, " other cuts]"));

  const auto fullest = std::max_element(plan.stages.begin(), plan.stages.end(),
                                        [](const PlanStage& a, const PlanStage& b) {
                                          return a.peak_memory_bytes < b.peak_memory_bytes;
                                        });
  lines.push_back(absl::StrCat("memory: stage ", fullest->index, " is the fullest, ",
                               internal::BytesOf(fullest->peak_memory_bytes, CapOf(plan))));

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
      if (Columns(line) + Columns(item) > kWidth - 6) {
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

std::string Trust(const Plan& plan) {
  const std::string& costs = plan.costs_device;
  const bool foreign = !costs.empty() && costs != DeviceName(plan);
  if (plan.measured_fraction >= 1 - 1e-9) {
    return absl::StrCat("TRUST all operator times were measured",
                        foreign ? absl::StrCat(" on ", costs, ", not on ", DeviceName(plan)) : "",
                        "\n");
  }
  if (plan.measured_fraction <= 0) {
    return absl::StrCat(
        "TRUST operator times are roofline estimates for ",
        foreign ? absl::StrCat(costs, ", not for ", DeviceName(plan)) : DeviceName(plan),
        "; none was measured\n");
  }
  return absl::StrCat("TRUST ", Percent(plan.measured_fraction),
                      " of the compute time was measured, the rest is estimated",
                      foreign ? absl::StrCat(", on ", costs, ", not on ", DeviceName(plan)) : "",
                      "\n");
}

std::string RenderText(const Plan& plan, const ReportContext& context) {
  std::string out = absl::StrCat(Inputs(plan, context), "\n", Verdict(plan), "\n", StageTable(plan),
                                 "\n", Timeline(plan), "\n", Why(plan), Trust(plan));
  if (!context.plan_path.empty()) absl::StrAppend(&out, "\nsaved ", context.plan_path, "\n");
  return out;
}

std::string RenderJson(const Plan& plan, const ReportContext&) { return ToJson(plan); }

struct Format {
  std::string_view name;
  std::string (*render)(const Plan&, const ReportContext&);
};

constexpr std::array<Format, 2> kFormats = {{{"text", RenderText}, {"json", RenderJson}}};

}  // namespace

std::vector<std::string> ReportFormats() {
  std::vector<std::string> names;
  for (const Format& format : kFormats) names.emplace_back(format.name);
  return names;
}

absl::StatusOr<std::string> RenderPlan(const Plan& plan, std::string_view format,
                                       const ReportContext& context) {
  const auto row = std::find_if(kFormats.begin(), kFormats.end(),
                                [format](const Format& f) { return f.name == format; });
  if (row == kFormats.end()) {
    return absl::InvalidArgumentError(absl::StrCat("unknown format '", std::string(format),
                                                   "': known are ",
                                                   absl::StrJoin(ReportFormats(), ", ")));
  }
  if (plan.stages.empty()) return absl::InvalidArgumentError("the plan has no stage");
  return row->render(plan, context);
}

}  // namespace autopart
