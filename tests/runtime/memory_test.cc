// Live bytes of every rank after every action, as LibTorch's allocator sees them, equal the
// simulator's: with all ranks on one thread, and with a thread for each. What an action holds only
// while it runs (temporaries) is reported apart; the simulator bounds it.
#include <set>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/simulate.h"
#include "profiler/cost.h"
#include "runtime/executor.h"
#include "tests/testing/graph_builder.h"
#include "tests/testing/plan_from_stages.h"
#include "tests/testing/torch_models.h"

namespace autopart {
namespace {

using testing::CopyModel;
using testing::GraphBuilder;
using testing::HandPlan;
using testing::PlanFromStages;

const auto V = GraphBuilder::V;
const auto C = GraphBuilder::C;

// What one rank's thread saw; nothing of it is shared with other ranks.
struct RankRecord {
  std::set<std::thread::id> threads;
  std::vector<std::string> mismatches;
  int compared = 0;
  int64_t live_before = 0;
  int64_t temporary_bytes = 0;  // most of one action, beyond what it finds or leaves
};

using Mode = ExecutorOptions::Mode;

void ExpectSimulatedBytes(const Model& model, const HandPlan& hand, Mode mode,
                          const std::vector<std::vector<at::IValue>>& inputs) {
  SCOPED_TRACE(std::string(mode == Mode::kThreads ? "threads, " : "one thread, ") + hand.schedule +
               ", stages " + ::testing::PrintToString(hand.stage_of_node) + ", replicas " +
               ::testing::PrintToString(hand.replicas));
  const absl::StatusOr<CostGraph> costs = BuildCostGraph(model.graph, {.repeats = 1});
  ASSERT_TRUE(costs.ok()) << costs.status();
  const Plan plan = PlanFromStages(model.graph, *costs, hand);
  const absl::StatusOr<Simulation> simulation = SimulatePlan(plan);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  const int num_ranks = plan.num_devices();
  std::vector<std::map<int, int64_t>> expected(num_ranks);
  for (const Event& event : simulation->events) {
    expected[event.rank][event.action_index] = event.live_bytes;
  }
  ExecutorOptions options;
  options.mode = mode;
  options.deadline = std::chrono::seconds(60);
  options.memory = std::make_shared<RankMemoryObserver>(num_ranks);
  std::vector<RankRecord> records(num_ranks);
  options.after_action = [&](int rank, int index, const Action& action) {
    RankRecord& record = records[rank];
    record.threads.insert(std::this_thread::get_id());
    const int64_t live = options.memory->live_bytes(rank);
    record.temporary_bytes =
        std::max(record.temporary_bytes,
                 options.memory->peak_bytes(rank) - std::max(live, record.live_before));
    options.memory->ResetPeak(rank);
    record.live_before = live;
    ++record.compared;
    const int64_t simulated = expected[rank].at(index) - simulation->ranks[rank].weight_bytes;
    if (live == simulated) return;
    record.mismatches.push_back("rank " + std::to_string(rank) + " after " + ToString(action) +
                                ": " + std::to_string(live) + " bytes are alive, " +
                                std::to_string(simulated) + " were simulated");
  };
  Executor executor(plan, CopyModel(model), options);
  executor.StepMicroBatches(inputs);
  std::set<std::thread::id> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const RankRecord& record = records[rank];
    EXPECT_EQ(record.compared, expected[rank].size()) << "rank " << rank;
    EXPECT_THAT(record.mismatches, ::testing::IsEmpty());
    EXPECT_EQ(record.threads.size(), 1) << "rank " << rank;
    threads.insert(record.threads.begin(), record.threads.end());
  }
  for (const PlanStage& stage : plan.stages) {
    const int64_t simulated = stage.held.temporary_bytes;
    for (const int rank : stage.ranks) {
      const std::string name = "temporary_bytes_of_rank_" + std::to_string(rank);
      ::testing::Test::RecordProperty(name, std::to_string(records[rank].temporary_bytes));
      EXPECT_LE(records[rank].temporary_bytes, simulated) << name;
    }
  }
  EXPECT_EQ(threads.size(), mode == Mode::kThreads ? num_ranks : 1);
}

Model Mlp() {
  GraphBuilder g;
  const int x = g.Input("x", at::randn({4, 16}));
  const int target = g.Input("target", at::randn({4, 16}));
  const auto linear = [&](int in, const std::string& name) {
    const int weight = g.Parameter(name + ".weight", at::randn({16, 16}));
    const int bias = g.Parameter(name + ".bias", at::randn({16}));
    return g.Call("aten::linear", {V(in), V(weight), V(bias)}, name);
  };
  const int a = linear(x, "a");
  const int h = g.Call("aten::relu", {V(a)}, "relu");
  const int b = linear(h, "b");
  const int t = g.Call("aten::tanh", {V(b)}, "tanh");
  const int part = g.Call("aten::narrow", {V(t), C(int64_t{1}), C(int64_t{0}), C(int64_t{8})});
  const int c = linear(t, "c");
  const int wide = g.Call("aten::cat", {GraphBuilder::Items({V(part), V(part)}), C(int64_t{1})});
  const int sum = g.Call("aten::add.Tensor", {V(c), V(wide)});
  g.Output(sum);
  g.Loss(g.Call("aten::mse_loss", {V(sum), V(target)}, "loss"));
  return g.model();
}

TEST(Memory, EqualsTheSimulationAfterEveryAction) {
  const Model model = Mlp();
  std::vector<std::vector<at::IValue>> inputs;
  for (int j = 0; j < 5; ++j) inputs.push_back({at::randn({4, 16}), at::randn({4, 16})});
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (const std::vector<int>& stages : {std::vector<int>{0, 0, 0, 0, 0, 0, 0, 0, 0},
                                           {0, 0, 1, 1, 1, 1, 1, 1, 1},
                                           {0, 0, 0, 0, 1, 1, 1, 1, 1},
                                           {0, 0, 0, 0, 0, 1, 2, 2, 2},
                                           {0, 1, 1, 2, 2, 2, 3, 3, 3}}) {
      for (const Mode mode : {Mode::kOneThread, Mode::kThreads}) {
        ExpectSimulatedBytes(model, {stages, {}, schedule, 5}, mode, inputs);
      }
    }
  }
}

