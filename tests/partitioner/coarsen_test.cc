#include "partitioner/internal/coarsen.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
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
  options.memory_bytes = int64_t{1} << 40;
  return Reduce(MakeProblem(graph, options));
}

// All that has to hold of every coarsening.
void ExpectSound(const Problem& problem, const Coarsening& coarse, int max_groups) {
  const int num_groups = static_cast<int>(coarse.problem.nodes.size());
  EXPECT_LE(num_groups, std::max<int>(max_groups, 1));
  ASSERT_EQ(coarse.group_of_node.size(), problem.nodes.size());
  std::vector<double> work(num_groups);
  for (size_t n = 0; n < problem.nodes.size(); ++n) {
    const int group = coarse.group_of_node[n];
    ASSERT_GE(group, 0);
    ASSERT_LT(group, num_groups);
    work[group] += problem.nodes[n].work_ms;
    // Labels in a topological order: no arc goes back, so there is no cycle.
    for (const int s : problem.nodes[n].successors) {
      EXPECT_LE(group, coarse.group_of_node[s]) << "arc " << n << " -> " << s;
    }
  }
  size_t elements = 0;
  for (int g = 0; g < num_groups; ++g) {
    EXPECT_NEAR(coarse.problem.nodes[g].work_ms, work[g], 1e-9 * (1 + work[g]));
    EXPECT_FALSE(coarse.problem.nodes[g].elements.empty()) << "group " << g << " is empty";
    elements += coarse.problem.nodes[g].elements.size();
  }
  EXPECT_EQ(elements, static_cast<size_t>(problem.num_elements));
}

TEST(Coarsen, NeverMakesACycleAndLosesNothing) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const int num_nodes = 10 + static_cast<int>(seed * 7 % 300);
    const Problem problem = ProblemOf(RandomGraph(
        seed, {.num_nodes = num_nodes, .groups = seed % 2 == 0, .memory = seed % 3 == 0}));
    const int max_groups = 2 + static_cast<int>(seed * 13 % 60);
    SCOPED_TRACE(absl::StrCat("seed ", seed, " groups ", max_groups));
    ExpectSound(problem, Coarsen(problem, max_groups), max_groups);
    if (HasFailure()) return;
  }
}

TEST(Coarsen, GroupsOfAChainAreEven) {
  const Coarsening coarse = Coarsen(ProblemOf(Chain(1000, 1, 8)), 100);
  EXPECT_LE(coarse.problem.nodes.size(), 100u);
  EXPECT_GE(coarse.problem.nodes.size(), 45u);
  for (const Node& node : coarse.problem.nodes) EXPECT_LE(node.work_ms, 25);
}

// Heads side by side between a split and a join: each stays whole before two are mixed.
TEST(Coarsen, KeepsBranchesApart) {
  constexpr int kHeads = 8, kLength = 10;
  GraphBuilder builder;
  const int split = builder.Node("split", 1, {}, 4);
  std::vector<int> ends;
  for (int h = 0; h < kHeads; ++h) {
    int value = split;
    for (int i = 0; i < kLength; ++i) value = builder.Node("op", 1, {value}, 4);
    ends.push_back(value);
  }
  builder.Node("join", 1, ends, 4);
  const Problem problem = ProblemOf(builder.Build());
  const Coarsening coarse = Coarsen(problem, 12);
  ExpectSound(problem, coarse, 12);
  std::vector<int> heads_of_group(coarse.problem.nodes.size());
  for (int h = 0; h < kHeads; ++h) {
    std::vector<int> groups;
    for (int i = 0; i < kLength; ++i) groups.push_back(coarse.group_of_node[1 + h * kLength + i]);
    std::sort(groups.begin(), groups.end());
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    for (const int g : groups) ++heads_of_group[g];
    EXPECT_LE(groups.size(), 2u) << "head " << h;
  }
  for (const int heads : heads_of_group) EXPECT_LE(heads, 2);
}

}  // namespace
}  // namespace autopart::internal
