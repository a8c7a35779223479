#include "runtime/machine.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/make_optimizer.h"
#include "tests/testing/graph_builder.h"

namespace autopart {
namespace {

using testing::GraphBuilder;

TEST(Machine, EveryOptimizerAndTheLinkHaveARate) {
  GraphBuilder g;
  const int x = g.Input("x", at::randn({4, 256}));
  const int weight = g.Parameter("weight", at::randn({256, 256}));
  g.Loss(g.Call(
      "aten::mean",
      {GraphBuilder::V(g.Call("aten::linear", {GraphBuilder::V(x), GraphBuilder::V(weight)}))}));
  MachineOptions options;
  options.budget_ms = 5;
  const at::Tensor before = g.model().tensors.at("weight").detach().clone();
  const CostMachine machine = MeasureMachine(g.model(), options);
  ASSERT_EQ(machine.updates.size(), OptimizerNames().size());
  for (size_t i = 0; i < machine.updates.size(); ++i) {
    EXPECT_EQ(machine.updates[i].optimizer, OptimizerNames()[i]);
    EXPECT_GT(machine.updates[i].bytes_per_ms, 0);
  }
  EXPECT_GT(machine.link_bytes_per_ms, 0);
  EXPECT_GT(machine.link_latency_ms, 0);
  EXPECT_TRUE(at::equal(g.model().tensors.at("weight"), before));
}

TEST(Machine, WithoutTrainedParametersThereIsNothingToUpdate) {
  GraphBuilder g;
  g.Output(g.Call("aten::relu", {GraphBuilder::V(g.Input("x", at::randn({4})))}));
  EXPECT_TRUE(MeasureMachine(g.model(), {}).updates.empty());
}

TEST(MakeOptimizer, RefusesANameThatItDoesNotKnow) {
  EXPECT_THROW(MakeOptimizer("lion", 0.1, {}), std::invalid_argument);
}

}  // namespace
}  // namespace autopart
