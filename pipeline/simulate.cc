// The simulator: runs every rank's list as far as it can, over and over, until all have ended.
//
// Each message has one sender and one receiver and links do not share bandwidth, so the times
// follow from the order alone and no event queue is needed: an action starts when its rank is free
// and ends when what it waits for is there. A transfer starts when both its SEND and its RECV have
// started.
#include "pipeline/simulate.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace autopart {
namespace {

constexpr double kNotYet = -1;

Stream StreamOf(ActionKind kind) {
  switch (kind) {
    case ActionKind::kSendActivation:
    case ActionKind::kSendGradient:
    case ActionKind::kWaitActivation:
    case ActionKind::kWaitGradient:
      return Stream::kSend;
    case ActionKind::kRecvActivation:
    case ActionKind::kRecvGradient:
      return Stream::kReceive;
    case ActionKind::kReduce:
      return Stream::kReduce;
    default:
      return Stream::kCompute;
  }
}

// What one rank holds. A storage is counted once however many hold it.
class RankMemory {
 public:
  void AddFixed(int64_t bytes) { live_ += bytes; }

  void Acquire(int stage, int micro_batch, const std::vector<HeldStorage>& storages) {
    for (const HeldStorage& s : storages) {
      if (holders_[{stage, micro_batch, s.storage}]++ == 0) live_ += s.bytes;
    }
  }

  void Release(int stage, int micro_batch, const std::vector<HeldStorage>& storages) {
    for (const HeldStorage& s : storages) {
      const auto it = holders_.find({stage, micro_batch, s.storage});
      if (--it->second > 0) continue;
      holders_.erase(it);
      live_ -= s.bytes;
    }
  }

  int64_t live() const { return live_; }

 private:
  int64_t live_ = 0;
  std::map<std::tuple<int, int, int>, int> holders_;  // (stage, micro-batch, storage) -> holders
};

class Simulator {
 public:
  Simulator(const Schedule& schedule, const SimulationInput& input)
      : schedule_(schedule), input_(input), p_(input.placement.num_stages()) {
    const size_t m = input.placement.micro_batches;
    edge_index_.assign(p_ * p_, -1);
    for (size_t e = 0; e < input.edges.size(); ++e) {
      edge_index_[input.edges[e].from * p_ + input.edges[e].to] = e;
      messages_.emplace_back(2 * m);
    }
    in_edges_.resize(p_);
    out_edges_.resize(p_);
    for (size_t e = 0; e < input.edges.size(); ++e) {
      out_edges_[input.edges[e].from].push_back(e);
      in_edges_[input.edges[e].to].push_back(e);
    }
    ranks_.resize(schedule.ranks.size());
    reduces_.resize(p_);
    result_.ranks.resize(schedule.ranks.size());
    for (int s = 0; s < p_; ++s) {
      const StageMemory& memory = input.stage_memory[s];
      for (const int rank : input.placement.ranks[s]) {
        ranks_[rank].memory.AddFixed(memory.weight_bytes);
        ranks_[rank].has_gradients.assign(p_, false);
        RankUse& use = result_.ranks[rank];
        use.weight_bytes += memory.weight_bytes;
        use.optimizer_bytes += memory.optimizer_bytes;
      }
    }
    SplitSaved();
    for (size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r].live_before = ranks_[r].memory.live();
      result_.ranks[r].peak_bytes = ranks_[r].live_before + result_.ranks[r].optimizer_bytes;
    }
  }

