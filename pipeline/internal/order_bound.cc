// The longest path through the computes of a schedule.
//
// A rank does its computes in the order of its list; a forward also waits for the forwards before
// it and a backward for the backwards after it, each for as long as the message takes on a link
// that it has for itself. The simulator knows more reasons to wait (links in use, receives not
// posted), never fewer, so that it is never faster: mostly it is as fast. Memory follows from the
// order alone: what is saved, gradients from the first backward on, and the scratch of each
// compute, but no messages.
//
// Cost: O(computes x edges of a stage), with a small constant: a simulation has about six events a
// compute, a queue, and storages one by one.
#include "pipeline/internal/order_bound.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "pipeline/internal/compute_ms.h"
#include "pipeline/links.h"

namespace autopart::internal {
namespace {

constexpr double kNotYet = -1;
constexpr int kNobody = -1;

class LongestPath {
 public:
  LongestPath(const Schedule& compute, const SimulationInput& input)
      : compute_(compute), input_(input), m_(input.placement.micro_batches) {
    const int p = input.placement.num_stages();
    before_.resize(p);
    after_.resize(p);
    for (const StageEdge& edge : input.edges) {
      before_[edge.to].push_back({edge.from, edge.bytes});
      if (edge.has_gradient) after_[edge.from].push_back({edge.to, edge.gradient_bytes});
    }
    if (!input.cluster.hosts.empty()) {
      places_ = input.places.empty() ? PlacesOf(input.cluster) : input.places;
    }
    for (std::vector<std::vector<Need>>* needs : {&before_, &after_}) {
      for (int s = 0; s < p; ++s) {
        for (Need& need : (*needs)[s]) {
          const std::vector<int>& ranks = input.placement.ranks[need.stage];
          if (ranks.size() > 1 || input.placement.ranks[s].size() > 1) continue;
          need.message_ms = MessageMs(ranks[0], input.placement.ranks[s][0], need.bytes);
        }
      }
    }
    forward_.assign(p, Ends(m_));
    backward_ = forward_;
    ranks_.resize(compute.ranks.size());
  }

  // When each rank ends its computes; empty if the order waits for itself.
  std::vector<double> Run() {
    std::vector<int> ready;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) ready.push_back(rank);
    while (!ready.empty()) {
      const int rank = ready.back();
      ready.pop_back();
      Advance(rank, ready);
    }
    std::vector<double> ends;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].next < compute_.ranks[rank].size()) return {};
      ends.push_back(ranks_[rank].ms);
    }
    return ends;
  }

 private:
  // Of a stage: the micro-batch's compute on another stage, and its message.
  struct Need {
    int stage = 0;
    int64_t bytes = 0;
    double message_ms = -1;  // where it depends on the replicas
  };
  // Of one stage and direction, by micro-batch.
  struct Ends {
    explicit Ends(int micro_batches)
        : ms(micro_batches, kNotYet), first_waiter(micro_batches, kNobody) {}
    std::vector<double> ms;
    std::vector<int> first_waiter;  // a rank; more of them by Rank::next_waiter
  };
  struct Rank {
    size_t next = 0;
    double ms = 0;
    int next_waiter = kNobody;
  };

  double MessageMs(int from, int to, int64_t bytes) const {
    if (places_.empty() || from == to) return 0;
    const LinkSpec link = LinkBetween(input_.cluster, places_[from], places_[to]);
    return OccupiedMs(link, bytes) + link.latency_ms;
  }

  // Runs the rank's list until something is missing.
  void Advance(int rank, std::vector<int>& ready) {
    Rank& r = ranks_[rank];
    const std::vector<Action>& list = compute_.ranks[rank];
    for (; r.next < list.size(); ++r.next) {
      const Action& a = list[r.next];
      const int j = a.micro_batch;
      double start = r.ms;
      if (a.kind != ActionKind::kBackwardWeight) {
        const bool forward = a.kind == ActionKind::kForward;
        for (const Need& need : (forward ? before_ : after_)[a.stage]) {
          Ends& ends = (forward ? forward_ : backward_)[need.stage];
          if (ends.ms[j] == kNotYet) {
            r.next_waiter = ends.first_waiter[j];
            ends.first_waiter[j] = rank;
            return;
          }
          const double message =
              need.message_ms >= 0
                  ? need.message_ms
                  : MessageMs(input_.placement.RankOf(need.stage, j), rank, need.bytes);
          start = std::max(start, ends.ms[j] + message);
        }
      }
      const double slowness = input_.rank_slowness.empty() ? 1 : input_.rank_slowness[rank];
      r.ms = start + slowness * ComputeMs(input_.stage_costs[a.stage], a.kind);
      if (a.kind == ActionKind::kBackwardWeight) continue;
      Ends& mine = (a.kind == ActionKind::kForward ? forward_ : backward_)[a.stage];
      mine.ms[j] = r.ms;
      for (int waiter = mine.first_waiter[j]; waiter != kNobody;
           waiter = ranks_[waiter].next_waiter) {
        ready.push_back(waiter);
      }
    }
  }

  const Schedule& compute_;
  const SimulationInput& input_;
  const int m_;
  std::vector<DevicePlace> places_;
  std::vector<std::vector<Need>> before_, after_;  // by stage
  std::vector<Ends> forward_, backward_;           // by stage
  std::vector<Rank> ranks_;
};

