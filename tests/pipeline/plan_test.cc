#include "pipeline/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "pipeline/simulate.h"
#include "tests/pipeline/small_plan.h"

namespace autopart {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

std::string ErrorOf(const std::string& text) {
  return std::string(PlanFromJson(text).status().message());
}

TEST(PlanJson, RoundTrips) {
  const Plan plan = SmallPlan();
  const absl::StatusOr<Plan> loaded = PlanFromJson(ToJson(plan));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(*loaded, plan);
  EXPECT_EQ(ToJson(*loaded), ToJson(plan));
}

TEST(PlanJson, HasTheFieldsOfTheSchema) {
  const Json json = Json::parse(ToJson(SmallPlan()));
  for (const char* key : {"version", "model", "schedule", "micro_batches", "predicted_step_ms",
                          "bound_ms", "stages"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const char* key : {"hash", "parameters", "operators", "parameter_bytes"}) {
    EXPECT_TRUE(json["model"].contains(key)) << key;
  }
  int64_t parameters = 0;
  int64_t operators = 0;
  for (const Json& stage : json["stages"]) {
    for (const char* key :
         {"index", "ranks", "nodes", "operators", "parameters", "copied_operators",
          "copied_parameters", "forward_ms", "backward_ms", "send_bytes", "peak_memory_bytes"}) {
      EXPECT_TRUE(stage.contains(key)) << key;
    }
    parameters += stage["parameters"].get<int64_t>();
    operators += stage["operators"].get<int64_t>();
  }
  EXPECT_EQ(parameters, json["model"]["parameters"]);
  EXPECT_EQ(operators, json["model"]["operators"]);
  EXPECT_EQ(json["stages"][1]["copied_parameters"], 10);
}

// Every field of the document, one at a time: gone, or of another type, it is named.
void ExpectEachFieldNamed(const Json& whole, const Json::json_pointer& at,
                          const std::string& path) {
  const Json& here = whole[at];
  for (const auto& [key, value] : here.items()) {
    const std::string name = here.is_object() ? absl::StrCat(path, path.empty() ? "" : ".", key)
                                              : absl::StrCat(path, "[", key, "]");
    const Json::json_pointer child =
        here.is_array() ? at / static_cast<size_t>(std::stoul(key)) : at / key;
    if (here.is_object()) {
      Json without = whole;
      without[at].erase(key);
      EXPECT_EQ(ErrorOf(without.dump()), absl::StrCat("plan: ", name, " is missing"));
    }
    Json wrong = whole;
    wrong[child] = Json::object({{"surprise", 1}});
    if (!value.is_object()) {
      EXPECT_THAT(ErrorOf(wrong.dump()), HasSubstr(absl::StrCat("plan: ", name, " should be ")));
      EXPECT_THAT(ErrorOf(wrong.dump()), HasSubstr("not {\"surprise\":1}"));
    }
    if (value.is_structured()) ExpectEachFieldNamed(whole, child, name);
  }
}

TEST(PlanJson, NamesEveryMissingOrWrongField) {
  ExpectEachFieldNamed(Json::parse(ToJson(SmallPlan())), Json::json_pointer(), "");
}

TEST(PlanJson, RefusesNegativeAndHugeNumbers) {
  Json json = Json::parse(ToJson(SmallPlan()));
  json["micro_batches"] = -3;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("micro_batches should be a whole number"));
  json["micro_batches"] = 5000000000;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("micro_batches should be a whole number"));
  json["micro_batches"] = 1.5;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("not 1.5"));
}

TEST(PlanJson, RefusesANewerVersion) {
  Json json = Json::parse(ToJson(SmallPlan()));
  json["version"] = 4;
  json.erase("stages");  // whatever else may have changed
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("version 4, newer than this autopart"));
}

TEST(PlanJson, RefusesAnOlderVersion) {
  Json json = Json::parse(ToJson(SmallPlan()));
  json["version"] = 2;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("plan the model again"));
}