TEST(Memory, EqualsTheSimulationWithReplicasEvenIdleOnes) {
  const Model model = Mlp();
  for (const int m : {1, 2, 5}) {
    std::vector<std::vector<at::IValue>> inputs;
    for (int j = 0; j < m; ++j) inputs.push_back({at::randn({4, 16}), at::randn({4, 16})});
    for (const std::vector<int>& replicas : {std::vector<int>{2, 2}, {1, 2}, {3, 1}}) {
      for (const Mode mode : {Mode::kOneThread, Mode::kThreads}) {
        // One thread reduces after all actions, so the idle rank's gradients come too late.
        if (mode == Mode::kOneThread && m < *std::max_element(replicas.begin(), replicas.end())) {
          continue;
        }
        ExpectSimulatedBytes(model, {{0, 0, 0, 0, 1, 1, 1, 1, 1}, replicas, "1f1b", m}, mode,
                             inputs);
      }
    }
  }
}

// A block may be freed by another thread than the one that allocated it, observed or not.
TEST(Memory, BelongsToTheRankThatAllocatedItWhoeverFreesIt) {
  const auto observer = std::make_shared<RankMemoryObserver>(2);
  const auto on_thread_of = [&](int rank, const std::function<void()>& work) {
    std::thread([&] {
      const RankMemoryObserver::Scope scope(observer, rank);
      work();
    }).join();
  };
  at::Tensor message, other;
  on_thread_of(0, [&] { message = at::empty({1000}, at::kDouble); });
  on_thread_of(1, [&] { other = at::empty({10}, at::kDouble); });
  EXPECT_EQ(observer->live_bytes(0), 8000);
  EXPECT_EQ(observer->live_bytes(1), 80);
  on_thread_of(1, [&] { message = at::Tensor(); });
  EXPECT_EQ(observer->live_bytes(0), 0);
  EXPECT_EQ(observer->live_bytes(1), 80);
  EXPECT_EQ(observer->peak_bytes(0), 8000);
  EXPECT_EQ(observer->peak_bytes(1), 80);
  // This thread has no scope.
  other = at::Tensor();
  EXPECT_EQ(observer->live_bytes(1), 0);
}

