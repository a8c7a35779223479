// METIS only guides, but it has to be called as it can bear.
#include "partitioner/internal/metis.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/graphs.h"

namespace autopart::internal {
namespace {

using ::autopart::testing::Chain;
using ::autopart::testing::GraphBuilder;
using ::autopart::testing::RandomGraph;

PartitionOptions Options() {
  PartitionOptions options;
  options.bytes_per_ms = 1;
  return options;
}

int CountParts(const std::vector<int>& parts) {
  return static_cast<int>(std::set<int>(parts.begin(), parts.end()).size());
}

TEST(Metis, IsNotCalledForOnePart) {
  const Problem problem = MakeProblem(Chain(6, 1, 10), Options());
  EXPECT_EQ(MetisParts(problem, 1), std::vector<int>(6, 0));
}

TEST(Metis, TinyGraphsGetAPartEach) {
  for (const int nodes : {1, 2, 3}) {
    EXPECT_EQ(CountParts(MetisParts(MakeProblem(Chain(nodes, 1, 10), Options()), 4)), nodes);
  }
}

TEST(Metis, WeightsOfAnySizeFitIntoThirtyTwoBits) {
  for (const double ms : {1e-9, 1.0, 1e9, 1e30}) {
    const Problem problem = MakeProblem(Chain(12, ms, 1'000'000'000), Options());
    EXPECT_TRUE(IsSound(MakeUndirected(problem)));
    const std::vector<int> parts = MetisParts(problem, 4);
    EXPECT_EQ(CountParts(parts), 4);
    for (int p = 0; p < 4; ++p) EXPECT_EQ(std::count(parts.begin(), parts.end(), p), 3);
  }
}

TEST(Metis, RepeatedOperandsBecomeOneSymmetricEdge) {
  GraphBuilder builder;
  const int x = builder.Node("x", 1, {}, 4);
  const int y = builder.Node("add", 1, {x, x}, 4);
  const int z = builder.Node("mul", 1, {y, y}, 4);
  builder.Node("cat", 1, {x, y, x, z}, 4);
  const UndirectedGraph graph = MakeUndirected(MakeProblem(builder.Build(), Options()));
  EXPECT_TRUE(IsSound(graph));
  EXPECT_EQ(graph.adjacent.size(), 2 * 5);  // x-y x-cat y-z y-cat z-cat
}

TEST(Metis, GraphsWithoutEdgesAreSplitByWork) {
  GraphBuilder builder;
  for (int i = 0; i < 4; ++i) builder.Node("f", 1, {}, 4);
  const std::vector<int> parts = MetisParts(MakeProblem(builder.Build(), Options()), 2);
  EXPECT_EQ(parts, (std::vector<int>{0, 0, 1, 1}));
}

TEST(Metis, PrintsNothingWhereAllWorkIsInOneNode) {
  ::testing::internal::CaptureStdout();
  for (uint64_t seed = 0; seed < 10; ++seed) {
    CostGraph graph = RandomGraph(seed, {.num_nodes = 60});
    for (CostNode& node : graph.nodes) node.forward_ms = node.backward_input_ms = 0;
    graph.nodes[30].forward_ms = 1000;
    const std::vector<int> parts = MetisParts(MakeProblem(graph, Options()), 48);
    for (const int part : parts) EXPECT_TRUE(part >= 0 && part < 48);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

TEST(Metis, LeavesTheProgramsRandomNumbersAlone) {
  const Problem problem = MakeProblem(RandomGraph(3, {.num_nodes = 80}), Options());
  srand(42);
  const int first = rand();
  const int second = rand();
  srand(42);
  EXPECT_EQ(rand(), first);
  const std::vector<int> parts = MetisParts(problem, 8);
  EXPECT_EQ(rand(), second);
  EXPECT_EQ(MetisParts(problem, 8), parts);
}

}  // namespace
}  // namespace autopart::internal
