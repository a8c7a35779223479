#include "partitioner/internal/order.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "partitioner/internal/reduce.h"
#include "tests/testing/graphs.h"

namespace autopart::internal {
namespace {

using ::autopart::testing::Chain;
using ::autopart::testing::GraphBuilder;
using ::autopart::testing::RandomGraph;

Problem ProblemOf(const CostGraph& graph) {
  PartitionOptions options;
  options.bytes_per_ms = 1;
  return GlueCycles(MakeProblem(graph, options));
}

bool IsTopological(const Problem& problem, const Order& order) {
  std::vector<int> position(problem.nodes.size(), -1);
  for (size_t p = 0; p < order.size(); ++p) position[order[p]] = static_cast<int>(p);
  for (size_t n = 0; n < problem.nodes.size(); ++n) {
    if (position[n] < 0) return false;
    for (const int s : problem.nodes[n].successors) {
      if (position[n] >= position[s]) return false;
    }
  }
  return order.size() == problem.nodes.size();
}

TEST(Order, EveryRuleGivesATopologicalOrder) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Problem problem = ProblemOf(RandomGraph(seed, {.num_nodes = 40, .groups = true}));
    for (const ReadyRule rule : {ReadyRule::kDepthFirst, ReadyRule::kBreadthFirst,
                                 ReadyRule::kRandom, ReadyRule::kLeastCommunication}) {
      for (const bool from_sinks : {false, true}) {
        for (const double noise : {0.0, 0.5, 1.0}) {
          Random random(seed);
          EXPECT_TRUE(
              IsTopological(problem, MakeOrder(problem, {rule, from_sinks, {}, noise}, random)))
              << "seed " << seed;
        }
      }
    }
  }
}

TEST(Order, RanksOfAPartitionComeOneAfterAnother) {
  const Problem problem = ProblemOf(RandomGraph(5, {.num_nodes = 40}));
  Random random(1);
  const Order plain = MakeOrder(problem, {}, random);
  OrderOptions options;
  options.rank.resize(plain.size());
  for (size_t p = 0; p < plain.size(); ++p) options.rank[plain[p]] = static_cast<int>(p / 10);
  options.noise = 1;
  for (const bool from_sinks : {false, true}) {
    options.from_sinks = from_sinks;
    const Order order = MakeOrder(problem, options, random);
    for (size_t p = 0; p < order.size(); ++p) {
      EXPECT_EQ(options.rank[order[p]], static_cast<int>(p / 10));
    }
  }
}

//        ┌─> b ─> c ─┐        two branches: depth first ends one before the other,
//   a ───┤           ├─> f    breadth first goes along both
//        └─> d ─> e ─┘
TEST(Order, DepthFirstEndsABranchBreadthFirstAlternates) {
  GraphBuilder builder;
  const int a = builder.Node("a", 1, {}, 4);
  const int b = builder.Node("b", 1, {a}, 4);
  const int c = builder.Node("c", 1, {b}, 4);
  const int d = builder.Node("d", 1, {a}, 4);
  const int e = builder.Node("e", 1, {d}, 4);
  builder.Node("f", 1, {c, e}, 4);
  const Problem problem = ProblemOf(builder.Build());
  const auto names = [&](ReadyRule rule) {
    Random random(0);
    std::string text;
    for (const int n : MakeOrder(problem, {rule}, random)) {
      text += "abcdef"[problem.nodes[n].elements[0]];
    }
    return text;
  };
  EXPECT_EQ(names(ReadyRule::kDepthFirst), "abcdef");
  const std::string breadth = names(ReadyRule::kBreadthFirst);
  EXPECT_TRUE(breadth == "abdcef" || breadth == "adbecf") << breadth;
}

// Ready: `wide` makes 100 bytes, `narrow` reads 50 and makes 1. The narrow one first.
TEST(Order, LeastCommunicationPrefersWhatShrinksTheCut) {
  GraphBuilder builder;
  const int a = builder.Node("a", 1, {}, 50);
  const int wide = builder.Node("wide", 1, {}, 100);
  const int narrow = builder.Node("narrow", 1, {a}, 1);
  builder.Node("end", 1, {wide, narrow}, 0);
  const Problem problem = ProblemOf(builder.Build());
  Random random(0);
  const Order order = MakeOrder(problem, {ReadyRule::kLeastCommunication}, random);
  std::vector<int> elements;
  for (const int n : order) elements.push_back(problem.nodes[n].elements[0]);
  EXPECT_EQ(elements, (std::vector<int>{0, 2, 1, 3}));
}

TEST(Reduce, GluesWhatWaitsForEachOther) {
  CostGraph graph = Chain(5);
  graph.nodes[1].group = graph.nodes[3].group = 0;
  const Problem problem = ProblemOf(graph);
  ASSERT_EQ(problem.nodes.size(), 3);
  EXPECT_EQ(problem.nodes[1].elements.size(), 3);
  EXPECT_EQ(problem.nodes[1].work_ms, 3);
}

TEST(Reduce, MergesFreeLeavesWhereStagesMayBeEmpty) {
  GraphBuilder builder;
  int value = builder.Node("n", 1, {}, 4);
  for (int i = 0; i < 20; ++i) {
    builder.Node("leaf", 0, {value}, 4);
    value = builder.Node("n", 1, {value, builder.Node("constant", 0, {}, 4)}, 4);
  }
  PartitionOptions options;
  options.bytes_per_ms = 1;
  options.num_stages = 2;
  options.allow_empty_stages = true;
  EXPECT_EQ(Reduce(MakeProblem(builder.Build(), options)).nodes.size(), 21);
  options.allow_empty_stages = false;
  EXPECT_EQ(Reduce(MakeProblem(builder.Build(), options)).nodes.size(), 61);
}

}  // namespace
}  // namespace autopart::internal
