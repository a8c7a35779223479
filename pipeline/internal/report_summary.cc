#include "pipeline/internal/report_summary.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "pipeline/internal/format.h"
#include "pipeline/what_if.h"

namespace autopart::internal {
namespace {

constexpr int kMostHostGroups = 4;
constexpr int kMostCuts = 8;
constexpr int kMostAlternatives = 5;
constexpr int64_t kMostTriedActions = 100000;  // some tenths of a second

std::string LinkText(const char* name, const LinkSpec& link) {
  return absl::StrCat(name, " ", HumanNumber(link.bytes_per_ms / 1e6), " GB/s",
                      link.shared ? " shared" : "", ", ", HumanNumber(link.latency_ms * 1e3),
                      " us");
}

// "2 × h100 80.0 GiB", or those of one of the hosts.
std::string DevicesText(const Plan& plan, const HostGroup& hosts) {
  std::vector<std::string> devices;
  for (const DeviceGroup& group : hosts.devices) {
    devices.push_back(absl::StrCat(group.count, " × ", group.device.name, " ",
                                   HumanBytes(plan.MemoryOf(group.device))));
  }
  return absl::StrJoin(devices, " + ");
}

bool SameLinks(const Cluster& cluster) {
  return std::all_of(cluster.hosts.begin(), cluster.hosts.end(), [&](const HostGroup& hosts) {
    return hosts.link == cluster.hosts[0].link && hosts.network == cluster.hosts[0].network;
  });
}

void AddLinks(const Plan& plan, const HostGroup& hosts, std::vector<std::string>& pieces) {
  if (hosts.link.bytes_per_ms > 0 && hosts.devices_per_host() > 1) {
    pieces.push_back(LinkText("links", hosts.link));
  }
  if (hosts.network.bytes_per_ms > 0 && plan.cluster.num_hosts() > 1) {
    pieces.push_back(LinkText("network", hosts.network));
  }
}

Fact ClusterFact(const Plan& plan) {
  const Cluster& cluster = plan.cluster;
  Fact fact{"cluster", {}};
  const bool same_links = SameLinks(cluster);
  int shown = 0;
  for (const HostGroup& hosts : cluster.hosts) {
    if (shown == kMostHostGroups) {
      fact.pieces.push_back(
          absl::StrCat("[", cluster.hosts.size() - shown, " other kinds of host]"));
      break;
    }
    ++shown;
    fact.pieces.push_back(
        cluster.num_hosts() == 1
            ? DevicesText(plan, hosts)
            : absl::StrCat(Count(hosts.count, "host"), " of ", DevicesText(plan, hosts)));
    if (!same_links) AddLinks(plan, hosts, fact.pieces);
  }
  if (same_links) AddLinks(plan, cluster.hosts[0], fact.pieces);
  return fact;
}

std::string ReplicasText(const Plan& plan) {
  const auto [least, most] = std::minmax_element(
      plan.stages.begin(), plan.stages.end(),
      [](const PlanStage& a, const PlanStage& b) { return a.ranks.size() < b.ranks.size(); });
  if (least->ranks.size() == most->ranks.size()) return Count(most->ranks.size(), "replica");
  if (plan.stages.size() > 8) {
    return absl::StrCat(least->ranks.size(), " to ", most->ranks.size(), " replicas");
  }
  return absl::StrCat(absl::StrJoin(plan.stages, "+",
                                    [](std::string* out, const PlanStage& stage) {
                                      absl::StrAppend(out, stage.ranks.size());
                                    }),
                      " replicas");
}

// Micro-batches, or samples where they are known, a second.
double RateOf(const Plan& plan) {
  return 1e3 * plan.micro_batches * std::max<int64_t>(1, plan.micro_batch_samples) /
         plan.predicted_step_ms;
}
const char* RateUnit(const Plan& plan) {
  return plan.micro_batch_samples > 0 ? " samples/s" : " micro-batches/s";
}

}  // namespace

std::vector<Fact> InputFacts(const Plan& plan, const ReportContext& context) {
  Fact model{plan.model.name.empty() ? "model" : plan.model.name,
             {absl::StrCat(Grouped(plan.model.parameters), " parameters (",
                           HumanBytes(plan.model.parameter_bytes), ")"),
              Count(plan.model.operators, "operator")}};
  if (Trains(plan) && !plan.model.has_loss) {
    model.pieces.push_back("no loss: gradients assumed for every float output");
  }
  Fact batch{"batch", {Count(plan.micro_batches, "micro-batch")}};
  if (plan.micro_batch_samples > 0) {
    absl::StrAppend(&batch.pieces[0], " of ", Count(plan.micro_batch_samples, "sample"));
  }
  batch.pieces.push_back(Trains(plan) ? plan.optimizer : "inference");
  batch.pieces.push_back(absl::StrCat("seed ", plan.seed));
  if (context.planning_s > 0) {
    batch.pieces.push_back(absl::StrCat("planned in ", HumanNumber(context.planning_s), " s"));
  }
  return {model, ClusterFact(plan), batch};
}

Fact PlanFact(const Plan& plan) {
  Fact fact{"PLAN", {}, " · "};
  fact.pieces = {absl::StrCat(Count(plan.stages.size(), "stage"), " × ", ReplicasText(plan)),
                 Count(plan.micro_batches, "micro-batch"),
                 absl::StrCat("schedule ", plan.schedule)};
  if (plan.dtype != "fp32") fact.pieces.push_back(plan.dtype);
  const auto recomputing =
      std::count_if(plan.stages.begin(), plan.stages.end(),
                    [](const PlanStage& stage) { return !stage.recomputed_nodes.empty(); });
  if (recomputing > 0) {
    fact.pieces.push_back(recomputing == static_cast<int>(plan.stages.size())
                              ? std::string("recompute")
                              : absl::StrCat("recompute in ", recomputing, " of ",
                                             Count(plan.stages.size(), "stage")));
  }
  if (plan.shard_optimizer) fact.pieces.push_back("optimizer sharded");
  if (plan.reduce_bucket_bytes > 0 && !plan.reductions.empty()) {
    fact.pieces.push_back(
        absl::StrCat("reduced in buckets of ", HumanBytes(plan.reduce_bucket_bytes)));
  }
  return fact;
}

Fact StepFact(const Plan& plan) {
  Fact fact{"STEP", {absl::StrCat(Ms(plan.predicted_step_ms), " predicted")}, " · "};
  if (plan.predicted_step_ms <= 0) return fact;
  fact.pieces.push_back(absl::StrCat(HumanNumber(RateOf(plan)), RateUnit(plan)));
  const double speedup = OneDeviceMs(plan) / plan.predicted_step_ms;
  const bool alike = DeviceTypes(plan.cluster).size() == 1;
  fact.pieces.push_back(absl::StrCat(HumanNumber(speedup), "× the compute of one ",
                                     alike ? "device" : DeviceName(plan), " (",
                                     Percent(speedup / DevicesWorth(plan)), ")"));
  return fact;
}

BoundFact BoundFactOf(const Plan& plan) {
  BoundFact fact;
  const double step = plan.predicted_step_ms;
  if (plan.bound_kind.empty()) {
    fact.bound = "none: it was of the plan before the change.";
    fact.gap = absl::StrCat("Step ", Ms(step));
    fact.parts_ms = step;
    fact.parts = StepParts(plan);
    return fact;
  }
  const double gap = std::max(0.0, step - plan.bound_ms);
  fact.bound =
      absl::StrCat(Ms(plan.bound_ms), ": no plan on ",
                   plan.num_devices() == 1 ? std::string("this device")
                                           : absl::StrCat("these ", plan.num_devices(), " devices"),
                   " is faster (", BoundReason(plan), ").");
  fact.gap = absl::StrCat("Gap ", Ms(gap));
  if (plan.bound_ms > 0) absl::StrAppend(&fact.gap, " (", Percent(gap / plan.bound_ms), ")");
  if (plan.optimal) absl::StrAppend(&fact.gap, ", optimal for this cost model");
  if (gap > 1e-9 * step) {
    fact.parts_ms = gap;
    fact.parts = GapParts(plan);
  }
  return fact;
}

std::vector<std::string> PartTexts(const std::vector<TimePart>& parts, double total) {
  std::vector<double> values;
  for (const TimePart& part : parts) values.push_back(part.ms);
  const std::vector<std::string> texts = RoundedToAddUp(values, DecimalsFor(total));
  std::vector<std::string> shown;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (values[i] > 5e-4 * total) shown.push_back(absl::StrCat(parts[i].name, " ", texts[i]));
  }
  return shown;
}

