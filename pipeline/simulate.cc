// A discrete-event simulation (see Law, Simulation Modeling and Analysis, chapter 1): a queue of
// what will happen, by time and then by order of being known, and one handler for each kind.
#include "pipeline/simulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <queue>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "pipeline/internal/compute_ms.h"
#include "pipeline/links.h"

namespace autopart {
namespace {

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

// Makes the gradients of parameters.
bool MakesGradients(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
}

bool IsReceive(ActionKind kind) {
  return kind == ActionKind::kRecvActivation || kind == ActionKind::kRecvGradient;
}

// The bytes of a rank, after each of its actions. Knows no time.
class RankMemory {
 public:
  // The storages of a stage that this rank holds; micro-batches are those of its replica.
  void AddStage(int stage, const StageMemory& memory, int replicas, int micro_batches,
                const std::vector<StageEdge>& edges) {
    Held held;
    held.memory = &memory;
    held.replicas = replicas;
    held.holders.assign(memory.storages.size() * ((micro_batches + replicas - 1) / replicas), 0);
    for (const StageEdge& edge : edges) {
      if (!edge.has_gradient) continue;
      if (edge.from == stage) held.gradients_in += edge.gradient_bytes;
      if (edge.to == stage) held.gradients_out += edge.gradient_bytes;
    }
    live_.weights += memory.weight_bytes;
    live_.optimizer += memory.optimizer_bytes;
    stages_[stage] = std::move(held);
  }

  // gradient_bytes: of the message that the action sends or receives.
  void After(const Action& a, int64_t gradient_bytes) {
    Held& held = stages_[a.stage];
    switch (a.kind) {
      case ActionKind::kForward:
        ForEach(held, a, [&](const StageStorage& s, uint16_t& holders) {
          Acquire(s, holders, s.saved + s.result + s.sent_to.size());
          Release(s, holders, s.received_from.size());
        });
        break;
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
        HoldGradients(held);
        if (a.kind != ActionKind::kBackwardWeight) {
          live_.buffers += held.gradients_out - held.gradients_in;
        }
        if (a.kind != ActionKind::kBackwardInput) {
          ForEach(held, a,
                  [&](const StageStorage& s, uint16_t& holders) { Release(s, holders, s.saved); });
        }
        break;
      case ActionKind::kRecvActivation:
        ForEach(held, a, [&](const StageStorage& s, uint16_t& holders) {
          Acquire(s, holders, Names(s.received_from, a.peer_stage));
        });
        break;
      case ActionKind::kWaitActivation:
        ForEach(held, a, [&](const StageStorage& s, uint16_t& holders) {
          Release(s, holders, Names(s.sent_to, a.peer_stage));
        });
        break;
      case ActionKind::kRecvGradient:
        live_.buffers += gradient_bytes;
        break;
      case ActionKind::kWaitGradient:
        live_.buffers -= gradient_bytes;
        break;
      case ActionKind::kReduce:
        HoldGradients(held);  // a replica without micro-batches gets the others' sum
        break;
      default:
        break;
    }
  }

  const MemoryByKind& live() const { return live_; }

 private:
  struct Held {
    const StageMemory* memory = nullptr;
    int replicas = 1;
    std::vector<uint16_t> holders;                // [micro-batch of the replica][storage]
    int64_t gradients_in = 0, gradients_out = 0;  // messages of one micro-batch
    bool has_gradients = false;
  };

  static int Names(const std::vector<int>& stages, int stage) {
    return std::binary_search(stages.begin(), stages.end(), stage);
  }

  template <typename F>
  static void ForEach(Held& held, const Action& a, F f) {
    const std::vector<StageStorage>& storages = held.memory->storages;
    uint16_t* holders = &held.holders[(a.micro_batch / held.replicas) * storages.size()];
    for (size_t i = 0; i < storages.size(); ++i) f(storages[i], holders[i]);
  }

