// Exact search by itself, without the heuristic: against all partitions of all small graphs.
#include "partitioner/internal/exact.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "partitioner/internal/reduce.h"
#include "partitioner/internal/stage_growth.h"
#include "partitioner/metrics.h"
#include "partitioner/partitioner.h"
#include "tests/testing/graphs.h"
#include "tests/testing/seed.h"

namespace autopart {
namespace {

using ::autopart::testing::GraphBuilder;
using ::autopart::testing::RandomGraph;
using ::autopart::testing::Replay;
using ::autopart::testing::Seeds;
using ::autopart::testing::TestRandom;

struct Best {
  std::optional<double> value;  // empty where nothing fits
  int64_t least_memory = std::numeric_limits<int64_t>::max();
};

// Over all assignments without gaps in which edges go forward and groups stay whole, by the
// referee.
class AllPartitions {
 public:
  AllPartitions(const CostGraph& graph, const PartitionOptions& options)
      : graph_(graph), options_(options), stage_(graph.nodes.size()), least_(graph.nodes.size()) {
    for (const CostValue& value : graph.values) {
      if (value.producer == kModelInput) continue;
      for (const int consumer : value.consumers) least_[consumer].push_back(value.producer);
    }
    Visit(0);
  }

  const Best& best() const { return best_; }

 private:
  void Visit(size_t node) {
    if (node == stage_.size()) return Score();
    int from = 0;
    for (const int before : least_[node]) from = std::max(from, stage_[before]);
    for (stage_[node] = from; stage_[node] < options_.num_stages; ++stage_[node]) {
      if (KeepsGroup(node)) Visit(node + 1);
    }
  }

  bool KeepsGroup(size_t node) const {
    const int group = graph_.nodes[node].group;
    for (size_t n = 0; group != kNoGroup && n < node; ++n) {
      if (graph_.nodes[n].group == group && stage_[n] != stage_[node]) return false;
    }
    return true;
  }

  void Score() {
    const std::set<int> used(stage_.begin(), stage_.end());
    const int num_used = static_cast<int>(used.size());
    if (*used.rbegin() != num_used - 1) return;
    if (num_used < options_.num_stages && !options_.allow_empty_stages) return;
    const PartitionMetrics metrics = ComputeMetrics(graph_, stage_, options_);
    int64_t memory = 0;
    for (const StageMetrics& stage : metrics.stages) memory = std::max(memory, stage.memory_bytes);
    best_.least_memory = std::min(best_.least_memory, memory);
    if (memory > options_.memory_bytes) return;
    if (!best_.value || metrics.max_load_ms < *best_.value) best_.value = metrics.max_load_ms;
  }