TEST(PlanJson, RefusesWhatIsNoPlan) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf(ToJson(SmallPlan()).substr(0, 300)), HasSubstr("cut off"));
  EXPECT_THAT(ErrorOf("[1, 2]"), HasSubstr("no JSON object"));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("version is missing"));
}

struct Spoiled {
  const char* name;
  void (*spoil)(Plan&);
  const char* expected;
};

TEST(ValidatePlan, FindsWhatIsWrong) {
  ASSERT_TRUE(Validate(SmallPlan()).ok()) << Validate(SmallPlan());
  for (const Spoiled& row : {
           Spoiled{"no stage", [](Plan& p) { p.stages.clear(); }, "no stage"},
           {"index", [](Plan& p) { p.stages[1].index = 4; }, "stage 1 of the plan calls itself 4"},
           {"rank", [](Plan& p) { p.stages[1].ranks = {2}; }, "stage 1 is on rank 2"},
           {"rank unused", [](Plan& p) { p.cluster.hosts[0].devices[0].count = 3; },
            "rank 2 of 3 has no stage"},
           {"node twice",
            [](Plan& p) {
              p.stages[0].nodes = {0, 1, 3};
            },
            "node 3 is on stage 0"},
           {"node nowhere",
            [](Plan& p) {
              p.stages[0].nodes = {0, 1};
              p.stages[0].operators = 2;
            },
            "node 2 is on no stage"},
           {"node unknown",
            [](Plan& p) {
              p.stages[0].nodes = {0, 1, 9};
            },
            "node 9, of 4"},
           {"order",
            [](Plan& p) {
              p.stages[0].nodes = {1, 0, 2};
            },
            "do not ascend"},
           {"operators", [](Plan& p) { p.stages[0].operators = 7; }, "counts 7 operators"},
           {"parameters", [](Plan& p) { p.stages[0].parameters = 7; }, "own 12 parameters"},
           {"parameter twice", [](Plan& p) { p.stages[1].owned_parameters = {0}; },
            "parameter 0 is on stage 0 and on stage 1"},
           {"schedule", [](Plan& p) { p.schedule = "zigzag"; }, "unknown schedule 'zigzag'"},
           {"micro-batches", [](Plan& p) { p.micro_batches = 0; }, "at least 1 micro-batch"},
           {"edge back",
            [](Plan& p) {
              p.edges[0] = {1, 0, {2}, true};
            },
            "edge from stage 1 to stage 0"},
           {"weights' share", [](Plan& p) { p.stages[0].backward_weight_ms = 9; },
            "of which 9 for weights"},
           {"reduction",
            [](Plan& p) {
              p.reductions = {{{0, 7}, 4}};
            },
            "of stages 0,7, of 2"},
           {"version", [](Plan& p) { p.version = 9; }, "version 9"},
       }) {
    Plan plan = SmallPlan();
    row.spoil(plan);
    EXPECT_THAT(std::string(Validate(plan).message()), HasSubstr(row.expected)) << row.name;
  }
}

TEST(ValidatePlan, ComparesWithTheGraph) {
  const CostGraph graph = SmallGraph();
  EXPECT_TRUE(Validate(SmallPlan(), graph).ok()) << Validate(SmallPlan(), graph);

  CostGraph other = graph;
  other.model_hash = "other";
  absl::Status status = Validate(SmallPlan(), other);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("its hash is small in the plan and other in the model"));
  other = graph;
  other.nodes.pop_back();
  EXPECT_THAT(std::string(Validate(SmallPlan(), other).message()),
              HasSubstr("number of operators is 4 in the plan and 3 in the model"));
  other = graph;
  other.values[2].gradient_bytes = 0;
  EXPECT_THAT(std::string(Validate(SmallPlan(), other).message()),
              HasSubstr("what crosses the cuts"));
  Plan plan = SmallPlan();
  plan.stages[1].copied_nodes = {1};
  EXPECT_THAT(std::string(Validate(plan, graph).message()), HasSubstr("node 1, which cannot"));
}

