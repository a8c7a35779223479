#include "pipeline/simulate.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"

namespace autopart {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

StageStorage Saved(int64_t bytes) { return {bytes, true, false, {}, {}}; }

// A chain of p stages, each a rank, forward 1 and full backward 2, messages free.
SimulationInput UnitChain(int p, int m) {
  SimulationInput input;
  input.placement.num_ranks = p;
  input.placement.micro_batches = m;
  for (int s = 0; s < p; ++s) input.placement.ranks.push_back({s});
  for (int s = 0; s + 1 < p; ++s) input.edges.push_back({s, s + 1, {s}, true});
  input.stage_costs.assign(p, {1, 1, 1, 0, 0});
  input.stage_memory.resize(p);
  // One byte a micro-batch between forward and backward: live bytes count live micro-batches.
  for (StageMemory& memory : input.stage_memory) memory.storages = {Saved(1)};
  return input;
}

// Hosts of so many devices; a byte takes 1 ms on a link within a host, and on a network.
Cluster SlowCluster(int hosts, int devices) {
  Cluster cluster;
  HostGroup group;
  group.count = hosts;
  group.devices = {{DeviceSpec(), devices}};
  group.link = group.network = {1, 0, false};
  cluster.hosts = {group};
  return cluster;
}

absl::StatusOr<Simulation> RunChain(std::string_view name, const SimulationInput& input) {
  absl::StatusOr<Schedule> compute = GenerateSchedule(name, input.placement);
  if (!compute.ok()) return compute.status();
  absl::StatusOr<Schedule> lowered = Lower(*compute, input.placement, input.edges);
  if (!lowered.ok()) return lowered.status();
  return Simulate(*lowered, input);
}

TEST(Makespan, IsThatOfThePapers) {
  struct Row {
    int p, m;
    double makespan;
  };
  for (const Row& row : {Row{2, 4, 15}, {2, 8, 27}, {4, 8, 33}, {4, 16, 57}, {8, 16, 69}}) {
    for (const char* name : {"gpipe", "1f1b"}) {
      const absl::StatusOr<Simulation> simulation = RunChain(name, UnitChain(row.p, row.m));
      ASSERT_TRUE(simulation.ok()) << simulation.status();
      EXPECT_EQ(simulation->makespan_ms, row.makespan) << name << " " << row.p << " " << row.m;
      for (const RankUse& use : simulation->ranks) {
        EXPECT_EQ(use.busy_ms, 3 * row.m);
        EXPECT_EQ(use.idle_ms, row.makespan - 3 * row.m);
      }
    }
  }
}

// m (F + I + W) + (p - 1) F, the bound of one isolated step.
TEST(Makespan, OfZeroBubbleH1MeetsTheBoundWhileNoStageHoldsMoreThanTheFirst) {
  for (const auto& [p, m] : {std::pair(2, 4), {2, 8}, {4, 8}, {4, 16}, {8, 16}}) {
    const absl::StatusOr<Simulation> simulation = RunChain("zb-h1", UnitChain(p, m));
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    EXPECT_EQ(simulation->makespan_ms, 3 * m + p - 1) << p << " stages, " << m;
    for (const RankUse& use : simulation->ranks) {
      EXPECT_EQ(use.busy_ms, 3 * m);
      EXPECT_EQ(use.activation_bytes, p);
    }
  }
}

// 2 p chunks of half a stage, on ranks that `rank_of` gives.
template <typename RankOf>
SimulationInput HalfStages(int p, int m, RankOf rank_of) {
  SimulationInput input = UnitChain(2 * p, m);
  input.placement.num_ranks = p;
  for (int s = 0; s < 2 * p; ++s) input.placement.ranks[s] = {rank_of(s)};
  input.stage_costs.assign(2 * p, {0.5, 0.5, 0.5, 0, 0});
  return input;
}

TEST(Makespan, OfInterleavedHalfStagesIsThatOfThePaper) {
  struct Row {
    int p, m;
    double makespan;
    int first, last;  // live half micro-batches
  };
  for (const Row& row : {Row{2, 4, 13.5, 5, 3},
                         {2, 8, 25.5, 5, 3},
                         {4, 8, 28.5, 11, 5},
                         {4, 16, 52.5, 11, 5},
                         {8, 16, 58.5, 23, 9}}) {
    const absl::StatusOr<Simulation> simulation =
        RunChain("interleaved", HalfStages(row.p, row.m, [&](int s) { return s % row.p; }));
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    EXPECT_EQ(simulation->makespan_ms, row.makespan) << row.p << " " << row.m;
    EXPECT_EQ(simulation->ranks.front().activation_bytes, row.first);
    EXPECT_EQ(simulation->ranks.back().activation_bytes, row.last);
  }
}

// m (F + I + W) + (p - 1) F / 2, the bound of a V.
TEST(Makespan, OfZeroBubbleVMeetsTheBoundWithAsMuchMemoryAs1F1B) {
  for (const auto& [p, m] : {std::pair(2, 4), {2, 8}, {4, 8}, {4, 16}, {8, 16}}) {
    const absl::StatusOr<Simulation> simulation =
        RunChain("zb-v", HalfStages(p, m, [p = p](int s) { return std::min(s, 2 * p - 1 - s); }));
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    EXPECT_EQ(simulation->makespan_ms, 3 * m + (p - 1) * 0.5) << p << " stages, " << m;
    for (const RankUse& use : simulation->ranks) EXPECT_EQ(use.activation_bytes, 2 * p);
  }
}

TEST(LiveMicroBatches, AreAllInGPipeAndStagesToTheEndIn1F1B) {
  for (const auto& [p, m] : {std::pair(2, 4), {4, 8}, {8, 16}, {4, 2}}) {
    const Simulation gpipe = *RunChain("gpipe", UnitChain(p, m));
    const Simulation one_f_one_b = *RunChain("1f1b", UnitChain(p, m));
    for (int r = 0; r < p; ++r) {
      EXPECT_EQ(gpipe.ranks[r].activation_bytes, m);
      EXPECT_EQ(one_f_one_b.ranks[r].activation_bytes, std::min(m, p - r));
    }
  }
}

TEST(Messages, DelayTheReceiverOnly) {
  SimulationInput input = UnitChain(2, 1);
  input.cluster = SlowCluster(1, 2);
  input.cluster.hosts[0].link = {200, 0.125, false};
  input.edges[0].bytes = 25;
  input.edges[0].gradient_bytes = 75;
  const Simulation simulation = *RunChain("1f1b", input);
  // F 0..1, message ..1.25, F ..2.25, B ..4.25, message ..4.75, B ..6.75
  EXPECT_DOUBLE_EQ(simulation.makespan_ms, 6.75);
  EXPECT_DOUBLE_EQ(simulation.ranks[0].busy_ms, 3);
  EXPECT_DOUBLE_EQ(simulation.ranks[0].idle_ms, 3.75);
}

TEST(Reduce, StartsWhenAllReplicasAreThere) {
  SimulationInput input = UnitChain(1, 3);
  input.placement.ranks = {{0, 1}};  // rank 0 does micro-batches 0 and 2, rank 1 micro-batch 1
  input.placement.num_ranks = 2;
  input.cluster = SlowCluster(1, 2);
  input.reductions = {{{0}, 5}};  // two ranks move 2 (n - 1) / n = 1 of the bytes
  input.stage_costs[0].step_ms = 0.5;
  const Simulation simulation = *RunChain("1f1b", input);
  EXPECT_DOUBLE_EQ(simulation.makespan_ms, 6 + 5 + 0.5);
  EXPECT_DOUBLE_EQ(simulation.ranks[1].busy_ms, 3.5);
  EXPECT_DOUBLE_EQ(simulation.ranks[1].optimizer_ms, 0.5);
}

TEST(Reduce, InBucketsHidesBehindTheLastBackward) {
  SimulationInput input = UnitChain(1, 2);
  input.placement.ranks = {{0, 1}};
  input.placement.num_ranks = 2;
  input.cluster = SlowCluster(1, 2);
  input.reductions = {{{0}, 2}};
  EXPECT_DOUBLE_EQ(RunChain("1f1b", input)->makespan_ms, 3 + 2);
  // The backward runs from 1 to 3; its halves' gradients are there at 2 and 3.
  input.reduce_bucket_bytes = 1;
  const Simulation simulation = *RunChain("1f1b", input);
  EXPECT_DOUBLE_EQ(simulation.makespan_ms, 3 + 1);
  ASSERT_EQ(simulation.reduce_spans.size(), 2u);
  EXPECT_DOUBLE_EQ(simulation.reduce_spans[0].start_ms, 2);
  EXPECT_DOUBLE_EQ(simulation.reduce_spans[1].start_ms, 3);
}

TEST(Links, ThatDevicesShareCarryOneMessageAtATime) {
  // Two pipelines of two stages from one host to another, each with its own network or all with
  // one.
  SimulationInput input = UnitChain(2, 2);
  input.placement.ranks = {{0, 1}, {2, 3}};
  input.placement.num_ranks = 4;
  input.edges[0].bytes = 4;
  input.edges[0].has_gradient = false;
  input.cluster = SlowCluster(2, 2);
  // F 0..1, message ..5, F ..6, B ..8
  EXPECT_DOUBLE_EQ(RunChain("1f1b", input)->makespan_ms, 8);
  input.cluster.hosts[0].network.shared = true;
  const Simulation simulation = *RunChain("1f1b", input);
  EXPECT_DOUBLE_EQ(simulation.makespan_ms, 12);  // the second message from 5 to 9
  ASSERT_EQ(simulation.transfers.size(), 2u);
  EXPECT_DOUBLE_EQ(simulation.transfers[1].start_ms, 5);
}

TEST(Recompute, RunsBeforeTheBackwardAndCountsAsWork) {
  SimulationInput input = UnitChain(2, 1);
  input.stage_costs[0].recompute_ms = 0.5;
  const Simulation simulation = *RunChain("1f1b", input);
  EXPECT_DOUBLE_EQ(simulation.makespan_ms, 6.5);
  EXPECT_DOUBLE_EQ(simulation.ranks[0].recompute_ms, 0.5);
  EXPECT_DOUBLE_EQ(simulation.ranks[1].recompute_ms, 0);
}

TEST(SlowerDevices, TakeTheirFactorLonger) {
  SimulationInput input = UnitChain(2, 1);
  input.rank_slowness = {1, 2};
  EXPECT_DOUBLE_EQ(RunChain("1f1b", input)->makespan_ms, 3 + 6);
}

TEST(AHang, PrintsWhereEachRankIsBlocked) {
  // Both ranks of two stages wait for the other: the receive of gradient 0 stands before the send
  // of activation 1 that the peer wants first.
  SimulationInput input = UnitChain(2, 2);
  Schedule crossed{"crossed", {}};
  for (const char* list :
       {"0F0 0SEND_F0>1 0F1 0WAIT_F0>1 0RECV_B0<1 0B0 0SEND_F1>1 0WAIT_F1>1 0RECV_B1<1 0B1 0REDUCE "
        "0STEP",
        "1RECV_F0<0 1F0 1RECV_F1<0 1F1 1B0 1SEND_B0>0 1B1 1SEND_B1>0 1WAIT_B0>0 1WAIT_B1>0 1REDUCE "
        "1STEP"}) {
    crossed.ranks.emplace_back();
    for (const std::string& text : std::vector<std::string>(absl::StrSplit(list, ' '))) {
      crossed.ranks.back().push_back(*ParseAction(text));
    }
  }
  const absl::Status status = Simulate(crossed, input).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 0 waits at 0RECV_B0<1 (action 4 of 12)"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 1 waits at 1RECV_F1<0 (action 2 of 12)"));
}

