// Bounds rule candidates out unseen, so that one above the truth would hide the best plan.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "partitioner/partitioner.h"
#include "pipeline/internal/assign.h"
#include "pipeline/internal/judge.h"
#include "pipeline/internal/memory_bound.h"
#include "pipeline/internal/step_bound.h"
#include "tests/pipeline/random_graph.h"

namespace autopart::internal {
namespace {

// Slices of the order, none empty.
std::vector<int> RandomSplit(std::mt19937& random, int nodes, int stages) {
  std::vector<int> first(nodes - 1);
  for (int n = 1; n < nodes; ++n) first[n - 1] = n;
  std::shuffle(first.begin(), first.end(), random);
  first.resize(stages - 1);
  std::vector<int> split(nodes);
  for (int n = 0; n < nodes; ++n) {
    split[n] = std::count_if(first.begin(), first.end(), [n](int f) { return f <= n; });
  }
  return split;
}

TEST(Bounds, AreNeverAboveWhatTheSimulatorFinds) {
  std::mt19937 random(7);
  int simulated = 0;
  double tightness = 0;  // sum of bound / truth
  int judgements = 0;
  for (int round = 0; round < 150; ++round) {
    const CostGraph graph = RandomGraph(random, 10 + random() % 20);
    const PipelineWork work = WorkOf(graph, true);
    const int ranks = 1 + random() % 4;
    const int replicas = 1 + random() % 2;
    const int micro_batches = replicas * ranks * (1 + random() % 3);
    for (const std::string& schedule : ScheduleNames()) {
      if (schedule == "forward") continue;
      const bool chunked = schedule == "interleaved" || schedule == "zb-v";
      if (chunked && ranks == 1) continue;
      const int stages = ranks * (chunked ? 2 : 1);
      StageAssignment assignment{RandomSplit(random, graph.nodes.size(), stages), {}, {}};
      for (int s = 0; s < stages; ++s) {
        const int lane = schedule == "zb-v" ? std::min(s, stages - 1 - s) : s % ranks;
        assignment.ranks.emplace_back();
        for (int r = 0; r < replicas; ++r) assignment.ranks.back().push_back(r * ranks + lane);
      }
      Plan settings;
      settings.cluster = *UniformCluster("h100", ranks * replicas);
      settings.optimizer = "adam";
      settings.schedule = schedule;
      settings.micro_batches = micro_batches;
      const absl::StatusOr<Plan> plan = AssignPlan(graph, settings, assignment);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const absl::StatusOr<Judgement> truth = Judge(*plan, Precision::kExact);
      ASSERT_TRUE(truth.ok()) << truth.status();
      ++simulated;
      const std::string what = absl::StrCat("round ", round, ", ", schedule, ", ", ranks, " x ",
                                            replicas, ", ", micro_batches);
      const double makespan = truth->plan.predicted_step_ms * (1 + 1e-9);
      const int own = micro_batches / replicas;
      EXPECT_LE(PipelineBoundMs(work, ranks, own), makespan) << what;
      if (schedule == "gpipe" || schedule == "1f1b") {
        EXPECT_LE(AtOncePipelineBoundMs(work, ranks, own), makespan) << what;
      }
      for (const Precision later : {Precision::kExact, Precision::kOnePipeline}) {
        const absl::StatusOr<Judgement> bound = JudgeByOrder(*plan, later);
        ASSERT_TRUE(bound.ok()) << bound.status();
        const absl::StatusOr<Judgement> judged =
            later == Precision::kExact ? truth : Judge(*plan, later);
        ASSERT_TRUE(judged.ok()) << judged.status();
        EXPECT_LE(bound->plan.predicted_step_ms, judged->plan.predicted_step_ms) << what;
        EXPECT_LE(bound->over_bytes, judged->over_bytes) << what;
        tightness += bound->plan.predicted_step_ms / judged->plan.predicted_step_ms;
        ++judgements;
        for (int s = 0; s < stages; ++s) {
          EXPECT_LE(bound->plan.stages[s].peak_memory_bytes,
                    judged->plan.stages[s].peak_memory_bytes)
              << what << ", stage " << s;
        }
      }
    }
  }
  EXPECT_GT(tightness / judgements, 0.95);
  EXPECT_GT(simulated, 400);
}

// A chain of equal nodes, each of 1 ms forward and 2 ms backward, 100 bytes of parameters and 10
// saved bytes.
CostGraph EqualChain(int n) {
  CostGraph graph;
  graph.values.push_back({"input", kModelInput, {0}, 0, 0, kNoView, 0});
  for (int i = 0; i < n; ++i) {
    CostNode node;
    node.forward_ms = node.backward_input_ms = node.backward_weight_ms = 1;
    node.parameters = {i};
    node.saved_bytes = 10;
    graph.nodes.push_back(node);
    graph.parameters.push_back({absl::StrCat("p", i), 25, 100, true});
    std::vector<int> readers;
    if (i + 1 < n) readers.push_back(i + 1);
    graph.values.push_back({absl::StrCat("v", i), i, readers, 1, 1, kNoView, 1});
  }
  graph.results = {n};
  graph.loss = n;
  return graph;
}

TEST(StepBound, OfAShapeKnowsWorkTheHeaviestNodeAndThePath) {
  const PipelineWork work = WorkOf(EqualChain(4), true);
  EXPECT_DOUBLE_EQ(PipelineBoundMs(work, 2, 8), 8 * 12 / 2);
  EXPECT_DOUBLE_EQ(PipelineBoundMs(work, 16, 8), 8 * 3);    // a node is not divided
  EXPECT_DOUBLE_EQ(AtOncePipelineBoundMs(work, 4, 1), 12);  // one micro-batch, all one by one
  EXPECT_DOUBLE_EQ(AtOncePipelineBoundMs(work, 2, 2), 12 / (1 - 0.25));
}

TEST(MemoryBound, IsExactWhereStagesAreAlikeInTheFewBytesThatTheyHold) {
  const LeastBytes least = ComputeLeastMemory(EqualChain(4), 4);
  EXPECT_DOUBLE_EQ(least.state, 1600);
  EXPECT_DOUBLE_EQ(least.saved, 40);
  EXPECT_TRUE(MayFit(least, 4, {1}, 410));
  EXPECT_FALSE(MayFit(least, 4, {1}, 409));
  EXPECT_TRUE(MayFit(least, 2, {8}, 800 + 8 * 20));
  EXPECT_FALSE(MayFit(least, 2, {8}, 800 + 8 * 20 - 1));
  // State where two are in flight, what is saved where one is.
  EXPECT_TRUE(MayFit({100, 100}, 2, {1, 2}, 100));
  EXPECT_FALSE(MayFit({100, 100}, 2, {1, 2}, 99));
}

TEST(MemoryBound, NeverRefusesWhatThePartitionerFits) {
  std::mt19937 random(11);
  int fitted = 0;
  int refused = 0;
  for (int round = 0; round < 200; ++round) {
    const CostGraph graph = RandomGraph(random, 8 + random() % 12);
    PartitionOptions options;
    options.num_stages = 2 + random() % 3;
    options.state_factor = 2 + random() % 3;
    options.in_flight.clear();
    for (int s = 0; s < 3; ++s) options.in_flight.push_back(1 + s * (random() % 3));
    const LeastBytes least = ComputeLeastMemory(graph, options.state_factor);
    options.memory_bytes = static_cast<int64_t>((least.state + least.saved) * (random() % 200) /
                                                100 / options.num_stages);
    options.effort.iterations = 2;
    options.effort.seed = round;
    const bool may_fit = MayFit(least, options.num_stages, options.in_flight, options.memory_bytes);
    const bool fits = PartitionGraph(graph, options).ok();
    EXPECT_TRUE(may_fit || !fits) << "round " << round;
    fitted += fits;
    refused += !may_fit;
  }
  EXPECT_GT(fitted, 20);
  EXPECT_GT(refused, 20);
}

}  // namespace
}  // namespace autopart::internal