TEST(Copies, AreMadeOfCopyableNodesAndWhatTheyDependOn) {
  // 0 -> 1 -> 2 (reader); 0 and 1 are copyable. 3 is copyable but depends on 4's value: sent.
  CostGraph graph;
  graph.nodes.resize(6);
  for (const int n : {0, 1, 4}) graph.nodes[n].copyable = true;
  graph.values = {{"a", 0, {1}, 0}, {"b", 1, {2}, 0}, {"c", 3, {4}, 8, 8}, {"d", 4, {5}, 0}};
  const std::vector<int> stages = {0, 0, 1, 0, 0, 1};
  const auto copied = ComputeCopiedNodes(graph, stages, 2);
  EXPECT_THAT(copied[0], IsEmpty());
  EXPECT_THAT(copied[1], ElementsAre(0, 1));
  EXPECT_THAT(ComputeEdges(graph, stages, copied), ElementsAre(StageEdge{0, 1, {3}, false, 0, 0}));
}

TEST(Edges, CarryInputsFromStage0AndEachValueOnceAStage) {
  CostGraph graph;
  graph.nodes.resize(4);
  graph.values = {{"labels", kModelInput, {3}, 8}, {"a", 0, {1, 2, 3}, 8, 8}, {"b", 1, {2}, 8, 8}};
  EXPECT_THAT(ComputeEdges(graph, {0, 1, 2, 2}, {{}, {}, {}}),
              ElementsAre(StageEdge{0, 1, {1}, true, 8, 8}, StageEdge{0, 2, {0, 1}, true, 16, 8},
                          StageEdge{1, 2, {2}, true, 8, 8}));
}

StageStorage Saved(int64_t bytes) { return {bytes, true, false, {}, {}}; }
StageStorage Result(int64_t bytes) { return {bytes, false, true, {}, {}}; }

TEST(ComposeCosts, AddsUpTimesAndResolvesStorages) {
  const Plan plan = SmallPlan();
  const PlanStage& first = plan.stages[0];
  EXPECT_EQ(first.forward_ms, 1.5);
  EXPECT_EQ(first.backward_ms, 2.5);
  EXPECT_EQ(first.backward_weight_ms, 1);
  EXPECT_EQ(first.held.weight_bytes, 52);
  EXPECT_EQ(first.held.gradient_bytes, 40);
  EXPECT_EQ(first.held.optimizer_bytes, 80);
  // The input is the caller's; v1 and its view v2 are one storage; node 0 has 8 bytes of its own.
  EXPECT_THAT(first.held.storages, ElementsAre(StageStorage{128, true, false, {1}, {}}, Saved(8)));

  const PlanStage& second = plan.stages[1];
  EXPECT_EQ(second.held.weight_bytes, 60);
  EXPECT_EQ(second.held.gradient_bytes, 60);
  // What arrives is its own root there.
  EXPECT_THAT(second.held.storages,
              ElementsAre(StageStorage{128, true, false, {}, {0}}, Result(4)));
  // The tied parameter is summed over two ranks.
  EXPECT_THAT(plan.reductions, ElementsAre(Reduction{{0, 1}, 40}));
}

TEST(ComposeCosts, MergesStoragesThatAreHeldForTheSameReasons) {
  CostGraph graph = SmallGraph();
  graph.nodes[1].saved_bytes = 16;
  Plan plan = SmallPlan();
  ASSERT_TRUE(ComposeCosts(graph, plan).ok());
  EXPECT_THAT(plan.stages[0].held.storages,
              ElementsAre(StageStorage{128, true, false, {1}, {}}, Saved(24)));
}

TEST(ComposeCosts, GivesAPartOfAStorageACopyWhenSent) {
  CostGraph graph = SmallGraph();
  graph.values[2].bytes = 32;  // v2 is a slice of v1
  Plan plan = SmallPlan();
  plan.edges = ComputeEdges(graph, {0, 0, 0, 1}, {{}, {2}});
  ASSERT_TRUE(ComposeCosts(graph, plan).ok());
  EXPECT_THAT(plan.stages[0].held.storages,
              ElementsAre(Saved(128 + 8), StageStorage{32, false, false, {1}, {}}));
  EXPECT_THAT(plan.stages[1].held.storages,
              ElementsAre(StageStorage{32, true, false, {}, {0}}, Result(4)));
}