  int64_t& KindOf(const StageStorage& s) {
    return s.is_activation() ? live_.activations : live_.buffers;
  }
  void Acquire(const StageStorage& s, uint16_t& holders, int count) {
    if (count > 0 && holders == 0) KindOf(s) += s.bytes;
    holders += count;
  }
  void Release(const StageStorage& s, uint16_t& holders, int count) {
    if (count == 0) return;
    holders -= count;
    if (holders == 0) KindOf(s) -= s.bytes;
  }
  void HoldGradients(Held& held) {
    if (held.has_gradients) return;
    held.has_gradients = true;
    live_.gradients += held.memory->gradient_bytes;
  }

  MemoryByKind live_;  // the optimizer's state from the start, buffers without scratch
  std::map<int, Held> stages_;
};

class Simulator {
 public:
  Simulator(const Schedule& schedule, const SimulationInput& input)
      : schedule_(schedule), input_(input), p_(input.placement.num_stages()) {
    const int m = input.placement.micro_batches;
    if (!input.cluster.hosts.empty()) {
      places_ = input.places.empty() ? PlacesOf(input.cluster) : input.places;
    }
    edge_index_.assign(p_ * p_, -1);
    for (size_t e = 0; e < input.edges.size(); ++e) {
      edge_index_[input.edges[e].from * p_ + input.edges[e].to] = e;
    }
    messages_.resize(input.edges.size() * 2 * m);
    ranks_.resize(schedule.ranks.size());
    result_.ranks.resize(schedule.ranks.size());
    for (int s = 0; s < p_; ++s) {
      const std::vector<int>& ranks = input.placement.ranks[s];
      for (const int rank : ranks) {
        const StageMemory& memory = input.stage_memory[s];
        ranks_[rank].memory.AddStage(s, memory, ranks.size(), m, input.edges);
        RankUse& use = result_.ranks[rank];
        use.weight_bytes += memory.weight_bytes;
        use.optimizer_bytes += memory.optimizer_bytes;
      }
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      result_.ranks[r].peak = ranks_[r].memory.live();
      result_.ranks[r].peak_bytes = result_.ranks[r].peak.total();
    }
    PrepareReceives();
    PrepareReductions();
  }