TEST(Memory, OfAnIdleReplicaHoldsTheGradientsThatItIsSent) {
  SimulationInput input = UnitChain(1, 1);
  input.placement.ranks = {{0, 1}};
  input.placement.num_ranks = 2;
  input.stage_memory[0].gradient_bytes = 40;
  const absl::StatusOr<Simulation> simulation = RunChain("1f1b", input);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  for (const RankUse& use : simulation->ranks) EXPECT_EQ(use.gradient_bytes, 40);
  EXPECT_EQ(simulation->ranks[1].peak_bytes, 40);
}

TEST(Memory, CountsASharedStorageOnceAndFollowsEveryAction) {
  SimulationInput input = UnitChain(2, 1);
  input.stage_memory[0] = {
      100, 40, 80, 7, {Saved(8), {16, true, false, {1}, {}}, {4, false, false, {1}, {}}}};
  input.stage_memory[1] = {
      200,
      60,
      120,
      9,
      {{32, true, false, {}, {0}}, Saved(1), {2, false, true, {}, {}}, {4, false, false, {}, {0}}}};
  input.edges[0].gradient_bytes = 3;
  const Simulation simulation = *RunChain("gpipe", input);
  std::vector<std::vector<std::pair<std::string, int64_t>>> live(2);
  for (const Event& e : simulation.events) {
    live[e.rank].emplace_back(ToString(e.action), e.live_bytes);
  }
  using P = std::pair<std::string, int64_t>;
  EXPECT_THAT(live[0],
              ElementsAre(P("0F0", 128), P("0SEND_F0>1", 128), P("0WAIT_F0>1", 124),
                          P("0RECV_B0<1", 127), P("0B0", 140), P("0REDUCE", 140), P("0STEP", 140)));
  EXPECT_THAT(live[1],
              ElementsAre(P("1RECV_F0<0", 236), P("1F0", 235), P("1B0", 265), P("1SEND_B0>0", 265),
                          P("1WAIT_B0>0", 262), P("1REDUCE", 262), P("1STEP", 262)));
  EXPECT_EQ(simulation.ranks[0].peak_bytes, 140 + 7 + 80);
  EXPECT_EQ(simulation.ranks[1].peak_bytes, 265 + 9 + 120);
  EXPECT_EQ(simulation.ranks[1].weight_bytes, 200);
  EXPECT_EQ(simulation.ranks[1].gradient_bytes, 60);
  EXPECT_EQ(simulation.ranks[1].optimizer_bytes, 120);
  EXPECT_EQ(simulation.ranks[1].peak, (MemoryByKind{200, 60, 120, 2, 12}));
}

