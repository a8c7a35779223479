#include "partitioner/internal/search.h"

#include <chrono>
#include <cmath>
#include <stop_token>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "partitioner/internal/parallel.h"
#include "partitioner/internal/reduce.h"
#include "partitioner/metrics.h"
#include "partitioner/partitioner.h"
#include "tests/testing/graphs.h"

namespace autopart::internal {
namespace {

using ::autopart::testing::RandomGraph;

PartitionOptions Options(int num_stages) {
  PartitionOptions options;
  options.num_stages = num_stages;
  options.bytes_per_ms = 10;
  options.effort.prove = false;
  return options;
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

TEST(Search, TheSameSeedAndIterationsGiveTheSameAnswerOnAnyNumberOfThreads) {
  for (const int num_nodes : {40, 700, 30'000}) {
    const CostGraph graph = RandomGraph(3, {.num_nodes = num_nodes, .memory = true});
    PartitionOptions options = Options(8);
    options.effort.seed = 5;
    options.effort.threads = 1;
    const absl::StatusOr<Partition> alone = PartitionGraph(graph, options);
    ASSERT_TRUE(alone.ok()) << alone.status();
    for (const int threads : {2, 4, 0}) {
      options.effort.threads = threads;
      const absl::StatusOr<Partition> together = PartitionGraph(graph, options);
      ASSERT_TRUE(together.ok()) << together.status();
      EXPECT_EQ(together->stage_of_node, alone->stage_of_node)
          << num_nodes << " nodes, " << threads << " threads";
    }
  }
}

TEST(Search, IterationsCountNotTime) {
  const Problem problem = Reduce(MakeProblem(RandomGraph(9, {.num_nodes = 300}), Options(6)));
  SearchOptions options;
  double previous = std::numeric_limits<double>::infinity();
  for (const int iterations : {0, 4, 40}) {
    options.effort.iterations = iterations;
    const SearchResult result = Search(problem, options);
    ASSERT_TRUE(result.best);
    EXPECT_FALSE(result.time_limit_hit);
    EXPECT_LE(result.value_ms, previous) << iterations;
    previous = result.value_ms;
  }
}

TEST(Search, ATimeLimitIsUsedAndKept) {
  const Problem problem = Reduce(MakeProblem(RandomGraph(4, {.num_nodes = 800}), Options(8)));
  SearchOptions options;
  options.effort.time_limit_s = 0.3;
  const auto start = std::chrono::steady_clock::now();
  const SearchResult result = Search(problem, options);
  const double seconds = Seconds(start);
  ASSERT_TRUE(result.best);
  EXPECT_TRUE(result.time_limit_hit);
  EXPECT_GE(seconds, 0.3);
  // That it ends at all shows that the limit is kept; how late is for the benchmarks.
}

TEST(Search, WithIterationsTheTimeLimitIsOnlyACap) {
  const Problem problem = Reduce(MakeProblem(RandomGraph(4, {.num_nodes = 200}), Options(8)));
  SearchOptions options;
  options.effort.iterations = 2;
  const SearchResult free = Search(problem, options);
  options.effort.time_limit_s = 1000;
  const SearchResult capped = Search(problem, options);
  EXPECT_FALSE(capped.time_limit_hit);
  EXPECT_EQ(capped.best->stage_of_node, free.best->stage_of_node);
}

TEST(Search, AStopEndsItWithTheBestSoFar) {
  const Problem problem = Reduce(MakeProblem(RandomGraph(4, {.num_nodes = 500}), Options(8)));
  std::stop_source stop;
  SearchOptions options;
  options.effort.iterations = 1'000'000'000;
  options.effort.stop = stop.get_token();
  std::jthread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    stop.request_stop();
  });
  const SearchResult result = Search(problem, options);
  ASSERT_TRUE(result.best);
  EXPECT_TRUE(result.time_limit_hit);
}

TEST(Search, HasAnAnswerEvenIfThereIsNoTimeAtAll) {
  PartitionOptions options = Options(8);
  options.effort.time_limit_s = 0;
  for (const int num_nodes : {100, 50'000}) {
    const CostGraph graph = RandomGraph(1, {.num_nodes = num_nodes});
    const absl::StatusOr<Partition> partition = PartitionGraph(graph, options);
    ASSERT_TRUE(partition.ok()) << partition.status();
    EXPECT_TRUE(VerifyPartition(graph, *partition, options).ok());
  }
}

TEST(Search, LargeRandomGraphsGetValidAnswers) {
  for (const bool memory : {false, true}) {
    const CostGraph graph = RandomGraph(7, {.num_nodes = 100'000, .memory = memory});
    const PartitionOptions options = Options(32);
    const absl::StatusOr<Partition> partition = PartitionGraph(graph, options);
    ASSERT_TRUE(partition.ok()) << partition.status();
    const absl::Status valid = VerifyPartition(graph, *partition, options);
    EXPECT_TRUE(valid.ok()) << valid;
  }
}

TEST(RunInParallel, RunsEachTaskOnceAndThrowsTheFirstError) {
  for (const int threads : {0, 1, 3, 100}) {
    std::vector<int> runs(50);
    RunInParallel(50, threads, [&](int i) { ++runs[i]; });
    EXPECT_EQ(runs, std::vector<int>(50, 1));
    try {
      RunInParallel(50, threads, [](int i) {
        if (i % 10 == 3) throw i;
      });
      ADD_FAILURE() << "nothing thrown";
    } catch (int task) {
      EXPECT_EQ(task, 3);
    }
  }
}

}  // namespace
}  // namespace autopart::internal