  const CostGraph& graph_;
  const PartitionOptions& options_;
  std::vector<int> stage_;
  std::vector<std::vector<int>> least_;  // producers
  Best best_;
};

// Of stages, objective, empty stages, memory: as `which` says.
PartitionOptions OptionsFor(TestRandom& random, int num_stages) {
  PartitionOptions options;
  options.num_stages = num_stages;
  options.objective = random.OneIn(2) ? Objective::kSum : Objective::kOverlap;
  options.allow_empty_stages = random.OneIn(3);
  options.bytes_per_ms = 10;
  options.latency_ms = 0.25 * random.Below(3);
  options.in_flight = {1, 2, 3};
  if (random.OneIn(2)) options.memory_bytes = 60 + random.Below(400);
  return options;
}

void ExpectExact(const CostGraph& graph, const PartitionOptions& options) {
  const Best best = AllPartitions(graph, options).best();
  const internal::Problem problem = internal::Reduce(internal::MakeProblem(graph, options));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const internal::ExactResult result = internal::SearchExactly(problem, {.below_ms = kInfinity});
  ASSERT_TRUE(result.finished);
  ASSERT_EQ(result.better.has_value(), best.value.has_value());
  if (best.value) {
    EXPECT_NEAR(result.value_ms, *best.value, 1e-9 * *best.value);
    EXPECT_EQ(result.bound_ms, result.value_ms);
    const std::vector<int> stage_of_node =
        internal::StageOfElement(problem, result.better->stage_of_node);
    const PartitionMetrics metrics = ComputeMetrics(graph, stage_of_node, options);
    EXPECT_NEAR(metrics.max_load_ms, *best.value, 1e-9 * *best.value);
    for (const StageMetrics& stage : metrics.stages) {
      EXPECT_LE(stage.memory_bytes, options.memory_bytes);
    }
    // Below the best there is nothing, just above it the best.
    EXPECT_FALSE(internal::SearchExactly(problem, {.below_ms = *best.value}).better.has_value());
    EXPECT_EQ(internal::SearchExactly(problem, {.below_ms = *best.value * 1.01}).value_ms,
              result.value_ms);
  } else if (best.least_memory < std::numeric_limits<int64_t>::max()) {
    internal::LeastMemory known;
    known.bytes = 1e6;  // more than all of it
    const internal::LeastMemory least = internal::FindLeastMemory(problem, known, {});
    EXPECT_TRUE(least.proven);
    EXPECT_EQ(std::ceil(least.bytes), static_cast<double>(best.least_memory));
  }
}

// Bit e of `edges` says whether the e-th pair of nodes is joined.
CostGraph GraphOfEdges(int num_nodes, int64_t edges, TestRandom& random) {
  GraphBuilder builder;
  const int input = builder.Input("x", random.Below(30));
  std::vector<int> values;
  int pair = 0;
  for (int n = 0; n < num_nodes; ++n) {
    std::vector<int> reads;
    if (n == 0 || random.OneIn(4)) reads.push_back(input);
    for (int from = 0; from < n; ++from, ++pair) {
      if (edges >> pair & 1) reads.push_back(values[from]);
    }
    const int made = builder.Node(absl::StrCat("n", n), random.Below(8), reads, random.Below(40));
    CostNode& node = builder.node_of(made);
    node.backward_input_ms = random.Below(4);
    if (random.OneIn(2)) builder.value(made).gradient_bytes = random.Below(40);
    node.saved_bytes = random.Below(10);
    node.temporary_bytes = random.Below(30);
    if (!reads.empty() && random.OneIn(2)) node.saved_values.push_back(reads[0]);
    values.push_back(made);
  }
  CostGraph graph = builder.Build();
  graph.results = {values.back()};
  return graph;
}

void CheckAllGraphs(int num_nodes) {
  const int64_t count = int64_t{1} << (num_nodes * (num_nodes - 1) / 2);
  for (int64_t edges = 0; edges < count; ++edges) {
    SCOPED_TRACE(absl::StrCat(num_nodes, " nodes, edges ", edges));
    TestRandom random(edges);
    const CostGraph graph = GraphOfEdges(num_nodes, edges, random);
    ExpectExact(graph, OptionsFor(random, 1 + static_cast<int>(edges % 4)));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Exact, AllGraphsUpToFiveNodes) {
  for (int n = 1; n <= 5; ++n) CheckAllGraphs(n);
}

TEST(ExactSlow, AllGraphsOfSixNodes) { CheckAllGraphs(6); }

void CheckRandomGraphs(uint64_t first, int count) {
  for (const uint64_t seed : Seeds(first, count)) {
    SCOPED_TRACE(Replay(seed));
    TestRandom random(seed);
    const int num_nodes = 5 + random.Below(8);
    const CostGraph graph = RandomGraph(seed, {num_nodes, random.OneIn(3), random.OneIn(2)});
    ExpectExact(graph, OptionsFor(random, num_nodes > 9 ? 2 : 1 + random.Below(4)));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Exact, RandomGraphsUpToTwelveNodes) { CheckRandomGraphs(0, 1000); }

TEST(ExactSlow, ManyRandomGraphsUpToTwelveNodes) { CheckRandomGraphs(10'000, 20'000); }

TEST(Exact, EndsWithABoundAtMostTheBestWhenStepsRunOut) {
  for (const uint64_t seed : Seeds(0, 60)) {
    SCOPED_TRACE(Replay(seed));
    PartitionOptions options;
    options.num_stages = 4;
    options.bytes_per_ms = 20;
    const CostGraph graph = RandomGraph(seed, {.num_nodes = 16});
    const internal::Problem problem = internal::Reduce(internal::MakeProblem(graph, options));
    const internal::ExactResult best = internal::SearchExactly(problem, {.below_ms = 1e6});
    ASSERT_TRUE(best.finished);
    for (const int64_t steps : {100, 1000, 10'000, 100'000}) {
      internal::ExactOptions few;
      few.below_ms = best.value_ms * 1.1;
      few.max_steps = steps;
      const internal::ExactResult result = internal::SearchExactly(problem, few);
      EXPECT_LE(result.bound_ms, best.value_ms * (1 + 1e-9));
      EXPECT_LE(result.steps, steps + 2000);
      EXPECT_TRUE(!result.better || result.value_ms >= best.value_ms * (1 - 1e-9));
      EXPECT_TRUE(!result.finished || result.value_ms == best.value_ms);
    }
    bool asked = false;
    internal::ExactOptions stopped;
    stopped.below_ms = 1e6;
    stopped.stop = [&] { return asked = true; };
    EXPECT_FALSE(internal::SearchExactly(problem, stopped).finished);
    EXPECT_TRUE(asked);
  }
}

// Each stage behind a downset that keeps to the limit, once; by trying all sets.
TEST(StageGrowth, GivesEveryStageWithinTheLimitOnce) {
  for (const uint64_t seed : Seeds(0, 40)) {
    SCOPED_TRACE(Replay(seed));
    TestRandom random(seed);
    PartitionOptions options;
    options.num_stages = 3;
    options.objective = random.OneIn(2) ? Objective::kSum : Objective::kOverlap;
    options.bytes_per_ms = 20;
    const internal::Problem problem =
        internal::GlueCycles(internal::MakeProblem(RandomGraph(seed, {.num_nodes = 11}), options));
    const internal::StageChoices choices(problem);
    internal::StageGrowth growth(problem, choices);
    const int num_nodes = static_cast<int>(problem.nodes.size());
    const auto is_downset = [&](internal::Word set) {
      for (int n = 0; n < num_nodes; ++n) {
        for (const int p : problem.nodes[n].predecessors) {
          if ((set >> n & 1) && !(set >> p & 1)) return false;
        }
      }
      return true;
    };
    for (internal::Word before = 0; before < internal::Word{1} << num_nodes; before += 1 + before) {
      if (!is_downset(before)) continue;
      internal::StageGrowth::Limits limits;
      limits.load = 5 + random.Below(40);
      limits.kind = choices.kinds()[0];
      std::set<internal::Word> expected, got;
      for (internal::Word after = 0; after < internal::Word{1} << num_nodes; ++after) {
        if ((before & ~after) != 0 || after == before || !is_downset(after)) continue;
        const double load =
            growth.LoadOf(limits.kind, growth.Evaluate(&before, &after, limits.kind.is_cpu));
        if (load <= limits.load) expected.insert(after);
      }
      internal::StepBudget budget(100'000'000, {});
      EXPECT_TRUE(growth.Grow(&before, limits, budget, [&] {
        EXPECT_TRUE(got.insert(before | growth.stage()[0]).second) << "twice";
        const internal::Word after = before | growth.stage()[0];
        EXPECT_NEAR(growth.LoadOf(limits.kind, growth.load()),
                    growth.LoadOf(limits.kind, growth.Evaluate(&before, &after, false)), 1e-9);
        return true;
      }));
      EXPECT_EQ(got, expected);
    }
  }
}

}  // namespace
}  // namespace autopart
