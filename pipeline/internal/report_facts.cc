#include "pipeline/internal/report_facts.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "pipeline/internal/format.h"
#include "pipeline/simulate.h"

namespace autopart::internal {
namespace {

const DeviceSpec& FirstDevice(const Plan& plan) { return plan.cluster.hosts[0].devices[0].device; }
}  // namespace

const std::string& DeviceName(const Plan& plan) { return FirstDevice(plan).name; }

std::vector<int64_t> StageCaps(const Plan& plan) {
  const std::vector<DeviceSpec> types = DeviceTypes(plan.cluster);
  const std::vector<DevicePlace> places = PlacesOf(plan.cluster);
  std::vector<int64_t> caps;
  for (const PlanStage& stage : plan.stages) {
    int64_t cap = std::numeric_limits<int64_t>::max();
    for (const int rank : stage.ranks) {
      cap = std::min(cap, plan.MemoryOf(types[places[rank].device_type]));
    }
    caps.push_back(cap);
  }
  return caps;
}

double DevicesWorth(const Plan& plan) {
  const std::vector<double> slowness = RankSlowness(plan.cluster, plan.dtype);
  if (slowness.empty()) return plan.num_devices();
  double worth = 0;
  for (const double factor : slowness) worth += 1 / factor;
  return worth;
}

bool Trains(const Plan& plan) { return plan.schedule != "forward"; }

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
  const int from_width = std::max<int>(room / 2, room - Columns(to));
  const std::string head = Shorten(from, from_width);
  return absl::StrCat(head, " … ", Shorten(to, room - Columns(head)));
}

int SlowestStage(const Plan& plan) {
  const std::vector<double> slowness = RankSlowness(plan.cluster, plan.dtype);
  const auto load = [&](const PlanStage& stage) {
    double factor = 1;
    if (!slowness.empty()) {
      factor = 0;
      for (const int rank : stage.ranks) factor = std::max(factor, slowness[rank]);
    }
    return factor * (stage.forward_ms + stage.backward_ms + stage.recompute_ms) /
           stage.ranks.size();
  };
  int slowest = 0;
  for (const PlanStage& stage : plan.stages) {
    if (load(stage) > load(plan.stages[slowest]) * (1 + 1e-9)) slowest = stage.index;
  }
  return slowest;
}

int FullestStage(const Plan& plan) {
  const std::vector<int64_t> caps = StageCaps(plan);
  const auto share = [&](const PlanStage& stage) {
    return static_cast<double>(stage.peak_memory_bytes) / std::max<int64_t>(1, caps[stage.index]);
  };
  const auto fullest =
      std::max_element(plan.stages.begin(), plan.stages.end(),
                       [&](const PlanStage& a, const PlanStage& b) { return share(a) < share(b); });
  return fullest - plan.stages.begin();
}

double OneDeviceMs(const Plan& plan) {
  double ms = 0;
  for (const PlanStage& stage : plan.stages) {
    ms += plan.micro_batches * (stage.forward_ms + stage.backward_ms);
  }
  return ms;
}

std::string BoundReason(const Plan& plan) {
  return plan.bound_kind == "work"          ? "total work / devices"
         : plan.bound_kind == "indivisible" ? "heaviest operator"
         : plan.bound_kind == "path"        ? "chain of operators"
                                            : plan.bound_kind;
}

std::vector<TimePart> StepParts(const Plan& plan) {
  const StepBreakdown& b = plan.breakdown;
  return {{"compute", b.compute_ms},          {"bubble", b.bubble_ms},
          {"imbalance", b.imbalance_ms},      {"exposed messages", b.messages_ms},
          {"exposed reduction", b.reduce_ms}, {"recompute", b.recompute_ms},
          {"optimizer", b.optimizer_ms}};
}

std::vector<TimePart> GapParts(const Plan& plan) {
  const double gap = std::max(0.0, plan.predicted_step_ms - plan.bound_ms);
  std::vector<TimePart> parts = StepParts(plan);
  parts.erase(parts.begin());  // compute: the bound has it, but for what is copied
  double rest = gap;
  for (const auto& [name, ms] : parts) rest -= ms;
  // A bound by one operator or a chain of them exceeds the mean compute: it excuses waiting.
  for (auto& [name, ms] : parts) {
    if (rest >= 0) break;
    const double excused = std::min(ms, -rest);
    ms -= excused;
    rest += excused;
  }
  parts.push_back({"copied operators", std::max(0.0, rest)});
  return parts;
}

std::vector<Cut> CutsOf(const Plan& plan) {
  const size_t prefix = CommonPrefix(plan);
  std::vector<Cut> cuts;
  for (int s = 0; s + 1 < static_cast<int>(plan.stages.size()); ++s) {
    Cut& cut = cuts.emplace_back();
    std::set<int> values;
    for (const StageEdge& edge : plan.edges) {
      if (edge.from > s || edge.to <= s) continue;
      values.insert(edge.values.begin(), edge.values.end());
      cut.bytes += edge.bytes;
      cut.gradient_bytes += edge.gradient_bytes;
      cut.skips += edge.to - edge.from > 1;
    }
    cut.values = values.size();
    const std::string& after = plan.stages[s].last_module;
    cut.after = after.size() >= prefix ? after.substr(prefix) : after;
  }
  return cuts;
}

namespace {

std::string SourceOfTimes(const Plan& plan) {
  const std::string& costs = plan.costs_device;
  const std::string& own = DeviceName(plan);
  const bool foreign = !costs.empty() && costs != own;
  if (plan.measured_fraction >= 1 - 1e-9) {
    return absl::StrCat("all operator times were measured",
                        foreign ? absl::StrCat(" on ", costs, ", not on ", own) : "");
  }
  if (plan.measured_fraction <= 0) {
    return absl::StrCat("operator times are roofline estimates for ",
                        foreign ? absl::StrCat(costs, ", not for ", own) : own,
                        "; none was measured");
  }
  return absl::StrCat(Percent(plan.measured_fraction),
                      " of the compute time was measured, the rest is estimated",
                      foreign ? absl::StrCat(", on ", costs, ", not on ", own) : "");
}

}  // namespace

std::string TrustOf(const Plan& plan) {
  if (plan.costs_scale == 1) return SourceOfTimes(plan);
  return absl::StrFormat("%s; a run gave them the factor %.3f", SourceOfTimes(plan),
                         plan.costs_scale);
}

}  // namespace autopart::internal
