#include "profiler/program_times.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/batches.h"
#include "profiler/cost.h"
#include "tests/testing/graph_builder.h"

namespace autopart {
namespace {

using testing::GraphBuilder;
using ::testing::HasSubstr;

const auto V = GraphBuilder::V;

// A large product of matrices between two small operators.
Model Uneven() {
  GraphBuilder g;
  const int x = g.Input("x", at::randn({64, 256}));
  const int weight = g.Parameter("weight", at::randn({256, 256}));
  const int bias = g.Parameter("bias", at::randn({256}));
  const int scaled = g.Call("aten::relu", {V(x)}, "first");
  const int y = g.Call("aten::linear", {V(scaled), V(weight), V(bias)}, "second");
  g.Loss(g.Call("aten::mean", {V(y)}, "loss"));
  return g.model();
}

TEST(ProgramTimes, CountEveryNodeForwardAndThoseWithGradientsBackward) {
  const Model model = Uneven();
  ProgramPassOptions options;
  options.passes = 8;
  options.at_once = 2;
  const auto times = MeasureProgram(model, RandomBatches(model.graph, 1, 0).Of(0)[0], options);
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(times->passes, 16);
  ASSERT_EQ(times->forward_ms.size(), 3);
  for (const double ms : times->forward_ms) EXPECT_GT(ms, 0);
  EXPECT_EQ(times->backward_ms[0], 0);  // the input needs no gradient
  EXPECT_GT(times->backward_ms[1], 0);
  EXPECT_GT(times->backward_ms[2], 0);
  EXPECT_GT(times->forward_ms[1], times->forward_ms[0]);
}

TEST(ProgramTimes, LeaveTheModelAsItWas) {
  const Model model = Uneven();
  const at::Tensor before = model.tensors.at("weight").detach().clone();
  ASSERT_TRUE(MeasureProgram(model, RandomBatches(model.graph, 1, 0).Of(0)[0], {}).ok());
  EXPECT_TRUE(at::equal(model.tensors.at("weight"), before));
  EXPECT_FALSE(model.tensors.at("weight").grad().defined());
}

TEST(ProgramTimes, WithoutTrainingHaveNoBackward) {
  const Model model = Uneven();
  ProgramPassOptions options;
  options.training = false;
  const auto times = MeasureProgram(model, RandomBatches(model.graph, 1, 0).Of(0)[0], options);
  ASSERT_TRUE(times.ok()) << times.status();
  for (const double ms : times->backward_ms) EXPECT_EQ(ms, 0);
}

TEST(ProgramTimes, NameTheOperatorThatFails) {
  Model model = Uneven();
  std::vector<at::IValue> inputs = {at::randn({64, 7})};
  ProgramPassOptions options;
  options.at_once = 2;
  EXPECT_THAT(MeasureProgram(model, inputs, options).status().ToString(),
              HasSubstr("cannot run aten::linear in module 'second'"));
  model.tensors.erase("weight");
  EXPECT_EQ(MeasureProgram(model, inputs, options).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(ProgramTimes, AreTheCostsOfTheirNodes) {
  const Model model = Uneven();
  CostOptions options;
  options.in_order = ProgramTimes{{1, 2, 3}, {0, 20, 30}, 1};
  const auto costs = BuildCostGraph(model.graph, options);
  ASSERT_TRUE(costs.ok()) << costs.status();
  for (int n = 0; n < 3; ++n) {
    EXPECT_EQ(costs->nodes[n].forward_ms, n + 1);
    EXPECT_NEAR(costs->nodes[n].backward_input_ms + costs->nodes[n].backward_weight_ms,
                n == 0 ? 0 : 10 * (n + 1), 1e-9);
    EXPECT_TRUE(costs->nodes[n].measured);
  }
  EXPECT_GT(costs->nodes[1].backward_weight_ms, 0);
  options.in_order->forward_ms.pop_back();
  EXPECT_THAT(BuildCostGraph(model.graph, options).status().ToString(),
              HasSubstr("times of 2 operators for 3"));
}

}  // namespace
}  // namespace autopart
