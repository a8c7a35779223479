// Refinement never breaks or worsens a partition, and finds the moves that a drawing shows.
#include "partitioner/internal/refine.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "partitioner/internal/random.h"
#include "tests/testing/problems.h"

namespace autopart::internal {
namespace {

using ::autopart::testing::AddEdge;
using ::autopart::testing::ValueOf;

double ValueOf(const Problem& problem, const Assignment& assignment) {
  return ValueOf(problem, assignment.stage_of_node, assignment.is_cpu);
}

Problem RandomProblem(Random& random) {
  Problem problem;
  const int n = 5 + random.Below(40);
  problem.num_elements = n;
  problem.num_stages = 2 + random.Below(4);
  problem.num_cpus = random.Below(3) == 0 ? 1 : 0;
  problem.objective = random.Below(2) == 0 ? Objective::kSum : Objective::kOverlap;
  problem.nodes.resize(n);
  for (int v = 0; v < n; ++v) {
    problem.nodes[v].elements = {v};
    problem.nodes[v].work_ms = random.Below(10);
    problem.nodes[v].cpu_ms = random.Below(20);
    Tensor tensor{
        random.Below(9) == 0 ? kCaller : v, {v}, 1.0 * random.Below(4), 1.0 * random.Below(3)};
    for (int u = v + 1; u < n; ++u) {
      if (random.Below(n) > 2) continue;
      if (tensor.producer != kCaller) AddEdge(problem, v, u);
      tensor.nodes.push_back(u);
    }
    if (tensor.nodes.size() > 1) problem.tensors.push_back(tensor);
  }
  return problem;
}

TEST(Refine, KeepsArcsForwardAndIsNeverWorseAndCountsTheValueRight) {
  int better = 0;
  for (int seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Problem problem = RandomProblem(random);
    const int places = problem.num_stages + problem.num_cpus;
    Assignment start;
    start.is_cpu.assign(places, false);
    if (problem.num_cpus > 0) start.is_cpu[random.Below(places)] = true;
    const int n = static_cast<int>(problem.nodes.size());
    for (int v = 0; v < n; ++v) start.stage_of_node.push_back(v * places / n);
    const Refined refined = Refine(problem, start, 10);
    EXPECT_LE(refined.value_ms, ValueOf(problem, start) + 1e-9);
    EXPECT_NEAR(refined.value_ms, ValueOf(problem, refined.assignment), 1e-9);
    EXPECT_EQ(refined.assignment.is_cpu, start.is_cpu);
    const std::vector<int>& place = refined.assignment.stage_of_node;
    for (int v = 0; v < n; ++v) {
      for (const int s : problem.nodes[v].successors) ASSERT_LE(place[v], place[s]);
    }
    for (int stage = 0; stage < places; ++stage) {
      const bool had = std::count(start.stage_of_node.begin(), start.stage_of_node.end(), stage);
      const bool has = std::count(place.begin(), place.end(), stage);
      EXPECT_EQ(had, has) << stage;
    }
    better += refined.value_ms < ValueOf(problem, start) - 1e-9;
  }
  EXPECT_GT(better, 1000);
}

//   0: 1 - 1 - 1 - 1 - 1 - 1 | 1: 1      the last three go over together or one by one: 4 | 3
TEST(Refine, EvensOutAChain) {
  Problem problem;
  problem.num_elements = 7;
  problem.num_stages = 2;
  problem.nodes.resize(7);
  for (int v = 0; v < 7; ++v) problem.nodes[v].work_ms = 1;
  for (int v = 0; v + 1 < 7; ++v) AddEdge(problem, v, v + 1);
  Assignment start;
  start.stage_of_node = {0, 0, 0, 0, 0, 0, 1};
  start.is_cpu = {false, false};
  EXPECT_EQ(Refine(problem, start, 10).value_ms, 4);
}

TEST(Refine, LeavesProblemsAloneWhereBytesDecide) {
  Problem problem;
  problem.num_elements = 3;
  problem.num_stages = 2;
  problem.memory_bytes = 100;
  problem.nodes.resize(3);
  for (Node& node : problem.nodes) node.work_ms = 1;
  Assignment start;
  start.stage_of_node = {0, 0, 1};
  start.is_cpu = {false, false};
  const Refined refined = Refine(problem, start, 10);
  EXPECT_EQ(refined.assignment.stage_of_node, start.stage_of_node);
  EXPECT_EQ(refined.value_ms, 2);
}

}  // namespace
}  // namespace autopart::internal