// Each message goes once, and a device's link carries one at a time in each direction.
void CheckTransfers(const Simulation& simulation, const SimulationInput& input) {
  std::set<std::tuple<int, int, int>> messages;
  std::map<std::tuple<bool, bool, int>, double> free;  // by network, direction, rank
  const std::vector<DevicePlace> places =
      input.cluster.hosts.empty() ? std::vector<DevicePlace>() : PlacesOf(input.cluster);
  size_t sends = 0;
  for (const Event& e : simulation.events) {
    sends +=
        e.action.kind == ActionKind::kSendActivation || e.action.kind == ActionKind::kSendGradient;
  }
  ASSERT_EQ(simulation.transfers.size(), sends);
  for (const Transfer& t : simulation.transfers) {
    ASSERT_TRUE(messages.emplace(t.from_stage, t.to_stage, t.micro_batch).second);
    ASSERT_GE(t.end_ms, t.start_ms);
    if (t.from_rank == t.to_rank || input.cluster.hosts.empty()) continue;
    // Without latency the link is free when the message has arrived.
    const bool network = places[t.from_rank].host != places[t.to_rank].host;
    for (const auto& end : {std::tuple(network, false, t.from_rank), {network, true, t.to_rank}}) {
      ASSERT_GE(t.start_ms, free[end] - 1e-9);
      free[end] = t.end_ms;
    }
  }
  std::map<int, double> reduced;
  for (const ReduceSpan& span : simulation.reduce_spans) {
    ASSERT_GE(span.start_ms, reduced[span.reduction]);
    reduced[span.reduction] = span.end_ms;
  }
}

