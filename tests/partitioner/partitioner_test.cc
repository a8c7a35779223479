#include "partitioner/partitioner.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partitioner/lower_bound.h"
#include "partitioner/metrics.h"
#include "tests/testing/graphs.h"

namespace autopart {
namespace {

using ::autopart::testing::Chain;
using ::autopart::testing::GraphBuilder;
using ::autopart::testing::RandomGraph;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

PartitionOptions Stages(int num_stages) {
  PartitionOptions options;
  options.num_stages = num_stages;
  options.objective = Objective::kSum;
  return options;
}

std::vector<int> Sizes(const Partition& partition) {
  std::vector<int> sizes(partition.num_stages);
  for (const int stage : partition.stage_of_node) ++sizes[stage];
  return sizes;
}

Partition MustPartition(const CostGraph& graph, const PartitionOptions& options) {
  absl::StatusOr<Partition> partition = PartitionGraph(graph, options);
  EXPECT_TRUE(partition.ok()) << partition.status();
  if (!partition.ok()) return {};
  const absl::Status valid = VerifyPartition(graph, *partition, options);
  EXPECT_TRUE(valid.ok()) << valid;
  return *std::move(partition);
}

TEST(Partitioner, SplitsAChainEvenlyAndKnowsThatItIsOptimal) {
  const Partition partition = MustPartition(Chain(12), Stages(4));
  EXPECT_THAT(Sizes(partition), ElementsAre(3, 3, 3, 3));
  EXPECT_DOUBLE_EQ(partition.value, 3);
  EXPECT_DOUBLE_EQ(partition.bound, 3);
  EXPECT_EQ(partition.bound_kind, "average");
  EXPECT_TRUE(partition.optimal);
}

TEST(Partitioner, DropsNoNodeWhereStagesDoNotDivide) {
  std::vector<int> sizes = Sizes(MustPartition(Chain(30), Stages(4)));
  std::sort(sizes.begin(), sizes.end());
  EXPECT_THAT(sizes, ElementsAre(7, 7, 8, 8));
}

TEST(Partitioner, OneStageTakesAllAndIsOptimal) {
  for (const int nodes : {1, 2, 6}) {
    const Partition partition = MustPartition(Chain(nodes, 1, 100), Stages(1));
    EXPECT_THAT(Sizes(partition), ElementsAre(nodes));
    EXPECT_TRUE(partition.optimal);
  }
}

TEST(Partitioner, SplitsTinyGraphs) {
  CostGraph two = Chain(2);
  two.nodes[1].forward_ms = 2;
  EXPECT_THAT(MustPartition(two, Stages(2)).stage_of_node, ElementsAre(0, 1));
  EXPECT_EQ(MustPartition(Chain(3), Stages(2)).value, 2);
  EXPECT_THAT(MustPartition(Chain(3), Stages(3)).stage_of_node, ElementsAre(0, 1, 2));
}

TEST(Partitioner, HugeWeightsDoNotOverflow) {
  for (const double ms : {1.0, 1e9, 1e30, 1e-30}) {
    CostGraph graph = Chain(12, ms, 1'000'000'000);
    for (CostNode& node : graph.nodes) node.saved_bytes = int64_t{1} << 30;
    PartitionOptions options = Stages(4);
    options.memory_bytes = int64_t{3} << 30;
    EXPECT_THAT(Sizes(MustPartition(graph, options)), ElementsAre(3, 3, 3, 3)) << ms;
  }
}

TEST(Partitioner, ReadsOperandsThatRepeat) {
  GraphBuilder builder;
  const int x = builder.Input("x", 4);
  const int y = builder.Node("add", 1, {x, x}, 4);
  const int z = builder.Node("mul", 1, {y, y}, 4);
  builder.Node("cat", 1, {x, y, x, z}, 4);
  const Partition partition = MustPartition(builder.Build(), Stages(2));
  EXPECT_EQ(partition.value, 2);
}

TEST(Partitioner, SplitsNodesWithoutEdges) {
  GraphBuilder builder;
  const int x = builder.Input("x", 4);
  for (int i = 0; i < 4; ++i) builder.Node("f", 1, {x}, 4);
  EXPECT_THAT(Sizes(MustPartition(builder.Build(), Stages(2))), ElementsAre(2, 2));
  GraphBuilder constants;
  for (int i = 0; i < 4; ++i) constants.Node("c", 1, {}, 4);
  EXPECT_THAT(Sizes(MustPartition(constants.Build(), Stages(2))), ElementsAre(2, 2));
}

TEST(Partitioner, GivesABigLayerItsOwnStage) {
  CostGraph graph = Chain(3);
  graph.parameters = {{"w0", 10, 5, true}, {"w1", 5, 5, true}, {"w2", 90, 90, true}};
  for (int i = 0; i < 3; ++i) graph.nodes[i].parameters = {i};
  PartitionOptions options = Stages(2);
  options.state_factor = 1;
  options.memory_bytes = 95;
  const Partition partition = MustPartition(graph, options);
  EXPECT_EQ(partition.stage_of_node[2], 1);
}

TEST(Partitioner, SaysWhichNodeFitsNowhereAndByHowMuch) {
  CostGraph graph = Chain(3);
  graph.parameters = {{"wte.weight", 25, 100, true}};
  graph.nodes[1].parameters = {0};
  graph.nodes[1].module = "wte";
  PartitionOptions options = Stages(3);
  options.memory_bytes = 390;
  const absl::Status status = PartitionGraph(graph, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("node 1 (n1 in wte) alone"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("10 bytes are missing"));
}

TEST(Partitioner, SaysWhichStageIsShortWhereTheWholeDoesNotFit) {
  CostGraph graph = Chain(8);
  for (CostNode& node : graph.nodes) node.saved_bytes = 100;
  PartitionOptions options = Stages(2);
  options.memory_bytes = 350;
  const absl::Status status = PartitionGraph(graph, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("of 2 needs 400 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("50 bytes are missing"));
}

TEST(Partitioner, EarlyStagesHoldMoreMicroBatches) {
  // Equal times; the cap lets the last stage, with one micro-batch in flight, hold six nodes, the
  // first, with two, only three.
  CostGraph graph = Chain(9);
  for (CostNode& node : graph.nodes) node.saved_bytes = 10;
  PartitionOptions options = Stages(2);
  options.in_flight = {1, 2};
  options.memory_bytes = 60;
  EXPECT_THAT(Sizes(MustPartition(graph, options)), ElementsAre(3, 6));
}

TEST(Partitioner, MoreStagesThanNodesIsAnErrorUnlessStagesMayBeEmpty) {
  PartitionOptions options = Stages(8);
  const absl::Status status = PartitionGraph(Chain(3), options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most 3 stage"));
  options.allow_empty_stages = true;
  const Partition partition = MustPartition(Chain(3), options);
  EXPECT_EQ(partition.value, 1);
}

TEST(Partitioner, KeepsGroupsWholeAndWhatTheyEnclose) {
  // n0 and n2 stay together, so n1 between them does too.
  CostGraph graph = Chain(4);
  graph.nodes[0].group = graph.nodes[2].group = 5;
  const Partition partition = MustPartition(graph, Stages(2));
  EXPECT_THAT(partition.stage_of_node, ElementsAre(0, 0, 0, 1));
  EXPECT_EQ(partition.bound_kind, "indivisible");
  EXPECT_TRUE(partition.optimal);
  EXPECT_EQ(PartitionGraph(graph, Stages(3)).status().code(), absl::StatusCode::kInvalidArgument);
}

// 0 => 1 => .. => 39 -> 40: only the last tensor is cheap, and node 40 takes no time.
TEST(Partitioner, AFreeNodeFillsAStageThatMustNotBeEmpty) {
  CostGraph graph = Chain(41, 1, 1'000'000);
  graph.nodes[40].forward_ms = 0;
  for (CostValue& value : graph.values) {
    if (value.consumers == std::vector<int>{40}) value.bytes = 1;
  }
  PartitionOptions options = Stages(2);
  options.bytes_per_ms = 1;
  const Partition partition = MustPartition(graph, options);
  EXPECT_THAT(Sizes(partition), ElementsAre(40, 1));
  EXPECT_TRUE(partition.optimal);
}

// The trained parameter of node 1 costs no memory, but an all-reduce on every stage with replicas.
TEST(Partitioner, ANodeWithGradientsIsNotFree) {
  GraphBuilder builder;
  const int parameter = builder.Parameter("w", 1000);
  int value = builder.Node("first", 9, {}, 0);
  value = builder.Node("free", 0, {value}, 0);
  builder.node_of(value).parameters = {parameter};
  PartitionOptions options = Stages(2);
  options.allow_empty_stages = true;
  options.state_factor = 0;
  options.num_devices = 4;
  options.micro_batches = 6;
  options.all_reduce_bytes_per_ms = 1;
  const Partition partition = MustPartition(builder.Build(), options);
  EXPECT_DOUBLE_EQ(partition.value, 3);
  EXPECT_LE(partition.bound, 3);
}

// 66 and 34 devices are best, which are not among the numbers of replicas that are tried.
TEST(Partitioner, ProvesNothingByTheNumbersOfReplicasThatItTries) {
  CostGraph graph = Chain(2);
  graph.nodes[0].forward_ms = 66;
  graph.nodes[1].forward_ms = 34;
  PartitionOptions options = Stages(2);
  options.num_devices = 100;
  const Partition partition = MustPartition(graph, options);
  EXPECT_LE(partition.bound, 1 + 1e-12);
  EXPECT_LE(partition.value, 1.06);
  EXPECT_FALSE(partition.optimal);
}

// All 67 of the fast type, a number between those tried otherwise.
TEST(Partitioner, AStageMayHaveAllDevicesOfEachType) {
  PartitionOptions options = Stages(1);
  options.device_types = {{100, 1}, {67, 10}};
  const Partition partition = MustPartition(Chain(1, 670), options);
  EXPECT_DOUBLE_EQ(partition.value, 1);
  EXPECT_LE(partition.bound, 1);
}

TEST(Partitioner, RefusesBadOptions) {
  const auto code = [](auto change) {
    PartitionOptions options = Stages(2);
    change(options);
    return PartitionGraph(Chain(4), options).status().code();
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](PartitionOptions& o) { o.num_stages = 0; }), invalid);
  EXPECT_EQ(code([](PartitionOptions& o) { o.bytes_per_ms = 0; }), invalid);
  EXPECT_EQ(code([](PartitionOptions& o) { o.latency_ms = -1; }), invalid);
  EXPECT_EQ(code([](PartitionOptions& o) { o.in_flight = {}; }), invalid);
  EXPECT_EQ(code([](PartitionOptions& o) { o.effort.iterations = -1; }), invalid);
  EXPECT_EQ(code([](PartitionOptions& o) { o.effort.threads = -1; }), invalid);
  EXPECT_EQ(code([](PartitionOptions& o) { o.effort.time_limit_s = -1; }), invalid);
  EXPECT_EQ(code([](PartitionOptions& o) { o.memory_bytes = -1; }), invalid);
  EXPECT_EQ(PartitionGraph(CostGraph(), Stages(1)).status().code(), invalid);
}

TEST(Partitioner, WorkWithoutTimeIsStillSplit) {
  EXPECT_THAT(Sizes(MustPartition(Chain(4, 0, 0), Stages(4))), ElementsAre(1, 1, 1, 1));
}

TEST(Partitioner, SendsLittleAmongEqualBottlenecks) {
  //  a 3 ms ──> b 0 ms ──> c 3 ms: the cut before b sends 8 bytes, the one after it 2.
  GraphBuilder builder;
  const int a = builder.Node("a", 3, {}, 8);
  const int b = builder.Node("b", 0, {a}, 2);
  builder.Node("c", 3, {b}, 0);
  PartitionOptions options = Stages(2);
  options.objective = Objective::kOverlap;
  options.bytes_per_ms = 100;
  EXPECT_THAT(MustPartition(builder.Build(), options).stage_of_node, ElementsAre(0, 0, 1));
}

TEST(Partitioner, KeepsItsPromisesOnRandomGraphsAndAlwaysGivesTheSameAnswer) {
  for (uint64_t seed = 100; seed < 130; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const CostGraph graph = RandomGraph(seed, {.num_nodes = 30 + static_cast<int>(seed % 7) * 25,
                                               .groups = seed % 2 == 0,
                                               .memory = seed % 3 > 0});
    PartitionOptions options = Stages(2 + static_cast<int>(seed % 6));
    options.objective = seed % 4 < 2 ? Objective::kSum : Objective::kOverlap;
    options.bytes_per_ms = 20;
    options.allow_empty_stages = true;  // groups may glue much
    options.in_flight = {1, 2, 3, 4};
    options.effort.iterations = 8;
    options.effort.prove = seed % 5 == 0;  // wide graphs: the whole budget goes, to no avail
    // Half of what one stage would need, if that can be had.
    const auto whole = ComputeMetrics(graph, std::vector<int>(graph.nodes.size(), 0), options);
    options.memory_bytes = whole.stages[0].memory_bytes / 2 + 1;
    absl::StatusOr<Partition> first = PartitionGraph(graph, options);
    if (!first.ok()) {
      EXPECT_EQ(first.status().code(), absl::StatusCode::kResourceExhausted) << first.status();
      continue;
    }
    EXPECT_TRUE(VerifyPartition(graph, *first, options).ok());
    EXPECT_LE(ComputeLowerBound(graph, options).value_ms, first->value * (1 + 1e-9));
    EXPECT_EQ(*PartitionGraph(graph, options), *first);
  }
}

TEST(Partitioner, MoreRoundsAreNeverWorse) {
  const CostGraph graph = RandomGraph(7, {.num_nodes = 300});
  PartitionOptions options = Stages(6);
  options.bytes_per_ms = 20;
  double previous = 1e300;
  for (const int iterations : {0, 8, 32, 128}) {
    options.effort.iterations = iterations;
    const double value = MustPartition(graph, options).value;
    EXPECT_LE(value, previous * (1 + 1e-9));
    previous = value;
  }
}

TEST(Partitioner, SplitsTenThousandNodes) {
  const CostGraph graph = RandomGraph(1, {.num_nodes = 10000, .memory = true});
  PartitionOptions options = Stages(8);
  options.bytes_per_ms = 20;
  options.memory_bytes = int64_t{1} << 40;
  const Partition partition = MustPartition(graph, options);
  EXPECT_TRUE(VerifyPartition(graph, partition, options).ok());
}

}  // namespace
}  // namespace autopart