TEST(Memory, PeaksAtTheMostThatWasAliveAtOnceAndComesBackToZero) {
  const auto observer = std::make_shared<RankMemoryObserver>(1);
  at::Tensor outside = at::empty({500}, at::kFloat);
  {
    const RankMemoryObserver::Scope scope(observer, 0);
    at::Tensor a = at::empty({100}, at::kFloat);  // 400 bytes
    at::Tensor b = at::empty({200}, at::kFloat);  // 1200 at once
    const at::Tensor view = b.narrow(0, 0, 10);   // no memory of its own
    a = at::Tensor();
    a = at::empty({50}, at::kFloat);  // 1000 at once
    EXPECT_EQ(observer->live_bytes(0), 1000);
    EXPECT_EQ(observer->peak_bytes(0), 1200);
    b = at::Tensor();
    EXPECT_EQ(observer->live_bytes(0), 1000);  // the view holds it
    a.resize_({5000});                         // the old block is there until the new one is filled
    EXPECT_EQ(observer->peak_bytes(0), 21000);
    outside = at::Tensor();
    EXPECT_EQ(observer->live_bytes(0), 20800);
    observer->ResetPeak(0);
    EXPECT_EQ(observer->peak_bytes(0), 20800);
  }
  EXPECT_EQ(observer->live_bytes(0), 0);
}

TEST(Memory, InnerScopesCountForTheirOwnRank) {
  const auto observer = std::make_shared<RankMemoryObserver>(2);
  const RankMemoryObserver::Scope outer(observer, 0);
  const at::Tensor a = at::empty({1}, at::kFloat);
  at::Tensor b;
  {
    const RankMemoryObserver::Scope inner(observer, 1);
    b = at::empty({2}, at::kFloat);
  }
  const at::Tensor c = at::empty({4}, at::kFloat);
  EXPECT_EQ(observer->live_bytes(0), 20);
  EXPECT_EQ(observer->live_bytes(1), 8);
}

TEST(Memory, BlocksMayOutliveTheirObserver) {
  auto observer = std::make_shared<RankMemoryObserver>(1);
  at::Tensor tensor;
  {
    const RankMemoryObserver::Scope scope(observer, 0);
    tensor = at::ones({100});
  }
  observer.reset();
  EXPECT_EQ(tensor.sum().item<float>(), 100);
}

class MemoryOfModelFile : public ::testing::TestWithParam<const char*> {
 protected:
  MemoryOfModelFile() : model_(LoadModel(testing::ModelPath(GetParam()))) {
    const testing::Example example = testing::LoadExample(GetParam());
    inputs_.assign(5, std::vector<at::IValue>(example.inputs.begin(), example.inputs.end()));
  }

  void ExpectBytes(int stages, int replicas, const char* schedule, Mode mode) {
    ASSERT_TRUE(model_.graph.loss_output.has_value());
    ExpectSimulatedBytes(model_,
                         {testing::EvenStages(model_.graph, stages),
                          std::vector<int>(stages, replicas), schedule, 5},
                         mode, inputs_);
  }

  const Model model_;
  std::vector<std::vector<at::IValue>> inputs_;
};

TEST_P(MemoryOfModelFile, EqualsTheSimulationAfterEveryAction) {
  for (const auto& [stages, schedule] : std::vector<std::pair<int, const char*>>{
           {1, "1f1b"}, {2, "gpipe"}, {2, "1f1b"}, {3, "1f1b"}, {4, "1f1b"}}) {
    ExpectBytes(stages, 1, schedule, Mode::kOneThread);
  }
}

TEST_P(MemoryOfModelFile, EqualsTheSimulationOnEveryThread) {
  for (const auto& [stages, schedule] : std::vector<std::pair<int, const char*>>{
           {2, "gpipe"}, {2, "1f1b"}, {3, "1f1b"}, {4, "gpipe"}, {4, "1f1b"}}) {
    ExpectBytes(stages, 1, schedule, Mode::kThreads);
  }
}

TEST_P(MemoryOfModelFile, EqualsTheSimulationOnEveryThreadOfReplicas) {
  for (const int stages : {1, 2}) ExpectBytes(stages, 2, "1f1b", Mode::kThreads);
}

INSTANTIATE_TEST_SUITE_P(All, MemoryOfModelFile,
                         ::testing::Values("tied_head", "gpt2", "gpt2_train", "bert", "bert_train",
                                           "llama", "t5"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace autopart
