// Lowering: puts communication into a schedule of computes. One pass over each rank's list.
//
//   [WAIT_F of an older send] RECV_F... F SEND_F...
//   WAIT_F... RECV_B... B [WAIT_B of an older send] SEND_B...
//   at the end: the remaining WAITs, REDUCE, STEP
//
// Where a gradient comes back, an activation is waited for right before the stage's own backward of
// that micro-batch: that costs no time, as the gradient comes later anyway. Elsewhere, and for
// gradients, a bounded number of sends is under way; internal/compute_order.cc has the bounds and
// why no schedule hangs on them. Where ranks have several stages, orders are of many kinds: there a
// send is waited for once the peer has received it by a clock on which every compute takes one
// tick, which is safe for any order that ends.
#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "pipeline/internal/compute_order.h"
#include "pipeline/schedule.h"

namespace autopart {
namespace {

struct StageLinks {
  std::vector<const StageEdge*> in, out;  // nearest stage first
};

class RankLowering {
 public:
  // ticks: null where every rank has one stage.
  RankLowering(const StagePlacement& placement, const std::vector<StageLinks>& links,
               const internal::Ticks* ticks, bool trains)
      : placement_(placement), links_(links), ticks_(ticks), trains_(trains) {}

  void Add(const Action& compute) {
    const int j = compute.micro_batch;
    const int s = compute.stage;
    const int d = placement_.ranks[s].size();
    switch (compute.kind) {
      case ActionKind::kForward:
        for (const StageEdge* e : links_[s].out) {
          if (GradientFlows(*e)) continue;
          if (ticks_ != nullptr) {
            WaitForOld({ActionKind::kWaitActivation, s, j, e->to}, ticks_->forward);
          } else {
            WaitIfSent({ActionKind::kWaitActivation, s,
                        j - d * internal::MessagesInFlight(placement_, s, e->to), e->to});
          }
        }
        for (const StageEdge* e : links_[s].in) {
          list_.push_back({ActionKind::kRecvActivation, s, j, e->from});
        }
        list_.push_back(compute);
        for (const StageEdge* e : links_[s].out) {
          list_.push_back({ActionKind::kSendActivation, s, j, e->to});
          waiting_.push_back({ActionKind::kWaitActivation, s, j, e->to});
        }
        break;
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        for (const StageEdge* e : links_[s].out) {
          if (GradientFlows(*e)) WaitIfSent({ActionKind::kWaitActivation, s, j, e->to});
        }
        for (const StageEdge* e : links_[s].out) {
          if (GradientFlows(*e)) list_.push_back({ActionKind::kRecvGradient, s, j, e->to});
        }
        list_.push_back(compute);
        for (const StageEdge* e : links_[s].in) {
          if (!GradientFlows(*e)) continue;
          if (ticks_ != nullptr) {
            WaitForOld({ActionKind::kWaitGradient, s, j, e->from}, ticks_->backward);
          } else {
            WaitIfSent({ActionKind::kWaitGradient, s, j - d * internal::kGradientMessagesInFlight,
                        e->from});
          }
          list_.push_back({ActionKind::kSendGradient, s, j, e->from});
          waiting_.push_back({ActionKind::kWaitGradient, s, j, e->from});
        }
        break;
      default:
        list_.push_back(compute);
    }
  }

  std::vector<Action> Finish(const std::vector<int>& stages) {
    list_.insert(list_.end(), waiting_.begin(), waiting_.end());
    if (trains_) {
      for (const int stage : stages) list_.push_back({ActionKind::kReduce, stage});
      for (const int stage : stages) list_.push_back({ActionKind::kStep, stage});
    }
    return std::move(list_);
  }

 private:
  bool GradientFlows(const StageEdge& edge) const { return trains_ && edge.has_gradient; }

  void WaitIfSent(const Action& wait) {
    const auto it = std::find(waiting_.begin(), waiting_.end(), wait);
    if (it == waiting_.end()) return;
    list_.push_back(wait);
    waiting_.erase(it);
  }