std::vector<std::string> CutTexts(const Plan& plan) {
  std::vector<std::string> lines;
  const std::vector<Cut> cuts = CutsOf(plan);
  for (int s = 0; s < std::min<int>(cuts.size(), kMostCuts); ++s) {
    const Cut& cut = cuts[s];
    lines.push_back(absl::StrCat(
        "cut ", s, "|", s + 1, cut.after.empty() ? "" : " after ", Shorten(cut.after, 20), ": ",
        Count(cut.values, "value"), ", ", HumanBytes(cut.bytes), " forward",
        Trains(plan) ? absl::StrCat(", ", HumanBytes(cut.gradient_bytes), " back") : "",
        cut.skips > 0 ? absl::StrCat(", ", Count(cut.skips, "skip")) : ""));
  }
  if (const int rest = static_cast<int>(cuts.size()) - kMostCuts; rest > 0) {
    lines.push_back(absl::StrCat("[", rest, " other cuts]"));
  }
  return lines;
}

std::string MemoryText(const Plan& plan) {
  const PlanStage& fullest = plan.stages[FullestStage(plan)];
  return absl::StrCat("stage ", fullest.index, " is the fullest, ",
                      BytesOf(fullest.peak_memory_bytes, StageCaps(plan)[fullest.index]));
}

