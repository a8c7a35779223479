#include "pipeline/planner.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "pipeline/simulate.h"
#include "tests/pipeline/random_graph.h"

namespace autopart {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

// A chain of layers, each with a parameter and an output of bytes_each that it saves.
CostGraph Chain(const std::vector<double>& forward_ms, int64_t bytes_each = kMiB) {
  CostGraph graph;
  graph.model_hash = "chain";
  graph.values.push_back({"input", kModelInput, {0}, bytes_each, 0, kNoView, 0});
  const int n = forward_ms.size();
  for (int i = 0; i < n; ++i) {
    graph.parameters.push_back(
        {absl::StrCat("layer.", i, ".weight"), bytes_each / 4, bytes_each, true});
    CostNode node;
    node.name = "aten::linear";
    node.module = absl::StrCat("layer.", i);
    node.forward_ms = node.backward_input_ms = node.backward_weight_ms = forward_ms[i];
    node.parameters = {i};
    node.saved_values = {i};
    graph.nodes.push_back(node);
    std::vector<int> readers;
    if (i + 1 < n) readers.push_back(i + 1);
    graph.values.push_back(
        {absl::StrCat("v", i), i, readers, bytes_each, bytes_each, kNoView, bytes_each});
  }
  graph.results = {n};
  graph.loss = n;
  return graph;
}

Cluster Devices(int n) { return *UniformCluster("h100", n); }

TEST(MakePlan, BalancesAPipelineAndCountsEverythingOnce) {
  const CostGraph graph = Chain(std::vector<double>(12, 1.0));
  PlannerOptions options;
  options.stages = 4;
  options.micro_batches = 8;
  const absl::StatusOr<Plan> plan = MakePlan(graph, Devices(4), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(Validate(*plan, graph).ok()) << Validate(*plan, graph);
  EXPECT_EQ(plan->stages.size(), 4);
  int64_t parameters = 0;
  for (const PlanStage& stage : plan->stages) {
    EXPECT_EQ(stage.operators, 3);
    EXPECT_EQ(stage.forward_ms, 3);
    EXPECT_EQ(stage.backward_ms, 6);
    parameters += stage.parameters;
  }
  EXPECT_EQ(parameters, plan->model.parameters);
  EXPECT_EQ(plan->stages[1].first_module, "layer.3");
  EXPECT_EQ(plan->stages[1].last_module, "layer.5");
  // (m + p - 1) (F + B), and little for messages and optimizer.
  EXPECT_GT(plan->predicted_step_ms, 11 * 9);
  EXPECT_LT(plan->predicted_step_ms, 11 * 9 + 1);
  EXPECT_EQ(plan->bound_kind, "work");
  EXPECT_NEAR(plan->bound_ms, 8 * 9, 1e-6);
}

TEST(MakePlan, PrefersReplicasWhereTheyFit) {
  const Plan plan = *MakePlan(Chain(std::vector<double>(12, 1.0)), Devices(4), {});
  EXPECT_EQ(plan.stages.size(), 1);  // no bubble
  EXPECT_THAT(plan.stages[0].ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_FALSE(plan.alternatives.empty());
}

TEST(MakePlan, NumbersTheRanksOfAPipelineInARow) {
  PlannerOptions options;
  options.stages = 2;
  const Plan plan = *MakePlan(Chain(std::vector<double>(4, 1.0)), Devices(4), options);
  EXPECT_THAT(plan.stages[0].ranks, ElementsAre(0, 2));
  EXPECT_THAT(plan.stages[1].ranks, ElementsAre(1, 3));
}

TEST(MakePlan, CutsWhereWeightsDoNotFitOnOneDevice) {
  // 12 MiB of weights, 48 MiB with gradients and Adam: too much for one device of 40 MiB.
  PlannerOptions options;
  options.memory_bytes = 40 * kMiB;
  const absl::StatusOr<Plan> plan =
      MakePlan(Chain(std::vector<double>(12, 1.0)), Devices(4), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GT(plan->stages.size(), 1);
  for (const PlanStage& stage : plan->stages) EXPECT_LE(stage.peak_memory_bytes, 40 * kMiB);
  bool one_stage_refused = false;
  for (const PlanAlternative& a : plan->alternatives) {
    one_stage_refused |= a.stages == 1 && a.reason.find("does not fit: stage 0 needs") == 0;
  }
  EXPECT_TRUE(one_stage_refused);
}

TEST(MakePlan, SaysByHowManyBytesTheNearestPlanMisses) {
  PlannerOptions options;
  options.memory_bytes = 3 * kMiB;
  const absl::Status status =
      MakePlan(Chain(std::vector<double>(4, 1.0)), Devices(4), options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no plan fits into 3.00 MiB a device"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes too many"));
}

TEST(MakePlan, SaysTheUnitOfWhatIsTooMuch) {
  PlannerOptions options;
  options.memory_bytes = 10;
  const absl::Status status =
      MakePlan(Chain(std::vector<double>(4, 1.0)), Devices(4), options).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("MiB of 10 B"));
}

TEST(MakePlan, RefusesImpossibleWishes) {
  const CostGraph graph = Chain(std::vector<double>(6, 1.0));
  struct Row {
    const char* name;
    void (*wish)(PlannerOptions&);
    const char* expected;
  };
  for (const Row& row : {
           Row{"too many stages", [](PlannerOptions& o) { o.stages = 8; },
               "cannot make 8 stages: the model has 6 operators"},
           {"no divisor", [](PlannerOptions& o) { o.stages = 3; },
            "8 devices cannot be shared out evenly among 3 stages: possible are 1, 2, 4, 8"},
           {"product",
            [](PlannerOptions& o) {
              o.stages = 2;
              o.replicas = 2;
            },
            "2 stages of 2 replicas need 4 devices, not 8"},
           {"replicas", [](PlannerOptions& o) { o.replicas = 3; }, "stages of 3 replicas"},
           {"zero stages", [](PlannerOptions& o) { o.stages = 0; }, "must be at least 1, not 0"},
           {"zero micro-batches", [](PlannerOptions& o) { o.micro_batches = 0; },
            "the number of micro-batches must be at least 1, not 0"},
           {"micro-batches beyond sense", [](PlannerOptions& o) { o.micro_batches = 99999999; },
            "must be at most 100000, not 99999999"},
           {"schedule", [](PlannerOptions& o) { o.schedule = "zigzag"; },
            "unknown schedule 'zigzag': known are gpipe, 1f1b, interleaved, zb-h1, zb-v, forward"},
           {"inference", [](PlannerOptions& o) { o.schedule = "forward"; }, "is for inference"},
           {"optimizer", [](PlannerOptions& o) { o.optimizer = "lion"; }, "unknown optimizer"},
           {"pins",
            [](PlannerOptions& o) {
              o.pinned_stage_of_node = {0, 1};
            },
            "pins for 2 nodes"},
       }) {
    PlannerOptions options;
    row.wish(options);
    const absl::Status status = MakePlan(graph, Devices(8), options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.expected)) << row.name;
  }
  EXPECT_THAT(std::string(MakePlan(graph, Devices(1000000), {}).status().message()),
              HasSubstr("at most 16384 devices, not 1000000"));
  EXPECT_EQ(MakePlan(CostGraph(), Devices(1), {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Pins, AreHonouredLiterally) {
  const CostGraph graph = Chain(std::vector<double>(6, 1.0));
  PlannerOptions options;
  options.pinned_stage_of_node = {0, 1, 1, 1, 1, 1};
  const Plan plan = *MakePlan(graph, Devices(2), options);
  EXPECT_THAT(plan.stages[0].nodes, ElementsAre(0));
  EXPECT_THAT(plan.stages[1].nodes, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_TRUE(Validate(plan, graph).ok());
}

TEST(Pins, DrawFreeNodesAfterWhatTheyRead) {
  const CostGraph graph = Chain(std::vector<double>(6, 1.0));
  PlannerOptions options;
  options.pinned_stage_of_node = {-1, 0, -1, -1, 1, -1};
  const Plan plan = *MakePlan(graph, Devices(2), options);
  EXPECT_THAT(plan.stages[0].nodes, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(plan.stages[1].nodes, ElementsAre(4, 5));
}

TEST(Pins, MayLeaveAStageEmpty) {
  PlannerOptions options;
  options.stages = 4;
  options.pinned_stage_of_node = {0, 0, 2};
  const CostGraph graph = Chain({1, 1, 1});
  const absl::StatusOr<Plan> plan = MakePlan(graph, Devices(4), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(Validate(*plan, graph).ok()) << Validate(*plan, graph);
  EXPECT_TRUE(plan->stages[1].nodes.empty());
}

TEST(Pins, ThatContradictAreNamed) {
  CostGraph graph = Chain({1, 1, 1});
  PlannerOptions options;
  options.pinned_stage_of_node = {1, -1, 0};
  EXPECT_THAT(std::string(MakePlan(graph, Devices(2), options).status().message()),
              HasSubstr("node 2 (aten::linear in 'layer.2') is pinned to stage 0 but reads what "
                        "stage 1 makes"));
  graph.nodes[0].group = graph.nodes[2].group = 5;
  options.pinned_stage_of_node = {0, -1, 1};
  EXPECT_THAT(std::string(MakePlan(graph, Devices(2), options).status().message()),
              HasSubstr("must stay with to stage 0"));
}

TEST(MakePlan, ForInferenceNeedsNoGradientsAndNoOptimizer) {
  const CostGraph graph = Chain(std::vector<double>(8, 1.0));
  PlannerOptions options;
  options.training = false;
  options.stages = 2;
  const absl::StatusOr<Plan> plan = MakePlan(graph, Devices(2), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(Validate(*plan, graph).ok()) << Validate(*plan, graph);
  EXPECT_EQ(plan->schedule, "forward");
  EXPECT_EQ(plan->stages[0].backward_ms, 0);
  EXPECT_EQ(plan->stages[1].send_bytes, 0);
  EXPECT_FALSE(plan->edges[0].has_gradient);
  EXPECT_LT(plan->stages[0].peak_memory_bytes, 12 * kMiB);
}

TEST(EveryPlan, IsValidCountsOnceAndIsNotBelowItsBound) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const CostGraph graph = RandomGraph(random, 8 + random() % 30);
    PlannerOptions options;
    options.training = seed % 4 != 3;
    options.optimizer = seed % 2 ? "sgd" : "adam";
    if (seed % 3 == 0) options.micro_batches = 1 + random() % 9;
    const absl::StatusOr<Plan> plan = MakePlan(graph, Devices(1 + random() % 8), options);
    ASSERT_TRUE(plan.ok()) << seed << " " << plan.status();
    ASSERT_TRUE(Validate(*plan, graph).ok()) << seed << " " << Validate(*plan, graph);
    ASSERT_LE(plan->bound_ms, plan->predicted_step_ms) << seed;
    ASSERT_GT(plan->bound_ms, 0) << seed;
    // No alternative of as many micro-batches is faster, and none is below the bound.
    for (const PlanAlternative& a : plan->alternatives) {
      ASSERT_GE(a.step_ms / a.micro_batches,
                plan->predicted_step_ms / plan->micro_batches * (1 - 1e-8));
      if (a.micro_batches == plan->micro_batches) {
        ASSERT_GE(a.step_ms, plan->bound_ms) << seed;
      }
    }
    int64_t operators = 0;
    int64_t parameters = 0;
    for (const PlanStage& stage : plan->stages) {
      operators += stage.operators;
      parameters += stage.parameters;
    }
    ASSERT_EQ(operators, graph.nodes.size());
    ASSERT_EQ(parameters, plan->model.parameters);
    // What is saved is loaded, and simulates to the same.
    const absl::StatusOr<Plan> loaded = PlanFromJson(ToJson(*plan));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ASSERT_EQ(*loaded, *plan);
    const absl::StatusOr<Simulation> simulation = SimulatePlan(*plan);
    if (options.training) {
      ASSERT_TRUE(simulation.ok()) << simulation.status();
      ASSERT_EQ(simulation->makespan_ms, plan->predicted_step_ms);
    }
  }
}

TEST(MakePlan, SplitsTheBackwardOnlyWhereAskedTo) {
  const CostGraph graph = Chain(std::vector<double>(12, 1.0));
  PlannerOptions options;
  options.stages = 4;
  options.micro_batches = 8;
  const Plan unasked = *MakePlan(graph, Devices(4), options);
  EXPECT_NE(unasked.schedule, "zb-h1");
  for (const PlanAlternative& other : unasked.alternatives) EXPECT_NE(other.schedule, "zb-h1");
  options.schedule = "zb-h1";
  const absl::StatusOr<Plan> asked = MakePlan(graph, Devices(4), options);
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(asked->schedule, "zb-h1");
  EXPECT_TRUE(Validate(*asked, graph).ok()) << Validate(*asked, graph);
  // m (F + I + W) + (p - 1) F, and little for messages and optimizer.
  EXPECT_GT(asked->predicted_step_ms, 8 * 9 + 3 * 3);
  EXPECT_LT(asked->predicted_step_ms, 8 * 9 + 3 * 3 + 1);
}

TEST(MakePlan, ShardsTheOptimizerOrRecomputesWhereThatFits) {
  // 12 MiB of weights and gradients each, 24 of Adam's state: 48 on one device.
  const CostGraph graph = Chain(std::vector<double>(12, 1.0));
  PlannerOptions options;
  options.stages = 1;
  options.memory_bytes = 47 * kMiB;
  EXPECT_FALSE(MakePlan(graph, Devices(4), options).ok());
  options.shard_optimizer = true;
  const absl::StatusOr<Plan> sharded = MakePlan(graph, Devices(4), options);
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  EXPECT_TRUE(sharded->shard_optimizer);
  EXPECT_EQ(sharded->stages[0].memory.optimizer, 6 * kMiB);
}

TEST(MakePlan, NamesAChangeThatFitsWhereNothingDoes) {
  const CostGraph graph = Chain(std::vector<double>(12, 1.0));
  PlannerOptions options;
  options.stages = 1;
  options.memory_bytes = 47 * kMiB;
  const absl::Status status = MakePlan(graph, Devices(4), options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("With --shard-optimizer it fits: 1 stage"));
}

TEST(MakePlan, KeepsPinnedModulesWhereTheyAreAndBalancesTheRest) {
  const CostGraph graph = Chain(std::vector<double>(12, 1.0));
  PlannerOptions options;
  options.stages = 3;
  options.pins = {{"layer.1", 1}};  // not layer.10 and layer.11
  const absl::StatusOr<Plan> plan = MakePlan(graph, Devices(3), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->stages[0].nodes, ElementsAre(0));
  EXPECT_LE(plan->stages[1].nodes.size(), 6);
  EXPECT_EQ(plan->stages[1].nodes.size() + plan->stages[2].nodes.size(), 11);
  options.pins = {{"layer.5", 0}, {"layer.2", 1}};
  EXPECT_THAT(std::string(MakePlan(graph, Devices(3), options).status().message()),
              HasSubstr("the pins contradict the order"));
  options.pins = {{"layer.77", 0}};
  EXPECT_THAT(std::string(MakePlan(graph, Devices(3), options).status().message()),
              HasSubstr("no operator in a module 'layer.77'; it has for example 'layer.0'"));
}

TEST(MakePlan, KeepsModulesTogetherThatShallShareAStage) {
  const CostGraph graph = Chain(std::vector<double>(12, 1.0));
  PlannerOptions options;
  options.stages = 2;
  options.same_stage = {{"layer.0", "layer.8"}};
  const absl::StatusOr<Plan> plan = MakePlan(graph, Devices(2), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GE(plan->stages[0].nodes.size(), 9);
}

TEST(MakePlan, CutsABatchIntoMicroBatchesOfTheGraphsSize) {
  CostGraph graph = Chain(std::vector<double>(12, 1.0));
  graph.samples = 4;
  PlannerOptions options;
  options.batch = 64;
  const absl::StatusOr<Plan> plan = MakePlan(graph, Devices(2), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->micro_batches, 16);
  EXPECT_EQ(plan->batch(), 64);
  options.batch = 63;
  EXPECT_THAT(std::string(MakePlan(graph, Devices(2), options).status().message()),
              HasSubstr("a batch of 63 samples cannot be cut into micro-batches of 4"));
}

// One time for all: slices of a chain, any replicas, judged by the simulator from outside.
TEST(MakePlan, IsTheBestOfAllPlansOfASmallChain) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> time(0.1, 2);
  for (int round = 0; round < 10; ++round) {
    std::vector<double> layers(3 + random() % 4);
    for (double& ms : layers) ms = time(random);
    const CostGraph graph = Chain(layers);
    const int n = layers.size();
    const int devices = 2 + random() % 2;
    PlannerOptions options;
    options.micro_batches = 1 + random() % 4;
    const absl::StatusOr<Plan> plan = MakePlan(graph, Devices(devices), options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(plan->optimal);
    // Cuts and replicas as bits: bit i cuts behind layer i, bit i of `shares` behind device i.
    for (int cuts = 0; cuts < 1 << (n - 1); ++cuts) {
      for (int shares = 0; shares < 1 << (devices - 1); ++shares) {
        if (__builtin_popcount(cuts) != __builtin_popcount(shares)) continue;
        Plan other = *plan;
        std::vector<int> stage_of_node = {0};
        for (int i = 0; i + 1 < n; ++i) {
          stage_of_node.push_back(stage_of_node.back() + (cuts >> i & 1));
        }
        const int stages = 1 + stage_of_node.back();
        other.stages.assign(stages, {});
        int stage = 0;
        for (int rank = 0; rank < devices; ++rank) {
          other.stages[stage].ranks.push_back(rank);
          stage += shares >> rank & 1;
        }
        for (int i = 0; i < n; ++i) {
          PlanStage& owner = other.stages[stage_of_node[i]];
          owner.nodes.push_back(i);
          owner.owned_parameters.push_back(i);
        }
        for (int s = 0; s < stages; ++s) other.stages[s].index = s;
        other.edges = ComputeEdges(graph, stage_of_node, std::vector<std::vector<int>>(stages));
        for (const char* schedule : {"gpipe", "1f1b"}) {
          other.schedule = schedule;
          ASSERT_TRUE(ComposeCosts(graph, other).ok());
          EXPECT_LE(plan->predicted_step_ms, SimulatePlan(other)->makespan_ms * (1 + 1e-9))
              << "round " << round << ", cuts " << cuts << ", shares " << shares;
        }
      }
    }
  }
}

TEST(MakePlan, AnswersTheSameTwice) {
  std::mt19937 random(5);
  const CostGraph graph = RandomGraph(random, 60);
  EXPECT_EQ(*MakePlan(graph, Devices(8), {}), *MakePlan(graph, Devices(8), {}));
}

TEST(MakePlan, PlansAThousandNodesForEightDevices) {
  std::mt19937 random(6);
  const CostGraph graph = RandomGraph(random, 1000);
  const absl::StatusOr<Plan> plan = MakePlan(graph, Devices(8), {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(Validate(*plan, graph).ok());
  EXPECT_GE(plan->predicted_step_ms, plan->bound_ms * (1 - 1e-9));
}

}  // namespace
}  // namespace autopart
