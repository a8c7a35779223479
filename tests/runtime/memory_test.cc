// Live bytes of every rank after every action, as LibTorch's allocator sees them, equal the
// simulator's.
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

void ExpectSimulatedBytes(const Model& model, const HandPlan& hand,
                          const std::vector<std::vector<at::IValue>>& inputs) {
  const absl::StatusOr<CostGraph> costs = BuildCostGraph(model.graph, {.repeats = 1});
  ASSERT_TRUE(costs.ok()) << costs.status();
  const Plan plan = PlanFromStages(model.graph, *costs, hand);
  const absl::StatusOr<Simulation> simulation = SimulatePlan(plan, *costs);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  const int num_ranks = plan.num_devices;
  std::vector<std::map<int, int64_t>> expected(num_ranks);
  for (const Event& event : simulation->events) {
    expected[event.rank][event.action_index] = event.live_bytes;
  }
  ExecutorOptions options;
  options.mode = ExecutorOptions::Mode::kOneThread;
  options.memory = std::make_shared<RankMemoryObserver>(num_ranks);
  int mismatches = 0, compared = 0;
  options.after_action = [&](int rank, int index, const Action& action) {
    const int64_t weights = simulation->ranks[rank].weight_bytes;
    const int64_t live = options.memory->live_bytes(rank) + weights;
    compared += live > weights;
    if (live == expected[rank][index] || ++mismatches > 5) return;
    ADD_FAILURE() << "rank " << rank << " after " << ToString(action) << ": " << live
                  << " bytes are alive, " << expected[rank][index] << " were simulated";
  };
  Executor executor(plan, CopyModel(model), options);
  executor.StepMicroBatches(inputs);
  EXPECT_GT(compared, plan.micro_batches);
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
      SCOPED_TRACE(std::string(schedule) + ::testing::PrintToString(stages));
      ExpectSimulatedBytes(model, {stages, {}, schedule, 5}, inputs);
    }
  }
}

class MemoryOfModelFile : public ::testing::TestWithParam<const char*> {};

TEST_P(MemoryOfModelFile, EqualsTheSimulationAfterEveryAction) {
  const Model model = LoadModel(testing::ModelPath(GetParam()));
  ASSERT_TRUE(model.graph.loss_output.has_value());
  const testing::Example example = testing::LoadExample(GetParam());
  const std::vector<std::vector<at::IValue>> inputs(
      5, std::vector<at::IValue>(example.inputs.begin(), example.inputs.end()));
  for (const auto& [stages, schedule] : std::vector<std::pair<int, const char*>>{
           {1, "1f1b"}, {2, "gpipe"}, {2, "1f1b"}, {3, "1f1b"}, {4, "1f1b"}}) {
    SCOPED_TRACE(std::to_string(stages) + " stages, " + schedule);
    ExpectSimulatedBytes(model, {testing::EvenStages(model.graph, stages), {}, schedule, 5},
                         inputs);
  }
}

INSTANTIATE_TEST_SUITE_P(All, MemoryOfModelFile,
                         ::testing::Values("tied_head", "gpt2", "gpt2_train", "bert", "bert_train",
                                           "llama", "t5"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace autopart