std::vector<std::string> NotChosen(const Plan& plan) {
  std::vector<std::string> lost;
  std::set<std::tuple<int, int, std::string>> seen = {
      {plan.stages.size(), plan.stages[0].ranks.size(), plan.schedule}};
  int others = 0;
  for (const PlanAlternative& a : plan.alternatives) {
    if (a.micro_batches != plan.micro_batches) continue;
    if (!seen.emplace(a.stages, a.replicas, a.schedule).second) continue;
    if (static_cast<int>(lost.size()) == kMostAlternatives) {
      ++others;
      continue;
    }
    const bool misfit = a.reason.find("does not fit") == 0;
    const bool is_bound = a.reason.find("ruled out") == 0;
    lost.push_back(absl::StrCat(
        a.stages, "×", a.replicas > 0 ? absl::StrCat(a.replicas) : "unequal", " ", a.schedule, " ",
        misfit     ? a.reason
        : is_bound ? absl::StrCat("at least ", Ms(a.step_ms))
                   : Ms(a.step_ms)));
  }
  if (others > 0) lost.push_back(absl::StrCat("[", others, " others]"));
  return lost;
}

std::vector<Fact> Tries(const Plan& plan) {
  if (plan.predicted_step_ms <= 0) return {};
  const int64_t actions = int64_t{16} * plan.micro_batches * plan.stages.size();
  if (actions > kMostTriedActions) return {};
  PlanChange change;
  change.micro_batches = 2 * plan.micro_batches;
  const absl::StatusOr<WhatIf> result = SimulateAgain(plan, change);
  if (!result.ok() || !result->misfit.empty()) return {};
  const double before = RateOf(plan), after = RateOf(result->plan);
  if (after < 1.02 * before) return {};
  const int fullest = FullestStage(result->plan);
  return {{absl::StrCat("--micro-batches ", *change.micro_batches),
           {absl::StrCat("(twice the batch): ", HumanNumber(before), " → ", HumanNumber(after),
                         RateUnit(plan), " (+", Percent(after / before - 1), ")"),
            BytesOf(result->plan.stages[fullest].peak_memory_bytes,
                    StageCaps(result->plan)[fullest])}}};
}

}  // namespace autopart::internal
