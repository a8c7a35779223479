// The flow from problem to certificate: which phases run, and what a limit on time does.
#include "partitioner/internal/solve.h"

#include "gtest/gtest.h"
#include "partitioner/internal/reduce.h"
#include "tests/testing/graphs.h"

namespace autopart::internal {
namespace {

using ::autopart::testing::RandomGraph;

Problem RandomProblem(int num_nodes, int num_stages) {
  PartitionOptions options;
  options.num_stages = num_stages;
  options.objective = Objective::kSum;
  options.bytes_per_ms = 20;
  options.allow_empty_stages = true;
  return GlueCycles(MakeProblem(RandomGraph(3, {.num_nodes = num_nodes}), options));
}

TEST(Solve, ProvesASmallProblemWithOrWithoutALimitAndOnAnyThreads) {
  const Problem problem = RandomProblem(14, 3);
  const Solution plain = Solve(problem, {});
  EXPECT_TRUE(plain.optimal);
  EXPECT_EQ(plain.bound_ms, plain.value_ms);
  for (const int threads : {1, 2}) {
    Effort effort;
    effort.time_limit_s = 60;
    effort.threads = threads;
    const Solution limited = Solve(problem, effort);
    EXPECT_TRUE(limited.optimal);
    EXPECT_FALSE(limited.time_limit_hit);
    EXPECT_EQ(limited.value_ms, plain.value_ms);
  }
}

TEST(Solve, EndsAHardProblemAtTheLimitWithAnAnswerAndABoundBelowIt) {
  const Problem problem = RandomProblem(300, 8);
  for (const int threads : {1, 2}) {
    Effort effort;
    effort.time_limit_s = 1;
    effort.threads = threads;
    const Solution solution = Solve(problem, effort);
    ASSERT_TRUE(solution.best.has_value());
    EXPECT_TRUE(solution.optimal || solution.time_limit_hit);
    EXPECT_GT(solution.bound_ms, 0);
    EXPECT_LE(solution.bound_ms, solution.value_ms);
    EXPECT_EQ(solution.optimal, solution.value_ms <= solution.bound_ms * (1 + 1e-9));
  }
}

TEST(Solve, StopsWhenAsked) {
  const Problem problem = RandomProblem(300, 8);
  std::stop_source source;
  source.request_stop();
  Effort effort;
  effort.time_limit_s = 1e6;
  effort.stop = source.get_token();
  const Solution solution = Solve(problem, effort);
  ASSERT_TRUE(solution.best.has_value());
  EXPECT_TRUE(solution.time_limit_hit);
}

TEST(Solve, ProvesOnlyWhatIsCheapWhereNoProofIsWanted) {
  Effort effort;
  effort.prove = false;
  const Solution solution = Solve(RandomProblem(14, 3), effort);
  EXPECT_TRUE(solution.bound_kind == "average" || solution.bound_kind == "indivisible")
      << solution.bound_kind;
}

TEST(Solve, GivesTheSameCertificateEachTimeWithoutALimit) {
  const Problem problem = RandomProblem(120, 5);
  const Solution first = Solve(problem, {});
  Effort effort;
  effort.threads = 1;
  const Solution second = Solve(problem, effort);
  EXPECT_EQ(first.value_ms, second.value_ms);
  EXPECT_EQ(first.bound_ms, second.bound_ms);
  EXPECT_EQ(first.bound_kind, second.bound_kind);
  EXPECT_EQ(first.best->stage_of_element, second.best->stage_of_element);
}

}  // namespace
}  // namespace autopart::internal