TEST(ComposeCosts, OfRecomputedNodesKeepsWhatTheyReadAndMakesTheRestAgain) {
  Plan plan = SmallPlan();
  plan.stages[0].recomputed_nodes = {0};
  plan.stages[1].recomputed_nodes = {3};
  ASSERT_TRUE(ComposeCosts(SmallGraph(), plan).ok());
  // v1 is only held until it is sent; the input is the caller's.
  EXPECT_THAT(plan.stages[0].held.storages, ElementsAre(StageStorage{128, false, false, {1}, {}}));
  EXPECT_EQ(plan.stages[0].recompute_ms, 1);
  EXPECT_EQ(plan.stages[1].recompute_ms, 2);
  EXPECT_EQ(plan.stages[1].forward_ms, 2);
}

TEST(ComposeCosts, OfAShardedOptimizerDividesItsStateAndTime) {
  Plan plan = SmallPlan();
  const double whole_ms = plan.stages[0].optimizer_ms;
  EXPECT_GT(whole_ms, 0);
  plan.cluster.hosts[0].devices[0].count = 3;
  plan.stages[0].ranks = {0, 2};
  plan.shard_optimizer = true;
  ASSERT_TRUE(ComposeCosts(SmallGraph(), plan).ok());
  EXPECT_EQ(plan.stages[0].held.optimizer_bytes, 40);
  EXPECT_DOUBLE_EQ(plan.stages[0].optimizer_ms, whole_ms / 2);
}

TEST(ComposeCosts, OfForwardOnlyPlansHasNoGradientsAndSavesNothing) {
  Plan plan = SmallPlan();
  plan.schedule = "forward";
  plan.edges[0] = ForwardOnly(plan.edges[0]);
  ASSERT_TRUE(ComposeCosts(SmallGraph(), plan).ok());
  EXPECT_TRUE(Validate(plan, SmallGraph()).ok()) << Validate(plan, SmallGraph());
  EXPECT_THAT(plan.stages[0].held.storages, ElementsAre(StageStorage{128, false, false, {1}, {}}));
  EXPECT_EQ(plan.stages[0].held.gradient_bytes, 0);
  EXPECT_EQ(plan.stages[0].backward_ms, 0);
  EXPECT_THAT(plan.reductions, IsEmpty());
  const absl::StatusOr<Simulation> simulation = SimulatePlan(plan);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_GT(simulation->makespan_ms, 0);
}

TEST(BreakDown, AddsUpToTheStep) {
  const Plan plan = SmallPlan();
  EXPECT_DOUBLE_EQ(plan.breakdown.total(), plan.predicted_step_ms);
  EXPECT_DOUBLE_EQ(plan.breakdown.compute_ms, 20);
  EXPECT_DOUBLE_EQ(plan.breakdown.bubble_ms, 5);  // 25 = (m + p - 1) (F + B) of equal stages
  EXPECT_GT(plan.breakdown.imbalance_ms, 0);
  EXPECT_GT(plan.breakdown.messages_ms, 0);
  // 40 bytes at 1024 a ms and two messages of 0.25 ms, and all of it at the end.
  EXPECT_NEAR(plan.breakdown.reduce_ms, 40 / 1024.0 + 2 * 0.25, 1e-6);
}

TEST(Optimizers, AreKnownByName) {
  Plan plan = SmallPlan();
  for (const auto& [name, bytes] :
       {std::pair("sgd", 0), {"sgd-momentum", 40}, {"adam", 80}, {"adamw", 80}}) {
    plan.optimizer = name;
    ASSERT_TRUE(ComposeCosts(SmallGraph(), plan).ok());
    EXPECT_EQ(plan.stages[0].held.optimizer_bytes, bytes) << name;
  }
  plan.optimizer = "lion";
  EXPECT_THAT(std::string(ComposeCosts(SmallGraph(), plan).message()),
              HasSubstr("unknown optimizer 'lion'"));
}

}  // namespace
}  // namespace autopart