// What a stage holds for one micro-batch.
struct HeldBytes {
  int64_t saved = 0;    // until the backward
  int64_t results = 0;  // until the step's end
};

std::vector<HeldBytes> HeldOf(const SimulationInput& input) {
  std::vector<HeldBytes> held(input.stage_memory.size());
  for (size_t s = 0; s < held.size(); ++s) {
    for (const StageStorage& storage : input.stage_memory[s].storages) {
      if (storage.result) {
        held[s].results += storage.bytes;
      } else if (storage.saved) {
        held[s].saved += storage.bytes;
      }
    }
  }
  return held;
}

std::vector<int64_t> PeakBytes(const Schedule& compute, const SimulationInput& input) {
  const std::vector<HeldBytes> held = HeldOf(input);
  std::vector<int64_t> peaks(compute.ranks.size());
  for (int s = 0; s < input.placement.num_stages(); ++s) {
    const StageMemory& memory = input.stage_memory[s];
    for (const int rank : input.placement.ranks[s]) {
      peaks[rank] += memory.weight_bytes + memory.optimizer_bytes;
    }
  }
  std::vector<bool> has_gradients(input.stage_memory.size());
  for (size_t rank = 0; rank < peaks.size(); ++rank) {
    std::fill(has_gradients.begin(), has_gradients.end(), false);
    int64_t live = peaks[rank];
    for (const Action& a : compute.ranks[rank]) {
      const StageMemory& memory = input.stage_memory[a.stage];
      const int64_t before = live;
      if (a.kind == ActionKind::kForward) {
        live += held[a.stage].saved + held[a.stage].results;
      } else {
        if (!has_gradients[a.stage]) live += memory.gradient_bytes;
        has_gradients[a.stage] = true;
        if (a.kind != ActionKind::kBackwardInput) live -= held[a.stage].saved;
      }
      peaks[rank] = std::max(peaks[rank], std::max(before, live) + memory.temporary_bytes);
    }
  }
  return peaks;
}

// The end of the step: reductions whose times are known, then the optimizer.
double EndOfStep(const Schedule& compute, const SimulationInput& input,
                 const std::vector<double>& computed) {
  const StagePlacement& placement = input.placement;
  std::vector<double> ends = computed;
  for (size_t i = 0; i < input.reduction_ms.size(); ++i) {
    const Reduction& reduction = input.reductions[i];
    double ms = input.reduction_ms[i];
    // Buckets go during the last backward: one is left after it.
    if (input.reduce_bucket_bytes > 0 && reduction.stages.size() == 1) {
      const int64_t buckets =
          (reduction.bytes + input.reduce_bucket_bytes - 1) / input.reduce_bucket_bytes;
      ms /= std::clamp<int64_t>(buckets, 1, kMostReduceBuckets);
      // Where other stages of a rank come after it, all may be over by then.
      const std::vector<int>& ranks = placement.ranks[reduction.stages[0]];
      const bool last = std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
        const std::vector<Action>& list = compute.ranks[rank];
        return !list.empty() && list.back().stage == reduction.stages[0];
      });
      if (!last) continue;
    }
    double ready = 0;
    for (const int s : reduction.stages) {
      for (const int rank : placement.ranks[s]) ready = std::max(ready, computed[rank]);
    }
    for (const int s : reduction.stages) {
      for (const int rank : placement.ranks[s]) ends[rank] = std::max(ends[rank], ready + ms);
    }
  }
  const bool trains = std::any_of(compute.ranks.begin(), compute.ranks.end(), [](const auto& list) {
    return std::any_of(list.begin(), list.end(),
                       [](const Action& a) { return a.kind != ActionKind::kForward; });
  });
  for (int s = 0; s < placement.num_stages() && trains; ++s) {
    for (const int rank : placement.ranks[s]) {
      const double slowness = input.rank_slowness.empty() ? 1 : input.rank_slowness[rank];
      ends[rank] += slowness * input.stage_costs[s].step_ms;
    }
  }
  double last = 0;
  for (const double end : ends) last = std::max(last, end);
  return last;
}

}  // namespace

absl::StatusOr<OrderBound> ComputeOrderBound(std::string_view schedule,
                                             const SimulationInput& input) {
  const absl::StatusOr<Schedule> compute = GenerateSchedule(schedule, input.placement);
  if (!compute.ok()) return compute.status();
  const std::vector<double> computed = LongestPath(*compute, input).Run();
  if (computed.empty()) {
    return absl::InternalError(absl::StrCat("schedule '", compute->name, "' waits for itself"));
  }
  OrderBound bound;
  // Sums in another order may differ in the last bits.
  bound.makespan_ms = EndOfStep(*compute, input, computed) * (1 - 1e-12);
  bound.peak_bytes = PeakBytes(*compute, input);
  return bound;
}

}  // namespace autopart::internal