  absl::StatusOr<Simulation> Run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) Advance(rank, 0);
    while (!queue_.empty()) {
      const Happening next = queue_.top();
      queue_.pop();
      switch (next.what) {
        case What::kActionEnds:
          Finish(next.id, next.ms);
          Advance(next.id, next.ms);
          break;
        case What::kWayIsFree:
          StartWaiting(next.id, next.ms);
          break;
        case What::kMessageArrives:
          Arrive(next.id, next.ms);
          break;
        case What::kGradientsReady:
          GradientsReady(next.id, next.more, next.ms);
          break;
        case What::kBucketEnds:
          BucketEnds(next.id, next.ms);
          break;
      }
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!Done(rank)) return Hang();
    }
    for (const Event& e : result_.events) {
      result_.makespan_ms = std::max(result_.makespan_ms, e.end_ms);
    }
    for (RankUse& use : result_.ranks) use.idle_ms = result_.makespan_ms - use.busy_ms;
    std::stable_sort(result_.transfers.begin(), result_.transfers.end(),
                     [](const Transfer& a, const Transfer& b) { return a.start_ms < b.start_ms; });
    std::stable_sort(
        result_.reduce_spans.begin(), result_.reduce_spans.end(),
        [](const ReduceSpan& a, const ReduceSpan& b) { return a.start_ms < b.start_ms; });
    return std::move(result_);
  }

 private:
  enum class What { kActionEnds, kWayIsFree, kMessageArrives, kGradientsReady, kBucketEnds };
  struct Happening {
    double ms;
    int64_t order;  // of being known
    What what;
    int id;        // rank, way, message or reduction
    int more = 0;  // bucket
  };
  struct Later {
    bool operator()(const Happening& a, const Happening& b) const {
      return std::tie(a.ms, a.order) > std::tie(b.ms, b.order);
    }
  };

  struct Message {
    bool sent = false, posted = false, queued = false, arrived = false;
    bool peer_waits = false;      // the sender stands at its WAIT
    bool receiver_waits = false;  // the receiver stands at its RECV
    int transfer = -1;            // into result_.transfers
  };
  // One direction of a link: carries one message at a time.
  struct Way {
    double free_ms = 0;
    std::vector<int> waiting;  // messages, in the order in which they were ready
  };
  struct Rank {
    size_t next = 0;
    double start_ms = 0;   // of the next action
    bool reduces = false;  // stands at a REDUCE
    RankMemory memory;
    std::map<std::pair<int, bool>, std::vector<int>> receives;  // (edge, gradient) -> messages
    std::map<std::pair<int, bool>, int> received;
    std::vector<int> reductions;        // that it takes part in
    std::map<int, int> backwards_left;  // stage -> actions that make gradients, still to start
  };
  struct ReductionState {
    std::vector<int> ranks;  // ascending
    int buckets = 1;
    bool early = false;  // buckets start during the backward
    double bucket_ms = 0;
    std::vector<int> ready;         // ranks, by bucket
    std::map<int, int> buckets_of;  // rank -> buckets that it has ready
    int ended = 0;
    double free_ms = 0;
  };

  void Push(double ms, What what, int id, int more = 0) {
    queue_.push({ms, order_++, what, id, more});
  }

  bool Done(int rank) const { return ranks_[rank].next == schedule_.ranks[rank].size(); }

  int EdgeOf(const Action& a) const {
    return a.stage < a.peer_stage ? edge_index_[a.stage * p_ + a.peer_stage]
                                  : edge_index_[a.peer_stage * p_ + a.stage];
  }
  static bool IsGradient(ActionKind kind) {
    return kind == ActionKind::kSendGradient || kind == ActionKind::kRecvGradient ||
           kind == ActionKind::kWaitGradient;
  }
  int MessageId(const Action& a) const {
    return (EdgeOf(a) * input_.placement.micro_batches + a.micro_batch) * 2 + IsGradient(a.kind);
  }
  int64_t GradientBytes(const Action& a) const {
    if (a.peer_stage < 0) return 0;
    const StageEdge& edge = input_.edges[EdgeOf(a)];
    return edge.has_gradient ? edge.gradient_bytes : 0;
  }

  void PrepareReceives() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      Rank& r = ranks_[rank];
      for (const Action& a : schedule_.ranks[rank]) {
        if (IsReceive(a.kind)) {
          r.receives[{EdgeOf(a), IsGradient(a.kind)}].push_back(MessageId(a));
        } else if (MakesGradients(a.kind)) {
          ++r.backwards_left[a.stage];
        }
      }
      for (const auto& [key, messages] : r.receives) {
        for (int i = 0; i < std::min<int>(messages.size(), input_.receives_ahead); ++i) {
          messages_[messages[i]].posted = true;
        }
      }
    }
  }

  void PrepareReductions() {
    reductions_of_.resize(p_);
    std::map<int, int> rings_at;  // host -> reductions that leave it
    std::vector<std::vector<int>> hosts_of(input_.reductions.size());
    for (size_t i = 0; i < input_.reductions.size(); ++i) {
      const Reduction& reduction = input_.reductions[i];
      ReductionState state;
      for (const int s : reduction.stages) {
        const std::vector<int>& ranks = input_.placement.ranks[s];
        state.ranks.insert(state.ranks.end(), ranks.begin(), ranks.end());
        reductions_of_[s].push_back(i);
      }
      std::sort(state.ranks.begin(), state.ranks.end());
      state.ranks.erase(std::unique(state.ranks.begin(), state.ranks.end()), state.ranks.end());
      for (const int rank : state.ranks) ranks_[rank].reductions.push_back(i);
      state.early = input_.reduce_bucket_bytes > 0 && reduction.stages.size() == 1;
      if (state.early) {
        state.buckets = std::clamp<int64_t>(
            (reduction.bytes + input_.reduce_bucket_bytes - 1) / input_.reduce_bucket_bytes, 1,
            internal::kMostReduceBuckets);
      }
      state.ready.assign(state.buckets, 0);
      if (!places_.empty()) {
        for (const int rank : state.ranks) hosts_of[i].push_back(places_[rank].host);
        hosts_of[i].erase(std::unique(hosts_of[i].begin(), hosts_of[i].end()), hosts_of[i].end());
        if (hosts_of[i].size() > 1) {
          for (const int host : hosts_of[i]) ++rings_at[host];
        }
      }
      reductions_.push_back(std::move(state));
    }
    for (size_t i = 0; i < reductions_.size(); ++i) {
      int rings = 1;
      if (hosts_of[i].size() > 1) {
        for (const int host : hosts_of[i]) rings = std::max(rings, rings_at[host]);
      }
      ReductionState& state = reductions_[i];
      state.bucket_ms = !input_.reduction_ms.empty() ? input_.reduction_ms[i] / state.buckets
                        : places_.empty()
                            ? 0
                            : AllReduceMs(input_.cluster, places_, state.ranks,
                                          input_.reductions[i].bytes / state.buckets, rings);
    }
  }

  double ComputeMs(int rank, const Action& a) const {
    const double ms = internal::ComputeMs(input_.stage_costs[a.stage], a.kind);
    return input_.rank_slowness.empty() ? ms : ms * input_.rank_slowness[rank];
  }

  // Starts the next actions of a rank until one takes time or has to wait.
  void Advance(int rank, double now) {
    Rank& r = ranks_[rank];
    while (!Done(rank)) {
      const Action& a = schedule_.ranks[rank][r.next];
      if (!r.reduces) r.start_ms = now;
      switch (a.kind) {
        case ActionKind::kSendActivation:
        case ActionKind::kSendGradient:
          messages_[MessageId(a)].sent = true;
          Finish(rank, now);
          Offer(MessageId(a), now);
          break;
        case ActionKind::kRecvActivation:
        case ActionKind::kRecvGradient: {
          Message& message = messages_[MessageId(a)];
          if (!message.arrived) {
            message.posted = message.receiver_waits = true;
            Offer(MessageId(a), now);
            return;
          }
          Finish(rank, now);
          break;
        }
        case ActionKind::kWaitActivation:
        case ActionKind::kWaitGradient: {
          Message& message = messages_[MessageId(a)];
          if (!message.arrived) {
            message.peer_waits = true;
            return;
          }
          Finish(rank, now);
          break;
        }
        case ActionKind::kReduce:
          // This may end the reduction now, and with it this action.
          if (!r.reduces) {
            r.reduces = true;
            OfferGradients(rank, now);
          }
          if (!Reduced(a.stage)) return;
          r.reduces = false;
          Finish(rank, now);
          break;
        default: {
          const double ms = ComputeMs(rank, a);
          if (MakesGradients(a.kind) && --r.backwards_left[a.stage] == 0) {
            SpreadGradients(rank, a, now, ms);
          }
          Push(now + ms, What::kActionEnds, rank);
          return;
        }
      }
    }
  }

  // At its first REDUCE a rank gives all gradients that are made, or another order of the stages on
  // another rank would hang.
  void OfferGradients(int rank, double now) {
    Rank& r = ranks_[rank];
    for (const int i : r.reductions) {
      const std::vector<int>& stages = input_.reductions[i].stages;
      const bool made = std::all_of(stages.begin(), stages.end(), [&](int s) {
        const auto left = r.backwards_left.find(s);
        return left == r.backwards_left.end() || left->second == 0;
      });
      if (!made) continue;
      for (int b = reductions_[i].buckets_of[rank]; b < reductions_[i].buckets; ++b) {
        Push(now, What::kGradientsReady, i, rank);
      }
    }
  }

  bool Reduced(int stage) const {
    return std::all_of(reductions_of_[stage].begin(), reductions_of_[stage].end(),
                       [&](int i) { return reductions_[i].ended == reductions_[i].buckets; });
  }

  // The gradients of the rank's last backward become ready evenly over it.
  void SpreadGradients(int rank, const Action& a, double now, double ms) {
    for (const int i : reductions_of_[a.stage]) {
      if (!reductions_[i].early) continue;
      const int buckets = reductions_[i].buckets;
      for (int b = 0; b < buckets; ++b) {
        Push(now + ms * (b + 1) / buckets, What::kGradientsReady, i, rank);
      }
    }
  }

  void GradientsReady(int reduction, int rank, double now) {
    ReductionState& state = reductions_[reduction];
    int& done = state.buckets_of[rank];
    if (done == state.buckets) return;  // told before, by the backward
    const int bucket = done++;
    if (++state.ready[bucket] < static_cast<int>(state.ranks.size())) return;
    const double start = std::max(now, state.free_ms);
    state.free_ms = start + state.bucket_ms;
    result_.reduce_spans.push_back({reduction, bucket, start, state.free_ms});
    Push(state.free_ms, What::kBucketEnds, reduction);
  }

  void BucketEnds(int reduction, double now) {
    ReductionState& state = reductions_[reduction];
    if (++state.ended < state.buckets) return;
    for (const int rank : state.ranks) {
      if (!Done(rank) && ranks_[rank].reduces) Advance(rank, now);
    }
  }

  // The out and in ways between two ranks; none within a rank or where transfers are free.
  std::pair<int, int> WaysOf(int from, int to) {
    const DevicePlace& a = places_[from];
    const DevicePlace& b = places_[to];
    const auto way = [&](bool network, bool in, int rank, const DevicePlace& place) {
      const HostGroup& hosts = input_.cluster.hosts[place.host_group];
      const bool shared = network ? hosts.network.shared : hosts.link.shared;
      const auto key = std::tuple(network, in, shared, shared ? place.host : rank);
      const auto [it, fresh] = way_ids_.emplace(key, ways_.size());
      if (fresh) ways_.emplace_back();
      return it->second;
    };
    const bool network = a.host != b.host;
    return {way(network, false, from, a), way(network, true, to, b)};
  }

  // A message that is sent and posted takes its way, or queues for it.
  void Offer(int id, double now) {
    Message& message = messages_[id];
    if (!message.sent || !message.posted || message.queued) return;
    message.queued = true;
    const bool gradient = id % 2 == 1;
    const int j = id / 2 % input_.placement.micro_batches;
    const StageEdge& edge = input_.edges[id / 2 / input_.placement.micro_batches];
    Transfer transfer;
    transfer.from_stage = gradient ? edge.to : edge.from;
    transfer.to_stage = gradient ? edge.from : edge.to;
    transfer.micro_batch = j;
    transfer.from_rank = input_.placement.RankOf(transfer.from_stage, j);
    transfer.to_rank = input_.placement.RankOf(transfer.to_stage, j);
    transfer.bytes = gradient ? edge.gradient_bytes : edge.bytes;
    message.transfer = result_.transfers.size();
    result_.transfers.push_back(transfer);
    if (places_.empty() || transfer.from_rank == transfer.to_rank) {
      result_.transfers.back().start_ms = now;
      Push(now, What::kMessageArrives, id);
      return;
    }
    const auto [out, in] = WaysOf(transfer.from_rank, transfer.to_rank);
    ways_[out].waiting.push_back(id);
    ways_[in].waiting.push_back(id);
    StartIfFree(id, now);
  }

  void StartIfFree(int id, double now) {
    Transfer& transfer = result_.transfers[messages_[id].transfer];
    const auto [out, in] = WaysOf(transfer.from_rank, transfer.to_rank);
    if (ways_[out].free_ms > now || ways_[in].free_ms > now) return;
    const LinkSpec link =
        LinkBetween(input_.cluster, places_[transfer.from_rank], places_[transfer.to_rank]);
    transfer.start_ms = now;
    const double free = now + OccupiedMs(link, transfer.bytes);
    for (const int way : {out, in}) {
      std::vector<int>& waiting = ways_[way].waiting;
      waiting.erase(std::find(waiting.begin(), waiting.end(), id));
      ways_[way].free_ms = free;
      Push(free, What::kWayIsFree, way);
    }
    Push(free + link.latency_ms, What::kMessageArrives, id);
  }

  void StartWaiting(int way, double now) {
    const std::vector<int> waiting = ways_[way].waiting;
    for (const int id : waiting) {
      if (ways_[way].free_ms > now) return;
      StartIfFree(id, now);
    }
  }

  void Arrive(int id, double now) {
    Message& message = messages_[id];
    message.arrived = true;
    Transfer& transfer = result_.transfers[message.transfer];
    transfer.end_ms = now;
    const int from = transfer.from_rank;
    const int to = transfer.to_rank;
    if (message.receiver_waits) {
      Finish(to, now);
      Advance(to, now);
    }
    if (message.peer_waits) {
      Finish(from, now);
      Advance(from, now);
    }
  }

  void Finish(int rank, double end) {
    Rank& r = ranks_[rank];
    const int index = r.next++;
    const Action& a = schedule_.ranks[rank][index];
    const StageMemory& stage = input_.stage_memory[a.stage];
    RankUse& use = result_.ranks[rank];
    if (a.kind <= ActionKind::kBackwardWeight || a.kind == ActionKind::kStep) {
      const double ms = end - r.start_ms;
      use.busy_ms += ms;
      if (a.kind == ActionKind::kStep) use.optimizer_ms += ms;
      if (a.kind == ActionKind::kBackward || a.kind == ActionKind::kBackwardInput) {
        const double factor = input_.rank_slowness.empty() ? 1 : input_.rank_slowness[rank];
        use.recompute_ms += factor * input_.stage_costs[a.stage].recompute_ms;
      }
    }
    const MemoryByKind before = r.memory.live();
    r.memory.After(a, GradientBytes(a));
    const MemoryByKind& live = r.memory.live();
    // Scratch comes on top of what is held on either side of the compute.
    const int64_t scratch = a.kind <= ActionKind::kBackwardWeight ? stage.temporary_bytes : 0;
    MemoryByKind fuller = live.total() >= before.total() ? live : before;
    fuller.buffers += scratch;
    if (fuller.total() > use.peak_bytes) {
      use.peak_bytes = fuller.total();
      use.peak = fuller;
    }
    use.gradient_bytes = live.gradients;
    use.activation_bytes = std::max(use.activation_bytes, live.activations + live.buffers);
    result_.events.push_back(
        {rank, index, a, StreamOf(a.kind), r.start_ms, end, live.total() - live.optimizer, live});
    if (IsReceive(a.kind)) {
      const std::pair<int, bool> key(EdgeOf(a), IsGradient(a.kind));
      const std::vector<int>& receives = r.receives[key];
      const size_t next = r.received[key]++ + input_.receives_ahead;
      if (input_.receives_ahead > 0 && next < receives.size()) {
        messages_[receives[next]].posted = true;
        Offer(receives[next], end);
      }
    }
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
  std::vector<DevicePlace> places_;  // by rank; empty: transfers take no time
  std::vector<int> edge_index_;
  std::vector<Message> messages_;  // [edge][micro-batch][gradient]
  std::map<std::tuple<bool, bool, bool, int>, int> way_ids_;
  std::vector<Way> ways_;
  std::vector<std::vector<int>> reductions_of_;  // by stage
  std::vector<ReductionState> reductions_;
  std::vector<Rank> ranks_;
  std::priority_queue<Happening, std::vector<Happening>, Later> queue_;
  int64_t order_ = 0;
  Simulation result_;
};

}  // namespace

absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const SimulationInput& input) {
  const size_t p = input.placement.num_stages();
  if (input.stage_costs.size() != p || input.stage_memory.size() != p) {
    return absl::InvalidArgumentError(absl::StrCat("simulation input of ", p, " stages has ",
                                                   input.stage_costs.size(), " stage costs and ",
                                                   input.stage_memory.size(), " stage memories"));
  }
  const int devices = input.cluster.num_devices();
  if (!input.cluster.hosts.empty() && input.places.empty() && devices < input.placement.num_ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "simulation input of ", input.placement.num_ranks, " ranks has ", devices, " devices"));
  }
  if ((!input.places.empty() && input.places.size() != schedule.ranks.size()) ||
      (!input.reduction_ms.empty() && input.reduction_ms.size() != input.reductions.size())) {
    return absl::InvalidArgumentError(
        "simulation input: places or times of reductions are missing");
  }
  for (const Reduction& reduction : input.reductions) {
    for (const int s : reduction.stages) {
      if (s >= 0 && s < static_cast<int>(p)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("simulation input of ", p, " stages has a reduction of stage ", s));
    }
  }
  if (absl::Status s = Validate(schedule, input.placement, input.edges); !s.ok()) return s;
  return Simulator(schedule, input).Run();
}

}  // namespace autopart