// What must hold of every simulation.
void CheckLaws(const Simulation& simulation, const Schedule& schedule,
               const SimulationInput& input) {
  std::vector<double> busy(schedule.ranks.size());
  std::vector<double> free(schedule.ranks.size());
  std::vector<int> next(schedule.ranks.size());
  std::map<std::tuple<int, int, int, bool>, int> messages;  // 1 sent, 2 received
  size_t actions = 0;
  for (const auto& list : schedule.ranks) actions += list.size();
  ASSERT_EQ(simulation.events.size(), actions);
  double last = 0;
  for (const Event& e : simulation.events) {
    ASSERT_GE(e.end_ms, last);  // by end
    last = e.end_ms;
    ASSERT_EQ(e.action_index, next[e.rank]++);  // in the list's order
    ASSERT_EQ(e.action, schedule.ranks[e.rank][e.action_index]);
    ASSERT_GE(e.start_ms, free[e.rank]);  // one at a time
    ASSERT_GE(e.end_ms, e.start_ms);
    free[e.rank] = e.end_ms;
    const Action& a = e.action;
    const bool gradient = a.kind == ActionKind::kSendGradient ||
                          a.kind == ActionKind::kRecvGradient ||
                          a.kind == ActionKind::kWaitGradient;
    const int low = std::min(a.stage, a.peer_stage);
    const int high = std::max(a.stage, a.peer_stage);
    int& message = messages[{low, high, a.micro_batch, gradient}];
    // One thread that runs the events in this order never waits.
    if (a.kind == ActionKind::kSendActivation || a.kind == ActionKind::kSendGradient) message = 1;
    if (a.kind == ActionKind::kRecvActivation || a.kind == ActionKind::kRecvGradient) {
      ASSERT_EQ(message, 1);
      message = 2;
    }
    if (a.kind == ActionKind::kWaitActivation || a.kind == ActionKind::kWaitGradient) {
      ASSERT_GE(message, input.receives_ahead == 0 ? 2 : 1);
    }
    if (a.kind <= ActionKind::kBackwardWeight) busy[e.rank] += e.end_ms - e.start_ms;
    ASSERT_EQ(e.live.total() - e.live.optimizer, e.live_bytes);
    ASSERT_LE(e.live.total(), simulation.ranks[e.rank].peak_bytes);
  }
  ASSERT_EQ(simulation.makespan_ms, last);
  CheckTransfers(simulation, input);
  double work = 0;
  for (size_t s = 0; s < input.stage_costs.size(); ++s) {
    const StageCost& c = input.stage_costs[s];
    const bool trains = schedule.name != "forward";
    const double per_micro_batch =
        c.forward_ms + (trains ? c.recompute_ms + c.backward_input_ms + c.backward_weight_ms : 0);
    for (int j = 0; j < input.placement.micro_batches; ++j) {
      work += per_micro_batch *
              (input.rank_slowness.empty() ? 1 : input.rank_slowness[input.placement.RankOf(s, j)]);
    }
  }
  double sum = 0;
  for (size_t r = 0; r < busy.size(); ++r) {
    sum += busy[r];
    ASSERT_LE(busy[r], simulation.makespan_ms + 1e-9);
    ASSERT_GE(simulation.ranks[r].idle_ms, -1e-9);
  }
  ASSERT_NEAR(sum, work, 1e-9 * (1 + work));
  ASSERT_LE(work / busy.size(), simulation.makespan_ms + 1e-9);  // the bound
}

