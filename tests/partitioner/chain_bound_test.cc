// The bound by refuted chains against exhaustive search, and on drawn graphs whose bound is known.
#include "partitioner/internal/chain_bound.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "partitioner/internal/random.h"
#include "tests/testing/problems.h"

namespace autopart::internal {
namespace {

using ::autopart::testing::AddEdge;
using ::autopart::testing::ValueOf;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double Optimum(const Problem& problem) {
  std::vector<bool> cpu(problem.num_stages + problem.num_cpus);
  std::fill(cpu.end() - problem.num_cpus, cpu.end(), true);
  std::sort(cpu.begin(), cpu.end());
  double best = kInfinity;
  do {
    std::vector<int> place(problem.nodes.size());
    const std::function<void(size_t)> place_from = [&](size_t v) {
      if (v == place.size()) {
        best = std::min(best, ValueOf(problem, place, cpu));
        return;
      }
      int earliest = 0;
      for (const int p : problem.nodes[v].predecessors) earliest = std::max(earliest, place[p]);
      for (place[v] = earliest; place[v] < static_cast<int>(cpu.size()); ++place[v]) {
        place_from(v + 1);
      }
    };
    place_from(0);
  } while (std::next_permutation(cpu.begin(), cpu.end()));
  return best;
}

Problem RandomProblem(uint64_t seed) {
  Random random(seed);
  Problem problem;
  const int n = 2 + random.Below(7);
  problem.num_elements = n;
  problem.num_stages = 2 + random.Below(n > 6 ? 2 : 3);
  problem.num_cpus = random.Below(4) == 0 ? 1 : 0;
  problem.objective = random.Below(2) == 0 ? Objective::kSum : Objective::kOverlap;
  problem.allow_empty_stages = true;
  problem.nodes.resize(n);
  const double density = random.Uniform();
  for (int v = 0; v < n; ++v) {
    problem.nodes[v].elements = {v};
    problem.nodes[v].work_ms = random.Below(4) == 0 ? 0 : random.Below(10);
    problem.nodes[v].cpu_ms = random.Below(30);
    for (int u = 0; u < v; ++u) {
      if (random.Uniform() < density * 0.7) AddEdge(problem, u, v);
    }
  }
  const int num_tensors = random.Below(2 * n);
  for (int t = 0; t < num_tensors; ++t) {
    Tensor tensor;
    for (int v = 0; v < n; ++v) {
      if (random.Below(3) == 0) tensor.nodes.push_back(v);
    }
    // Also values that a backward pass makes on a later stage for an earlier one.
    if (!tensor.nodes.empty()) tensor.producer = tensor.nodes[random.Below(tensor.nodes.size())];
    if (!tensor.nodes.empty() && random.Below(5) == 0) tensor.producer = kCaller;
    if (tensor.nodes.size() + (tensor.producer == kCaller) < 2) continue;
    tensor.forward_ms = random.Below(5);
    tensor.backward_ms = random.Below(3);
    problem.tensors.push_back(tensor);
  }
  return problem;
}

TEST(ChainBound, IsNeverAboveTheOptimumOfRandomProblems) {
  double gap = 0;
  int exact = 0;
  constexpr int kProblems = 3000;
  for (int seed = 0; seed < kProblems; ++seed) {
    const Problem problem = RandomProblem(seed);
    const double optimum = Optimum(problem);
    Random random(seed + 1'000'000);
    ChainBoundOptions options;
    options.value_ms = 2 * optimum + 1;  // so that nothing but proof holds the bound down
    options.buckets_per_stage = {1 << random.Below(6)};
    options.max_branchings = std::vector<int>{0, 1, 5, 100}[random.Below(4)];
    if (random.Below(2) == 0) options.largest_whole = 0;
    const double bound = ChainBound(problem, options);
    ASSERT_LE(bound, optimum * (1 + 1e-9) + 1e-9) << "seed " << seed;
    ASSERT_GE(bound, 0) << "seed " << seed;
    gap += optimum > 0 ? 1 - bound / optimum : 0;
    exact += bound >= optimum * (1 - 1e-3);
  }
  RecordProperty("mean_gap_percent", std::to_string(100 * gap / kProblems));
  RecordProperty("exact", exact);
  EXPECT_GT(exact, kProblems / 4) << "mean gap " << gap / kProblems;
}

// A chain of equal nodes whose tensors all cost 1: two cuts, the middle stage pays both.
//
//   4 --1-- 4 --1-- 4 --1-- 4 --1-- 4 --1-- 4        3 stages: 8 + 2 = 10
TEST(ChainBound, CountsBothEndsOfAMiddleStage) {
  Problem problem;
  problem.num_elements = 6;
  problem.num_stages = 3;
  problem.nodes.resize(6);
  for (int v = 0; v < 6; ++v) problem.nodes[v].work_ms = 4;
  for (int v = 0; v + 1 < 6; ++v) {
    AddEdge(problem, v, v + 1);
    problem.tensors.push_back({v, {v, v + 1}, 1, 0});
  }
  ASSERT_EQ(Optimum(problem), 10);
  ChainBoundOptions options;
  options.value_ms = 10;
  EXPECT_NEAR(ChainBound(problem, options), 10, 0.02);
}

//   cell         cell         cheap to cut between cells only, and there the work is uneven:
//     +-5-+        +-5-+
//  1 -+-5-+- 1 -1- +-5-+- 1   a minimum cut that forgets the work would go there for any bucket
//     +-5-+        +-5-+
TEST(ChainBound, KeepsTheCutInsideItsBucket) {
  Problem problem;
  problem.num_elements = 9;
  problem.num_stages = 3;
  const std::vector<double> work = {1, 5, 5, 5, 1, 5, 5, 5, 1};
  problem.nodes.resize(work.size());
  for (size_t v = 0; v < work.size(); ++v) problem.nodes[v].work_ms = work[v];
  for (const int first : {0, 4}) {
    for (int branch = first + 1; branch < first + 4; ++branch) {
      AddEdge(problem, first, branch);
      AddEdge(problem, branch, first + 4);
      problem.tensors.push_back({branch, {branch, first + 4}, 3, 0});
    }
    problem.tensors.push_back({first, {first, first + 1, first + 2, first + 3}, 1, 0});
  }
  const double optimum = Optimum(problem);
  ChainBoundOptions options;
  options.value_ms = optimum;
  EXPECT_GE(ChainBound(problem, options), 0.98 * optimum) << optimum;
}

TEST(ChainBound, SameStepsSameBound) {
  const Problem problem = RandomProblem(17);
  ChainBoundOptions options;
  options.value_ms = 100;
  options.max_steps = 500;
  EXPECT_EQ(ChainBound(problem, options), ChainBound(problem, options));
}

TEST(ChainBound, AStopLeavesTheBoundThatWasKnown) {
  ChainBoundOptions options;
  options.value_ms = 100;
  options.bound_ms = 1;
  options.stop = [] { return true; };
  const double bound = ChainBound(RandomProblem(3), options);
  EXPECT_GE(bound, 1);
}

TEST(ChainBound, ProblemsWithoutWorkHaveNoBound) {
  Problem problem;
  problem.num_stages = 2;
  problem.nodes.resize(3);
  AddEdge(problem, 0, 1);
  ChainBoundOptions options;
  EXPECT_EQ(ChainBound(problem, options), 0);
}

}  // namespace
}  // namespace autopart::internal