  absl::StatusOr<Simulation> Run() {
    bool all_done = false;
    for (bool progress = true; progress && !all_done;) {
      progress = false;
      all_done = true;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (!Done(rank) && RunNext(rank)) progress = true;
        all_done &= Done(rank);
      }
    }
    if (!all_done) return Hang();
    for (const Event& e : result_.events) {
      result_.makespan_ms = std::max(result_.makespan_ms, e.end_ms);
    }
    for (RankUse& use : result_.ranks) use.idle_ms = result_.makespan_ms - use.busy_ms;
    // The order in which they ran is one that works; ends never fall along it where it matters.
    std::stable_sort(result_.events.begin(), result_.events.end(),
                     [](const Event& a, const Event& b) { return a.end_ms < b.end_ms; });
    return std::move(result_);
  }

 private:
  struct Message {
    double sent = kNotYet;      // when the SEND started
    double received = kNotYet;  // when the data was there
  };
  struct Rank {
    size_t next = 0;
    double free = 0;
    RankMemory memory;
    std::vector<bool> has_gradients;  // by stage
    int64_t gradient_bytes = 0;
    int64_t live_before = 0;  // after the previous action
  };
  struct Reduce {
    double last_arrival = 0;
    std::vector<int> waiting;
  };

  // Most saved storages are held by nobody else: only their sum matters. The others are counted one
  // by one.
  void SplitSaved() {
    for (int s = 0; s < p_; ++s) {
      const StageMemory& memory = input_.stage_memory[s];
      std::set<int> others;
      const auto add = [&others](const std::vector<HeldStorage>& list) {
        for (const HeldStorage& storage : list) others.insert(storage.storage);
      };
      add(memory.results);
      for (const int e : out_edges_[s]) add(input_.edge_memory[e].sent);
      for (const int e : in_edges_[s]) add(input_.edge_memory[e].received);
      std::vector<HeldStorage> shared;
      int64_t alone = 0;
      for (const HeldStorage& storage : memory.saved) {
        if (others.count(storage.storage) > 0) {
          shared.push_back(storage);
        } else {
          alone += storage.bytes;
        }
      }
      shared_saved_.push_back(std::move(shared));
      saved_alone_.push_back(alone);
    }
  }

  bool Done(int rank) const { return ranks_[rank].next == schedule_.ranks[rank].size(); }

  int EdgeOf(const Action& a) const {
    return a.stage < a.peer_stage ? edge_index_[a.stage * p_ + a.peer_stage]
                                  : edge_index_[a.peer_stage * p_ + a.stage];
  }

  // Runs the next action of a rank; false if it has to wait for another rank.
  bool RunNext(int rank) {
    Rank& r = ranks_[rank];
    const Action& a = schedule_.ranks[rank][r.next];
    const StageCost& cost = input_.stage_costs[a.stage];
    double end = r.free;
    switch (a.kind) {
      case ActionKind::kForward:
        end += cost.forward_ms;
        break;
      case ActionKind::kBackward:
        end += cost.backward_input_ms + cost.backward_weight_ms;
        break;
      case ActionKind::kBackwardInput:
        end += cost.backward_input_ms;
        break;
      case ActionKind::kBackwardWeight:
        end += cost.backward_weight_ms;
        break;
      case ActionKind::kSendActivation:
      case ActionKind::kSendGradient:
        MessageOf(a).sent = end;
        break;
      case ActionKind::kRecvActivation:
      case ActionKind::kRecvGradient: {
        Message& message = MessageOf(a);
        if (message.sent == kNotYet) return false;
        const EdgeCost& edge = input_.edge_costs[EdgeOf(a)];
        end = std::max(end, message.sent) +
              (a.kind == ActionKind::kRecvActivation ? edge.forward_ms : edge.backward_ms);
        message.received = end;
        break;
      }
      case ActionKind::kWaitActivation:
      case ActionKind::kWaitGradient:
        if (MessageOf(a).received == kNotYet) return false;
        end = std::max(end, MessageOf(a).received);
        break;
      case ActionKind::kReduce:
        return Arrive(rank, a);
      case ActionKind::kStep:
        end += cost.step_ms;
        break;
    }
    Finish(rank, end);
    return true;
  }

  // A reduction starts when all replicas of the stage are there, and ends for all at once.
  bool Arrive(int rank, const Action& a) {
    Reduce& reduce = reduces_[a.stage];
    if (std::find(reduce.waiting.begin(), reduce.waiting.end(), rank) != reduce.waiting.end()) {
      return false;
    }
    reduce.waiting.push_back(rank);
    reduce.last_arrival = std::max(reduce.last_arrival, ranks_[rank].free);
    if (reduce.waiting.size() < input_.placement.ranks[a.stage].size()) return false;
    std::sort(reduce.waiting.begin(), reduce.waiting.end());
    for (const int peer : reduce.waiting) {
      Finish(peer, reduce.last_arrival + input_.stage_costs[a.stage].reduce_ms);
    }
    return true;
  }

  void Finish(int rank, double end) {
    Rank& r = ranks_[rank];
    const int index = r.next++;
    const Action& a = schedule_.ranks[rank][index];
    const bool computes = a.kind <= ActionKind::kBackwardWeight || a.kind == ActionKind::kStep;
    RankUse& use = result_.ranks[rank];
    if (computes) use.busy_ms += end - r.free;
    UpdateMemory(r, a);
    const int64_t live = r.memory.live();
    const int64_t scratch =
        a.kind <= ActionKind::kBackwardWeight ? input_.stage_memory[a.stage].temporary_bytes : 0;
    // Scratch comes on top of what is held on either side of the compute.
    use.peak_bytes =
        std::max(use.peak_bytes, std::max(live, r.live_before) + scratch + use.optimizer_bytes);
    r.live_before = live;
    use.gradient_bytes = r.gradient_bytes;
    use.activation_bytes =
        std::max(use.activation_bytes, live - use.weight_bytes - r.gradient_bytes);
    result_.events.push_back({rank, index, a, StreamOf(a.kind), r.free, end, live, {}});
    r.free = end;
  }

  void UpdateMemory(Rank& r, const Action& a) {
    const StageMemory& memory = input_.stage_memory[a.stage];
    const int s = a.stage;
    const int j = a.micro_batch;
    switch (a.kind) {
      case ActionKind::kForward:
        r.memory.Acquire(s, j, shared_saved_[s]);
        r.memory.AddFixed(saved_alone_[s]);
        r.memory.Acquire(s, j, memory.results);
        for (const int e : out_edges_[s]) r.memory.Acquire(s, j, input_.edge_memory[e].sent);
        for (const int e : in_edges_[s]) r.memory.Release(s, j, input_.edge_memory[e].received);
        break;
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
        HoldGradients(r, s);
        if (a.kind != ActionKind::kBackwardWeight) {
          for (const int e : out_edges_[s]) r.memory.AddFixed(-GradientBytes(e));
          for (const int e : in_edges_[s]) r.memory.AddFixed(GradientBytes(e));
        }
        if (a.kind != ActionKind::kBackwardInput) {
          r.memory.Release(s, j, shared_saved_[s]);
          r.memory.AddFixed(-saved_alone_[s]);
        }
        break;
      case ActionKind::kRecvActivation:
        r.memory.Acquire(s, j, input_.edge_memory[EdgeOf(a)].received);
        break;
      case ActionKind::kWaitActivation:
        r.memory.Release(s, j, input_.edge_memory[EdgeOf(a)].sent);
        break;
      case ActionKind::kRecvGradient:
        r.memory.AddFixed(GradientBytes(EdgeOf(a)));
        break;
      case ActionKind::kWaitGradient:
        r.memory.AddFixed(-GradientBytes(EdgeOf(a)));
        break;
      case ActionKind::kReduce:
        HoldGradients(r, s);  // a replica without micro-batches gets the others' sum
        break;
      default:
        break;
    }
  }

  void HoldGradients(Rank& r, int stage) {
    if (r.has_gradients[stage]) return;
    const int64_t bytes = input_.stage_memory[stage].gradient_bytes;
    r.has_gradients[stage] = true;
    r.gradient_bytes += bytes;
    r.memory.AddFixed(bytes);
  }

  int64_t GradientBytes(int edge) const {
    return input_.edges[edge].has_gradient ? input_.edge_memory[edge].gradient_bytes : 0;
  }

  Message& MessageOf(const Action& a) {
    const bool gradient = a.kind == ActionKind::kSendGradient ||
                          a.kind == ActionKind::kRecvGradient ||
                          a.kind == ActionKind::kWaitGradient;
    return messages_[EdgeOf(a)][2 * a.micro_batch + gradient];
  }

  absl::Status Hang() const {
    std::string text = "the schedule hangs:";
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::vector<Action>& list = schedule_.ranks[rank];
      if (Done(rank)) {
        absl::StrAppend(&text, " rank ", rank, " has ended;");
      } else {
        absl::StrAppend(&text, " rank ", rank, " waits at ", ToString(list[ranks_[rank].next]),
                        " (action ", ranks_[rank].next, " of ", list.size(), ");");
      }
    }
    text.pop_back();
    return absl::InternalError(text);
  }

  const Schedule& schedule_;
  const SimulationInput& input_;
  const int p_;
  std::vector<int> edge_index_;
  std::vector<std::vector<int>> in_edges_, out_edges_;  // by stage
  std::vector<std::vector<Message>> messages_;          // [edge][2 * micro-batch + gradient]
  std::vector<std::vector<HeldStorage>> shared_saved_;  // by stage
  std::vector<int64_t> saved_alone_;
  std::vector<Rank> ranks_;
  std::vector<Reduce> reduces_;
  Simulation result_;
};

}  // namespace

absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const SimulationInput& input) {
  const size_t p = input.placement.num_stages();
  if (input.stage_costs.size() != p || input.stage_memory.size() != p ||
      input.edge_costs.size() != input.edges.size() ||
      input.edge_memory.size() != input.edges.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "simulation input of ", p, " stages and ", input.edges.size(), " edges has ",
        input.stage_costs.size(), " stage costs, ", input.stage_memory.size(), " stage memories, ",
        input.edge_costs.size(), " edge costs, ", input.edge_memory.size(), " edge memories"));
  }
  if (absl::Status s = Validate(schedule, input.placement, input.edges); !s.ok()) return s;
  return Simulator(schedule, input).Run();
}

}  // namespace autopart
