// The referee on graphs small enough to count by hand.
#include "partitioner/metrics.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/graphs.h"

namespace autopart {
namespace {

using ::autopart::testing::Chain;
using ::autopart::testing::GraphBuilder;
using ::testing::HasSubstr;

//        ┌──> b (2 ms) ──┐
//   a ───┤               ├──> d (4 ms)      a makes 10 bytes, gradient 6;
//  1 ms  └──> c (3 ms) ──┘                  b makes 20, c makes 30, no gradients
CostGraph Diamond() {
  GraphBuilder builder;
  const int x = builder.Input("x", 8);
  const int a = builder.Node("a", 1, {x}, 10);
  builder.value(a).gradient_bytes = 6;
  const int b = builder.Node("b", 2, {a}, 20);
  const int c = builder.Node("c", 3, {a}, 30);
  builder.Node("d", 4, {b, c}, 0);
  return builder.Build();
}

PartitionOptions Stages(int num_stages, Objective objective) {
  PartitionOptions options;
  options.num_stages = num_stages;
  options.objective = objective;
  options.bytes_per_ms = 10;
  return options;
}

TEST(Metrics, PaysAValueOnceAStageWhateverTheNumberOfReaders) {
  // a | b c | d: a's value has two readers on stage 1.
  const PartitionMetrics metrics =
      ComputeMetrics(Diamond(), {0, 1, 1, 2}, Stages(3, Objective::kSum));
  EXPECT_DOUBLE_EQ(metrics.stages[0].load_ms, 1 + 1.0 + 0.6);
  EXPECT_DOUBLE_EQ(metrics.stages[1].load_ms, 5 + 1.0 + 0.6 + 2 + 3);
  EXPECT_DOUBLE_EQ(metrics.stages[2].load_ms, 4 + 2 + 3);
  EXPECT_DOUBLE_EQ(metrics.max_load_ms, 11.6);
  EXPECT_EQ(metrics.stages[0].send_bytes, 10);
  EXPECT_EQ(metrics.stages[0].receive_bytes, 6);
  EXPECT_EQ(metrics.stages[1].send_bytes, 6 + 50);
  EXPECT_EQ(metrics.stages[1].receive_bytes, 10);
  EXPECT_EQ(metrics.cut_bytes, 10 + 6 + 50);
}

TEST(Metrics, SendsAValueToEachStageThatReadsItButLoadsTheSenderOnce) {
  // a | b | c d: a goes to stages 1 and 2.
  const PartitionMetrics metrics =
      ComputeMetrics(Diamond(), {0, 1, 2, 2}, Stages(3, Objective::kSum));
  EXPECT_DOUBLE_EQ(metrics.stages[0].load_ms, 1 + 1.0 + 0.6);
  EXPECT_EQ(metrics.stages[0].send_bytes, 20);
  EXPECT_EQ(metrics.stages[0].receive_bytes, 12);
}

TEST(Metrics, OverlapTakesTheLargestOfComputeSendAndReceive) {
  const PartitionMetrics metrics =
      ComputeMetrics(Diamond(), {0, 1, 1, 2}, Stages(3, Objective::kOverlap));
  EXPECT_DOUBLE_EQ(metrics.stages[0].load_ms, 1.0);
  EXPECT_DOUBLE_EQ(metrics.stages[1].load_ms, 5.6);  // sends 20 + 30 forward, 6 backward
  EXPECT_DOUBLE_EQ(metrics.stages[2].load_ms, 5.0);  // receives
}

TEST(Metrics, InputsOfTheModelLiveOnTheFirstStage) {
  CostGraph graph = Chain(2, 1, 0);
  graph.values[0].bytes = 40;
  graph.values[0].consumers = {0, 1};
  const PartitionMetrics metrics = ComputeMetrics(graph, {0, 1}, Stages(2, Objective::kSum));
  EXPECT_DOUBLE_EQ(metrics.stages[0].load_ms, 1 + 4);
  EXPECT_DOUBLE_EQ(metrics.stages[1].load_ms, 1 + 4);
}

TEST(Metrics, ReadersRunTheirOwnCopyOfACopyableNode) {
  CostGraph graph = Chain(2, 1, 40);
  graph.nodes[0].copyable = true;
  EXPECT_EQ(ComputeMetrics(graph, {0, 1}, Stages(2, Objective::kSum)).cut_bytes, 0);
}

//   x ──> a ──> v (a view of a) ──> s (saves a and v)
CostGraph Views() {
  GraphBuilder builder;
  const int x = builder.Input("x", 7);
  const int a = builder.Node("a", 1, {x}, 100);
  const int v = builder.Node("v", 1, {a}, 60);
  builder.value(v).view_of = a;
  builder.value(v).storage_bytes = 0;
  const int s = builder.Node("s", 1, {a, v}, 1);
  builder.node_of(a).saved_values = {x};
  builder.node_of(s).saved_values = {a, v};
  builder.node_of(s).saved_bytes = 3;
  builder.node_of(v).temporary_bytes = 1000;
  return builder.Build();
}

TEST(Metrics, AStageHoldsAStorageOnceAndWhatArrivesIsItsOwn) {
  PartitionOptions options = Stages(1, Objective::kSum);
  options.in_flight = {2};
  // One stage: a's storage once; x is the caller's.
  EXPECT_EQ(ComputeMetrics(Views(), {0, 0, 0}, options).stages[0].memory_bytes,
            2 * (100 + 3) + 1000);
  // a v | s: both arrive as messages with memory of their own.
  options.num_stages = 2;
  options.in_flight = {2, 5};
  EXPECT_EQ(ComputeMetrics(Views(), {0, 0, 1}, options).stages[1].memory_bytes, 2 * (100 + 60 + 3));
  // a | v s: a arrives, v is a view of it.
  EXPECT_EQ(ComputeMetrics(Views(), {0, 1, 1}, options).stages[1].memory_bytes,
            2 * (100 + 3) + 1000);
  EXPECT_EQ(ComputeMetrics(Views(), {0, 1, 1}, options).stages[0].memory_bytes, 0);
}

TEST(Metrics, TiedParametersCountOnceAStageAndTrainedOnesWithTheirState) {
  GraphBuilder builder;
  const int x = builder.Input("x", 0);
  const int a = builder.Node("a", 1, {x}, 0);
  const int b = builder.Node("b", 1, {a}, 0);
  const int tied = builder.Parameter("wte.weight", 100);
  const int buffer = builder.Parameter("mask", 10, /*trains=*/false);
  builder.node_of(a).parameters = {tied};
  builder.node_of(b).parameters = {tied, buffer};
  const CostGraph graph = builder.Build();
  PartitionOptions options = Stages(1, Objective::kSum);
  options.state_factor = 4;
  EXPECT_EQ(ComputeMetrics(graph, {0, 0}, options).stages[0].memory_bytes, 410);
  options.num_stages = 2;
  EXPECT_EQ(ComputeMetrics(graph, {0, 1}, options).stages[0].memory_bytes, 400);
  EXPECT_EQ(ComputeMetrics(graph, {0, 1}, options).stages[1].memory_bytes, 410);
}

TEST(VerifyPartition, NamesTheFirstBrokenPromise) {
  CostGraph graph = Diamond();
  graph.nodes[1].group = graph.nodes[2].group = 7;
  graph.nodes[0].saved_bytes = 500;
  PartitionOptions options = Stages(2, Objective::kSum);
  const auto verify = [&](std::vector<int> stage_of_node, int num_stages = 2) {
    Partition partition;
    partition.num_stages = num_stages;
    partition.stage_of_node = std::move(stage_of_node);
    if (partition.stage_of_node.size() == 4) {
      partition.value = ComputeMetrics(graph, {0, 1, 1, 1}, options).max_load_ms;
    }
    return std::string(VerifyPartition(graph, partition, options).message());
  };
  EXPECT_EQ(verify({0, 1, 1, 1}), "");
  EXPECT_THAT(verify({0, 1, 1, 1}, 3), HasSubstr("3 stages, want 2"));
  EXPECT_THAT(verify({0, 1, 1}), HasSubstr("places 3 nodes of 4"));
  EXPECT_THAT(verify({0, 1, 1, 2}), HasSubstr("node 3 (d) is on stage 2 of 2"));
  EXPECT_THAT(verify({1, 0, 0, 1}), HasSubstr("edge from node 0 (a) on stage 1 goes back"));
  EXPECT_THAT(verify({0, 0, 1, 1}), HasSubstr("group 7 is split"));
  EXPECT_THAT(verify({0, 0, 0, 0}), HasSubstr("stage 1 is empty"));
  EXPECT_THAT(verify({0, 0, 0, 1}), HasSubstr("value says"));
  options.memory_bytes = 499;
  EXPECT_THAT(verify({0, 1, 1, 1}), HasSubstr("stage 0 needs 500 bytes, 1 more"));
}

}  // namespace
}  // namespace autopart