// All memory of a step is given back, but for weights, gradients and results.
void CheckMemoryReturns(const Simulation& simulation, const SimulationInput& input) {
  std::map<int, int64_t> left;
  for (const Event& e : simulation.events) left[e.rank] = e.live_bytes;
  for (const auto& [rank, bytes] : left) {
    int64_t expected = 0;
    for (size_t s = 0; s < input.stage_memory.size(); ++s) {
      const std::vector<int>& ranks = input.placement.ranks[s];
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
      expected += input.stage_memory[s].weight_bytes;
    }
    EXPECT_EQ(bytes, expected);
  }
}

SimulationInput RandomInput(std::mt19937& random, const StagePlacement& placement,
                            double edge_share) {
  SimulationInput input;
  input.placement = placement;
  std::uniform_real_distribution<double> time(0, 3);
  const int p = placement.num_stages();
  for (int s = 0; s < p; ++s) {
    input.stage_costs.push_back({time(random), time(random), time(random), time(random), 0});
    StageMemory memory;
    memory.weight_bytes = random() % 1000;
    memory.storages = {Saved(10), Saved(5)};
    input.stage_memory.push_back(memory);
  }
  input.receives_ahead = random() % 3;
  input.cluster = SlowCluster((placement.num_ranks + 1) / 2, 2);
  if (random() % 2 == 0) input.cluster.hosts[0].network.shared = true;
  if (random() % 2 == 0) {
    for (int r = 0; r < placement.num_ranks; ++r) input.rank_slowness.push_back(1 + time(random));
  }
  if (random() % 2 == 0) input.reduce_bucket_bytes = 1;
  for (int s = 0; s < p; ++s) {
    if (placement.ranks[s].size() > 1) {
      input.reductions.push_back({{s}, static_cast<int64_t>(random() % 8)});
    }
  }
  if (p > 1 && random() % 2 == 0) input.reductions.push_back({{0, p - 1}, 3});
  for (int s = 0; s < p; ++s) {
    for (int t = s + 1; t < p; ++t) {
      if (time(random) > 3 * edge_share) continue;
      input.edges.push_back({s, t, {0}, random() % 2 == 0, 1, 2});
      std::vector<StageStorage>& from = input.stage_memory[s].storages;
      from[0].sent_to.push_back(t);
      from.push_back({3, false, false, {t}, {}});
      input.stage_memory[t].storages[1].received_from.push_back(s);
      input.stage_memory[t].storages.push_back({3, false, false, {}, {s}});
    }
  }
  return input;
}

