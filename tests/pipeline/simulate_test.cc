#include "pipeline/simulate.h"

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"

namespace autopart {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  for (StageMemory& memory : input.stage_memory) memory.saved = {{0, 1}};
  input.edge_costs.resize(input.edges.size());
  input.edge_memory.resize(input.edges.size());
  return input;
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
  input.edge_costs[0] = {0.25, 0.5};
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
  input.stage_costs[0].reduce_ms = 5;
  input.stage_costs[0].step_ms = 0.5;
  const Simulation simulation = *RunChain("1f1b", input);
  EXPECT_DOUBLE_EQ(simulation.makespan_ms, 6 + 5 + 0.5);
  EXPECT_DOUBLE_EQ(simulation.ranks[1].busy_ms, 3.5);
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
  input.stage_memory[0] = {100, 40, 80, 7, {{0, 8}, {1, 16}}, {}};
  input.stage_memory[1] = {200, 60, 120, 9, {{5, 32}, {9, 1}}, {{6, 2}}};
  input.edge_memory[0].sent = {{1, 16}, {50, 4}};  // 1 is saved too, 50 is a copy
  input.edge_memory[0].received = {{5, 32}, {7, 4}};
  input.edge_memory[0].gradient_bytes = 3;
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
      ASSERT_EQ(message, 2);
    }
    if (a.kind <= ActionKind::kBackwardWeight) busy[e.rank] += e.end_ms - e.start_ms;
  }
  ASSERT_EQ(simulation.makespan_ms, last);
  double work = 0;
  for (size_t s = 0; s < input.stage_costs.size(); ++s) {
    const StageCost& c = input.stage_costs[s];
    const bool trains = schedule.name != "forward";
    const double per_micro_batch =
        c.forward_ms + (trains ? c.backward_input_ms + c.backward_weight_ms : 0);
    work += per_micro_batch * input.placement.micro_batches;
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
    memory.saved = {{static_cast<int>(random() % 3), 10}, {7, 5}};
    input.stage_memory.push_back(memory);
  }
  for (int s = 0; s < p; ++s) {
    for (int t = s + 1; t < p; ++t) {
      if (time(random) > 3 * edge_share) continue;
      input.edges.push_back({s, t, {0}, random() % 2 == 0});
      input.edge_costs.push_back({time(random) / 4, time(random) / 4});
      input.edge_memory.push_back({{{0, 10}, {20 + t, 3}}, {{0, 10}, {30 + s, 3}}, 4});
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
        for (StageMemory& memory : forward.stage_memory) memory.saved.clear();
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
