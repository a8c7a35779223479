#include "pipeline/internal/report_tracks.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "pipeline/internal/format.h"

namespace autopart::internal {
namespace {

constexpr double kSameMs = 2e-6;  // no picture tells times so near from one another

SpanKind KindOf(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return SpanKind::kForward;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return SpanKind::kBackward;
    case ActionKind::kBackwardWeight:
      return SpanKind::kBackwardWeight;
    case ActionKind::kStep:
      return SpanKind::kOptimizer;
    default:
      return SpanKind::kWait;
  }
}

Span SpanOf(const Event& event) {
  return {KindOf(event.action.kind), event.start_ms,     event.end_ms,
          ToString(event.action),    event.action.stage, event.action.micro_batch};
}

// Compute or waiting. Forward work that is done again stands first in its backward.
void AddEvent(const Plan& plan, const std::vector<double>& slowness, const Event& event,
              RankTracks& track) {
  Span span = SpanOf(event);
  if (span.end_ms <= span.start_ms) return;
  if (span.kind == SpanKind::kWait) {
    track.waits.push_back(span);
    return;
  }
  const double recompute_ms =
      plan.stages[event.action.stage].recompute_ms * (slowness.empty() ? 1 : slowness[event.rank]);
  if (span.kind == SpanKind::kBackward && recompute_ms > 0) {
    Span again = span;
    again.kind = SpanKind::kRecompute;
    again.name += " recompute";
    again.end_ms = span.start_ms = std::min(span.end_ms, span.start_ms + recompute_ms);
    track.compute.push_back(again);
  }
  track.compute.push_back(span);
}

void AddMemory(const Event& event, RankTracks& track) {
  MemoryPoint& last = track.memory.back();
  if (event.live == last.live) return;
  if (event.end_ms < last.ms + kSameMs) {
    last.live = event.live;
  } else {
    track.memory.push_back({event.end_ms, event.live});
  }
}

Span SpanOf(const Transfer& transfer, int index, bool at_sender) {
  const bool activation = transfer.from_stage < transfer.to_stage;
  Action action;
  action.micro_batch = transfer.micro_batch;
  if (at_sender) {
    action.kind = activation ? ActionKind::kSendActivation : ActionKind::kSendGradient;
    action.stage = transfer.from_stage;
    action.peer_stage = transfer.to_stage;
  } else {
    action.kind = activation ? ActionKind::kRecvActivation : ActionKind::kRecvGradient;
    action.stage = transfer.to_stage;
    action.peer_stage = transfer.from_stage;
  }
  return {at_sender ? SpanKind::kSend : SpanKind::kReceive,
          transfer.start_ms,
          transfer.end_ms,
          ToString(action),
          action.stage,
          action.micro_batch,
          transfer.bytes,
          index};
}

}  // namespace

const char* NameOf(SpanKind kind) {
  switch (kind) {
    case SpanKind::kForward:
      return "forward";
    case SpanKind::kRecompute:
      return "recompute";
    case SpanKind::kBackward:
      return "backward";
    case SpanKind::kBackwardWeight:
      return "backward of weights";
    case SpanKind::kOptimizer:
      return "optimizer";
    case SpanKind::kSend:
      return "send";
    case SpanKind::kReceive:
      return "receive";
    case SpanKind::kReduce:
      return "reduce";
    case SpanKind::kWait:
      return "waiting";
  }
  return "";
}

std::vector<RankTracks> TracksOf(const Plan& plan, const Simulation& simulation,
                                 const std::vector<int>& ranks) {
  std::vector<RankTracks> tracks;
  std::map<int, RankTracks*> track_of;
  for (const int rank : ranks) tracks.push_back({rank, {}, {}, {}, {}, {}, {}, {{0, {}}}});
  for (RankTracks& track : tracks) track_of[track.rank] = &track;
  const auto find = [&](int rank) {
    const auto it = track_of.find(rank);
    return it == track_of.end() ? nullptr : it->second;
  };
  for (const PlanStage& stage : plan.stages) {
    for (const int rank : stage.ranks) {
      RankTracks* track = find(rank);
      if (track == nullptr) continue;
      track->stages.push_back(stage.index);
      track->memory[0].live.weights += stage.held.weight_bytes;
      track->memory[0].live.optimizer += stage.held.optimizer_bytes;
    }
  }
  const std::vector<double> slowness = RankSlowness(plan.cluster, plan.dtype);
  for (const Event& event : simulation.events) {
    if (RankTracks* track = find(event.rank)) {
      AddEvent(plan, slowness, event, *track);
      AddMemory(event, *track);
    }
  }
  for (size_t i = 0; i < simulation.transfers.size(); ++i) {
    const Transfer& transfer = simulation.transfers[i];
    if (RankTracks* from = find(transfer.from_rank)) {
      from->sends.push_back(SpanOf(transfer, i, true));
    }
    if (RankTracks* to = find(transfer.to_rank)) {
      to->receives.push_back(SpanOf(transfer, i, false));
    }
  }
  for (const ReduceSpan& reduce : simulation.reduce_spans) {
    for (const int s : plan.reductions[reduce.reduction].stages) {
      Action action;
      action.kind = ActionKind::kReduce;
      action.stage = s;
      std::string name = ToString(action);
      if (plan.reduce_bucket_bytes > 0) absl::StrAppend(&name, " bucket ", reduce.bucket);
      for (const int rank : plan.stages[s].ranks) {
        if (RankTracks* track = find(rank)) {
          track->reductions.push_back({SpanKind::kReduce, reduce.start_ms, reduce.end_ms, name, s});
        }
      }
    }
  }
  return tracks;
}

std::vector<int> ShownRanks(const Plan& plan, int most) {
  std::vector<int> ranks;
  if (plan.num_devices() <= most) {
    ranks.resize(plan.num_devices());
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  for (const PlanStage& stage : plan.stages) ranks.push_back(stage.ranks[0]);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  if (static_cast<int>(ranks.size()) > most) ranks.resize(most);
  return ranks;
}

std::string ShownNote(const Plan& plan, const std::vector<int>& shown) {
  if (static_cast<int>(shown.size()) == plan.num_devices()) return "";
  return absl::StrCat(Grouped(shown.size()), " of ", Count(plan.num_devices(), "rank"),
                      ": the first replica of each stage",
                      shown.size() < plan.stages.size() ? ", as far as there is room" : "");
}

std::vector<int> LanesOf(const std::vector<Span>& spans) {
  std::vector<int> lanes;
  std::vector<double> free_ms;
  for (const Span& span : spans) {
    size_t lane = 0;
    while (lane < free_ms.size() && free_ms[lane] > span.start_ms) ++lane;
    if (lane == free_ms.size()) free_ms.push_back(0);
    free_ms[lane] = span.end_ms;
    lanes.push_back(lane);
  }
  return lanes;
}

}  // namespace autopart::internal