void ExpectEnds(std::mt19937& random, const StagePlacement& placement) {
  for (const std::string& name : ScheduleNames()) {
    for (const double edge_share : {0.4, 1.0}) {
      const SimulationInput input = RandomInput(random, placement, edge_share);
      const absl::StatusOr<Schedule> compute = GenerateSchedule(name, placement);
      ASSERT_TRUE(compute.ok()) << compute.status();
      const absl::StatusOr<Schedule> lowered = Lower(*compute, placement, input.edges);
      ASSERT_TRUE(lowered.ok()) << lowered.status() << "\n" << ToString(*compute);
      SimulationInput forward = input;
      if (name == "forward") {
        for (StageMemory& memory : forward.stage_memory) {
          for (StageStorage& storage : memory.storages) storage.saved = false;
        }
        forward.reductions.clear();
      }
      const absl::StatusOr<Simulation> simulation = Simulate(*lowered, forward);
      ASSERT_TRUE(simulation.ok()) << simulation.status() << "\n" << ToString(*lowered);
      ASSERT_NO_FATAL_FAILURE(CheckLaws(*simulation, *lowered, forward));
      CheckMemoryReturns(*simulation, forward);
    }
  }
}

TEST(EverySchedule, EndsForAnyStagesReplicasAndMicroBatches) {
  std::mt19937 random(1);
  for (int p = 1; p <= 5; ++p) {
    for (int m = 1; m <= 9; ++m) {
      for (int round = 0; round < 8; ++round) {
        StagePlacement placement;
        placement.micro_batches = m;
        for (int s = 0; s < p; ++s) {
          // Rounds 0 to 2 have equal replicas, the others any.
          const int d = round < 3 ? round + 1 : 1 + random() % 3;
          placement.ranks.emplace_back();
          for (int r = 0; r < d; ++r) placement.ranks.back().push_back(placement.num_ranks++);
        }
        ASSERT_NO_FATAL_FAILURE(ExpectEnds(random, placement));
      }
    }
  }
}

TEST(EverySchedule, EndsForLongPipelines) {
  std::mt19937 random(2);
  for (const int p : {10, 16}) {
    StagePlacement placement;
    placement.micro_batches = 3 * p;
    placement.num_ranks = p;
    for (int s = 0; s < p; ++s) placement.ranks.push_back({s});
    ASSERT_NO_FATAL_FAILURE(ExpectEnds(random, placement));
  }
}

TEST(EverySchedule, EndsForChunksInTurnAndInAV) {
  std::mt19937 random(4);
  for (int p = 1; p <= 5; ++p) {
    for (int v = 1; v <= 3; ++v) {
      for (int m = 1; m <= 12; ++m) {
        for (const bool folded : {false, true}) {
          const int d = 1 + random() % 2;
          StagePlacement placement;
          placement.micro_batches = m;
          placement.num_ranks = p * d;
          for (int s = 0; s < p * v; ++s) {
            const int lane = folded && s / p % 2 == 1 ? p - 1 - s % p : s % p;
            placement.ranks.emplace_back();
            for (int r = 0; r < d; ++r) placement.ranks.back().push_back(r * p + lane);
          }
          ASSERT_NO_FATAL_FAILURE(ExpectEnds(random, placement))
              << p << " ranks, " << v << " chunks, " << m << " micro-batches";
        }
      }
    }
  }
}

TEST(EverySchedule, EndsWhereStagesShareRanks) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    StagePlacement placement;
    placement.micro_batches = 1 + random() % 9;
    placement.num_ranks = 1 + random() % 3;
    const int p = 1 + random() % 5;
    for (int s = 0; s < p; ++s) {
      std::vector<int> ranks(placement.num_ranks);
      for (int r = 0; r < placement.num_ranks; ++r) ranks[r] = r;
      std::shuffle(ranks.begin(), ranks.end(), random);
      ranks.resize(1 + random() % placement.num_ranks);
      placement.ranks.push_back(ranks);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectEnds(random, placement)) << "round " << round;
  }
}

}  // namespace
}  // namespace autopart
