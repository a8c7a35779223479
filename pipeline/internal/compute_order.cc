// Why these schedules cannot hang, whatever the edges (D_s = d_s + ... + d_(p-1), w_s = InFlight).
//
// Give B(s,j) the height j and F(s,j) the height j - D_s. Everything that an action has to wait for
// is not higher:
//   F(s,j) for F(s',j), s' < s               lower, since D_s' > D_s
//   F(s,j) for B(s, j - w_s d_s), own list   not higher, since w_s d_s >= D_s
//   F(s,j) for the receiver t of an older message, F(t, j - MessagesInFlight d_s)    lower
//   B(s,j) for B(t,j), t > s                 as high, but a later stage
//   B(s,j) for F(s, j + (w_s - 1) d_s), own list                                     lower
//   B(s,j) for the receiver of an older gradient, B(s', j - 2 d_s)                   lower
// A circle would have to stay on one height, and none can. GPipe waits for less before its
// forwards. ZB-H1 is 1F1B with I for B; a W waits for nothing but its own list.
#include "pipeline/internal/compute_order.h"

#include <algorithm>
#include <limits>

namespace autopart::internal {
namespace {

int Replicas(const StagePlacement& placement, int stage) { return placement.ranks[stage].size(); }

int CeilDivide(int a, int b) { return (a + b - 1) / b; }

int ReplicasFrom(const StagePlacement& placement, int stage) {
  int sum = 0;
  for (int s = stage; s < placement.num_stages(); ++s) sum += Replicas(placement, s);
  return sum;
}

// Which computes are done, and whether one may run next, as if every pair of stages had an edge.
class Progress {
 public:
  Progress(const StagePlacement& placement, bool has_backward)
      : placement_(placement),
        has_backward_(has_backward),
        forward_(placement.num_stages(), std::vector<bool>(placement.micro_batches)),
        backward_(forward_) {}

  bool Ready(const Action& a) const {
    const int j = a.micro_batch;
    const int d = Replicas(placement_, a.stage);
    if (a.kind == ActionKind::kForward) {
      for (int s = 0; s < a.stage; ++s) {
        if (!forward_[s][j]) return false;
      }
      for (int t = a.stage + 1; t < placement_.num_stages(); ++t) {
        const int older = j - d * MessagesInFlight(placement_, a.stage, t);
        if (older >= 0 && !forward_[t][older]) return false;
      }
      return true;
    }
    if (a.kind == ActionKind::kBackwardWeight) return true;  // its own list has the order
    for (int t = a.stage + 1; t < placement_.num_stages(); ++t) {
      if (!backward_[t][j]) return false;
    }
    const int older = j - d * kGradientMessagesInFlight;
    for (int s = 0; older >= 0 && s < a.stage; ++s) {
      if (!backward_[s][older]) return false;
    }
    return has_backward_;
  }

  void Done(const Action& a) {
    if (a.kind == ActionKind::kForward) forward_[a.stage][a.micro_batch] = true;
    if (a.kind == ActionKind::kBackward || a.kind == ActionKind::kBackwardInput) {
      backward_[a.stage][a.micro_batch] = true;
    }
  }