  // Waits for all sends of this edge that the peer has long received when `send` is due.
  void WaitForOld(const Action& send, const std::vector<std::vector<int>>& tick) {
    const int now = tick[send.stage][send.micro_batch];
    const auto old = [&](const Action& wait) {
      return wait.kind == send.kind && wait.stage == send.stage &&
             wait.peer_stage == send.peer_stage &&
             tick[wait.peer_stage][wait.micro_batch] < now - kSlackTicks;
    };
    std::copy_if(waiting_.begin(), waiting_.end(), std::back_inserter(list_), old);
    std::erase_if(waiting_, old);
  }

  static constexpr int kSlackTicks = 2;  // as ranks are not that even

  const StagePlacement& placement_;
  const std::vector<StageLinks>& links_;
  const internal::Ticks* ticks_;
  const bool trains_;
  std::vector<Action> list_;
  std::vector<Action> waiting_;  // for sends that nothing has waited for yet, in order of sending
};

}  // namespace

absl::StatusOr<Schedule> Lower(const Schedule& compute, const StagePlacement& placement,
                               const std::vector<StageEdge>& edges) {
  if (compute.ranks.size() != static_cast<size_t>(placement.num_ranks)) {
    return absl::InvalidArgumentError(absl::StrCat("the schedule has ", compute.ranks.size(),
                                                   " ranks, the placement ", placement.num_ranks));
  }
  const int p = placement.num_stages();
  std::vector<StageLinks> links(p);
  for (const StageEdge& edge : edges) {
    if (edge.from < 0 || edge.from >= edge.to || edge.to >= p) {
      return absl::InvalidArgumentError(
          absl::StrCat("edge from stage ", edge.from, " to stage ", edge.to,
                       ": edges go from a lower to a higher of the ", p, " stages"));
    }
    links[edge.from].out.push_back(&edge);
    links[edge.to].in.push_back(&edge);
  }
  for (StageLinks& link : links) {
    std::sort(link.in.begin(), link.in.end(),
              [](const StageEdge* a, const StageEdge* b) { return a->from > b->from; });
    std::sort(link.out.begin(), link.out.end(),
              [](const StageEdge* a, const StageEdge* b) { return a->to < b->to; });
  }

  bool trains = false;
  for (const std::vector<Action>& list : compute.ranks) {
    for (const Action& a : list) {
      if (a.kind > ActionKind::kBackwardWeight) {
        return absl::InvalidArgumentError(
            absl::StrCat(ToString(a), " is no compute action: this schedule is lowered already"));
      }
      if (a.stage < 0 || a.stage >= p) {
        return absl::InvalidArgumentError(absl::StrCat(ToString(a), ": no such stage"));
      }
      trains |= a.kind != ActionKind::kForward;
    }
  }

  std::vector<int> stages_on(placement.num_ranks);
  for (const std::vector<int>& ranks : placement.ranks) {
    for (const int rank : ranks) {
      if (rank >= 0 && rank < placement.num_ranks) ++stages_on[rank];
    }
  }
  std::optional<internal::Ticks> ticks;
  if (std::any_of(stages_on.begin(), stages_on.end(), [](int n) { return n > 1; })) {
    ticks = internal::ComputeTicks(compute, placement, edges);
  }

  Schedule lowered{compute.name, {}};
  for (int rank = 0; rank < placement.num_ranks; ++rank) {
    RankLowering lowering(placement, links, ticks ? &*ticks : nullptr, trains);
    for (const Action& a : compute.ranks[rank]) lowering.Add(a);
    std::vector<int> stages;
    for (int s = 0; s < p; ++s) {
      const std::vector<int>& ranks = placement.ranks[s];
      if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) stages.push_back(s);
    }
    lowered.ranks.push_back(lowering.Finish(stages));
  }
  if (absl::Status status = Validate(lowered, placement, edges); !status.ok()) return status;
  return lowered;
}

}  // namespace autopart