 private:
  const StagePlacement& placement_;
  const bool has_backward_;
  std::vector<std::vector<bool>> forward_, backward_;
};

}  // namespace

std::vector<Action> Forwards(const StagePlacement& placement, int stage, int replica) {
  std::vector<Action> order;
  for (int j = replica; j < placement.micro_batches; j += Replicas(placement, stage)) {
    order.push_back({ActionKind::kForward, stage, j});
  }
  return order;
}

int InFlight(const StagePlacement& placement, int stage) {
  return CeilDivide(ReplicasFrom(placement, stage), Replicas(placement, stage));
}

int MessagesInFlight(const StagePlacement& placement, int from, int to) {
  int lag = 0;
  for (int s = from; s < to; ++s) lag += Replicas(placement, s);
  return CeilDivide(lag, Replicas(placement, from)) + 1;
}

// A rank with one stage takes that stage's order as it is. Where stages share a rank, all stages
// are run in rounds, a rank doing one ready action a round: a backward before a forward (frees
// memory), a later stage before an earlier one. The order in which they ran is one that works.
std::vector<std::vector<Action>> MergeOntoRanks(
    const StagePlacement& placement, const std::vector<std::vector<std::vector<Action>>>& orders) {
  struct Queue {
    const std::vector<Action>* actions;
    size_t next = 0;
  };
  std::vector<std::vector<Queue>> queues(placement.num_ranks);
  bool shared = false;
  bool has_backward = false;
  size_t left = 0;
  for (int stage = placement.num_stages() - 1; stage >= 0; --stage) {
    for (int replica = 0; replica < Replicas(placement, stage); ++replica) {
      const std::vector<Action>& order = orders[stage][replica];
      std::vector<Queue>& on_rank = queues[placement.ranks[stage][replica]];
      on_rank.push_back({&order});
      shared |= on_rank.size() > 1;
      left += order.size();
      for (const Action& a : order) has_backward |= a.kind != ActionKind::kForward;
    }
  }
  std::vector<std::vector<Action>> ranks(placement.num_ranks);
  if (!shared) {
    for (int rank = 0; rank < placement.num_ranks; ++rank) {
      if (!queues[rank].empty()) ranks[rank] = *queues[rank][0].actions;
    }
    return ranks;
  }

  Progress progress(placement, has_backward);
  while (left > 0) {
    std::vector<Action> done;
    for (int rank = 0; rank < placement.num_ranks; ++rank) {
      Queue* best = nullptr;
      for (Queue& queue : queues[rank]) {
        if (queue.next == queue.actions->size()) continue;
        const Action& head = (*queue.actions)[queue.next];
        if (!progress.Ready(head)) continue;
        if (best == nullptr || ((*best->actions)[best->next].kind == ActionKind::kForward &&
                                head.kind != ActionKind::kForward)) {
          best = &queue;
        }
      }
      if (best == nullptr) continue;
      ranks[rank].push_back((*best->actions)[best->next++]);
      done.push_back(ranks[rank].back());
      --left;
    }
    if (done.empty()) return {};  // no generator of ours can get here (proof above)
    for (const Action& a : done) progress.Done(a);
  }
  return ranks;
}

Ticks ComputeTicks(const Schedule& compute, const StagePlacement& placement,
                   const std::vector<StageEdge>& edges) {
  const int m = placement.micro_batches;
  const int never = std::numeric_limits<int>::max();
  Ticks ticks;
  ticks.forward.assign(placement.num_stages(), std::vector<int>(m, never));
  ticks.backward = ticks.forward;
  std::vector<std::vector<int>> before(placement.num_stages()), after(placement.num_stages());
  for (const StageEdge& edge : edges) {
    before[edge.to].push_back(edge.from);
    if (edge.has_gradient) after[edge.from].push_back(edge.to);
  }
  const auto all_done = [&](const std::vector<int>& stages, const auto& done, int j) {
    return std::all_of(stages.begin(), stages.end(), [&](int s) { return done[s][j] != never; });
  };
  std::vector<size_t> next(compute.ranks.size());
  for (int tick = 0;; ++tick) {
    std::vector<const Action*> now;
    for (size_t rank = 0; rank < compute.ranks.size(); ++rank) {
      if (next[rank] == compute.ranks[rank].size()) continue;
      const Action& a = compute.ranks[rank][next[rank]];
      const bool ready = a.kind == ActionKind::kForward
                             ? all_done(before[a.stage], ticks.forward, a.micro_batch)
                             : a.kind == ActionKind::kBackwardWeight ||
                                   all_done(after[a.stage], ticks.backward, a.micro_batch);
      if (!ready) continue;
      now.push_back(&a);
      ++next[rank];
    }
    if (now.empty()) return ticks;
    for (const Action* a : now) {
      if (a->kind == ActionKind::kBackwardWeight) continue;
      (a->kind == ActionKind::kForward ? ticks.forward : ticks.backward)[a->stage][a->micro_batch] =
          tick;
    }
  }
}

}  // namespace autopart::internal
