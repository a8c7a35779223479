// autopart run without a process: threads train by a plan, and every bad wish has one clear
// message.
#include "runtime/cli/run_command.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "partitioner/read_file.h"
#include "pipeline/planner.h"
#include "pipeline/run_record.h"
#include "runtime/cli/cores.h"
#include "runtime/cli/launcher.h"
#include "runtime/cli/profile_command.h"

namespace autopart {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Result {
  int status = 0;
  std::string out, err;
};

Result Call(int (*command)(const Args&, Streams), const Args& args) {
  std::ostringstream out, err;
  Result result;
  result.status = command(args, {out, err});
  result.out = out.str();
  result.err = err.str();
  return result;
}

std::string ModelPath(const std::string& name) {
  return std::string(AUTOPART_TEST_MODELS) + "/" + name + ".pt";
}

std::string Scratch(const std::string& name) {
  const std::filesystem::path folder = ::testing::TempDir() + "/autopart_run_command_test";
  std::filesystem::create_directories(folder);
  return (folder / name).string();
}

Plan PlanOf(const std::string& model, PlannerOptions options) {
  const std::string costs = Scratch(model + ".costs.json");
  const Result result = Call(ProfileCommand, {ModelPath(model), "--at-once", "0", "-o", costs});
  EXPECT_EQ(result.status, kExitGood) << result.err;
  const absl::StatusOr<Plan> plan =
      MakePlan(*CostGraphFromJson(*ReadFile(costs)), *UniformCluster("cpu", 2), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

std::string Save(const Plan& plan, const std::string& name) {
  const std::string path = Scratch(name);
  std::ofstream(path) << ToJson(plan);
  return path;
}

PlannerOptions Stages(int stages, int replicas) {
  PlannerOptions options;
  options.stages = stages;
  options.replicas = replicas;
  options.micro_batches = 4;
  return options;
}

TEST(RunCommand, TrainsByAPlanAndRecordsEveryActionAndByte) {
  for (const auto& [stages, replicas] : {std::pair(2, 1), std::pair(1, 2)}) {
    const Plan plan = PlanOf("bert_train", Stages(stages, replicas));
    const std::string record_path = Scratch("run.json");
    const Result result = Call(RunCommand, {Save(plan, "good.plan.json"), ModelPath("bert_train"),
                                            "--steps", "20", "--check-finite", "-o", record_path});
    EXPECT_EQ(result.status, kExitGood) << result.err;
    EXPECT_THAT(result.out, AllOf(HasSubstr("20 steps on 2 ranks (threads"), HasSubstr("step p10"),
                                  HasSubstr("loss"), HasSubstr("saved " + record_path)));
    const absl::StatusOr<RunRecord> record = RunRecordFromJson(*ReadFile(record_path));
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_TRUE(Validate(*record, plan).ok()) << Validate(*record, plan);
    EXPECT_EQ(record->step_s.size(), 20);
    EXPECT_EQ(record->warm_up_steps, 3);
    EXPECT_LT(record->losses.back(), record->losses.front());
    for (const PlanStage& stage : plan.stages) {
      for (const int rank : stage.ranks) {
        // Constants that the stage does not use are there too. Scratch of operators is a bound.
        const int64_t constants =
            record->ranks[rank].held_bytes - static_cast<int64_t>(stage.held.weight_bytes);
        EXPECT_GE(constants, 0);
        EXPECT_LT(constants, 2000);
        EXPECT_LE(record->ranks[rank].peak_bytes, stage.peak_memory_bytes + constants);
        EXPECT_GE(record->ranks[rank].peak_bytes,
                  stage.peak_memory_bytes - stage.held.temporary_bytes);
      }
    }
  }
}

TEST(RunCommand, OneRunGivesTheFactorOfAProfile) {
  const std::string costs = Scratch("calibrate.costs.json"), scaled = Scratch("scaled.costs.json"),
                    plan = Scratch("calibrate.plan.json"), record = Scratch("calibrate.run.json");
  ASSERT_EQ(Call(ProfileCommand, {ModelPath("bert_train"), "-o", costs}).status, kExitGood);
  const CostGraph graph = *CostGraphFromJson(*ReadFile(costs));
  EXPECT_EQ(graph.scale, 1);
  EXPECT_EQ(graph.machine.updates.size(), 4);
  EXPECT_GT(graph.machine.link_bytes_per_ms, 0);
  std::ofstream(plan) << ToJson(*MakePlan(graph, *UniformCluster("cpu", 2), Stages(2, 1)));
  ASSERT_EQ(Call(RunCommand, {plan, ModelPath("bert_train"), "-o", record}).status, kExitGood);
  const Result result =
      Call(ProfileCommand, {costs, "--plan", plan, "--actual", record, "-o", scaled});
  EXPECT_EQ(result.status, kExitGood) << result.err;
  EXPECT_THAT(result.out, HasSubstr("by a run"));
  const CostGraph after = *CostGraphFromJson(*ReadFile(scaled));
  EXPECT_NE(after.scale, 1);
  EXPECT_NEAR(after.nodes[5].forward_ms, after.scale * graph.nodes[5].forward_ms, 1e-9);
  EXPECT_THAT(Call(ProfileCommand, {costs, "--actual", record, "-o", scaled}).err,
              HasSubstr("--actual and --plan go together"));
}

TEST(RunCommand, RunsForwardOnlyPlansWithoutUpdatingAnything) {
  PlannerOptions options = Stages(2, 1);
  options.training = false;
  options.schedule = "forward";
  const Plan plan = PlanOf("bert_train", options);
  const std::string record_path = Scratch("forward.json");
  const Result result = Call(RunCommand, {Save(plan, "forward.plan.json"), ModelPath("bert_train"),
                                          "--steps", "2", "-o", record_path});
  EXPECT_EQ(result.status, kExitGood) << result.err;
  EXPECT_TRUE(Validate(*RunRecordFromJson(*ReadFile(record_path)), plan).ok());
}

TEST(RunCommand, SaysWhatIsWrongWithABadWish) {
  const Plan good = PlanOf("bert_train", Stages(2, 1));
  const std::string model = ModelPath("bert_train");
  const std::string good_path = Save(good, "bad_wishes.plan.json");
  const auto error = [](const Args& args, int status) {
    const Result result = Call(RunCommand, args);
    EXPECT_EQ(result.status, status) << result.err;
    EXPECT_THAT(result.out, IsEmpty());
    return result.err;
  };
  EXPECT_THAT(error({good_path}, kExitUsage), HasSubstr("model"));
  EXPECT_THAT(error({good_path, "/nowhere.pt"}, kExitUsage), HasSubstr("/nowhere.pt"));
  EXPECT_THAT(error({"/nowhere.json", model}, kExitUsage), HasSubstr("/nowhere.json"));
  EXPECT_THAT(error({model, model}, kExitUsage), HasSubstr("not JSON"));
  EXPECT_THAT(error({good_path, ModelPath("gpt2")}, kExitFailed), HasSubstr("another model"));
  EXPECT_THAT(error({good_path, model, "--steps", "0"}, kExitUsage), HasSubstr("--steps"));
  EXPECT_THAT(error({good_path, model, "--cores", "0,0,0"}, kExitUsage), HasSubstr("--cores"));
  EXPECT_THAT(error({good_path, model, "--data", "/nowhere.pt"}, kExitUsage),
              HasSubstr("cannot read /nowhere.pt"));

  Plan plan = good;
  plan.stages[0].recomputed_nodes = {plan.stages[0].nodes[0]};
  EXPECT_THAT(error({Save(plan, "recompute.plan.json"), model}, kExitFailed),
              HasSubstr("stage 0 recomputes 1 operators, which cannot be run yet"));
  plan = good;
  plan.schedule = "zb-h1";
  EXPECT_THAT(error({Save(plan, "zb.plan.json"), model}, kExitFailed),
              HasSubstr("schedule 'zb-h1' cannot be run yet"));
  plan = good;
  plan.reduce_bucket_bytes = 1000;
  EXPECT_THAT(error({Save(plan, "buckets.plan.json"), model}, kExitFailed),
              HasSubstr("reduces gradients during the backward"));
  const Plan without_loss = PlanOf("skip_mlp", Stages(2, 1));
  EXPECT_THAT(error({Save(without_loss, "loss.plan.json"), ModelPath("skip_mlp")}, kExitFailed),
              HasSubstr("the model has no loss"));
}

TEST(Cores, AreOneARankWhereThereAreEnough) {
  EXPECT_THAT(*ChooseCores("auto", 2, {3, 5, 7}), ElementsAre(3, 5));
  EXPECT_THAT(*ChooseCores("auto", 4, {3, 5, 7}), IsEmpty());
  EXPECT_THAT(*ChooseCores("none", 1, {3, 5, 7}), IsEmpty());
  EXPECT_THAT(*ChooseCores("7,3", 2, {3, 5, 7}), ElementsAre(7, 3));
  EXPECT_THAT(ChooseCores("7", 2, {3, 5, 7}).status().ToString(), HasSubstr("1 cores for 2 ranks"));
  EXPECT_THAT(ChooseCores("7,4", 2, {3, 5, 7}).status().ToString(), HasSubstr("only 3,5,7"));
  EXPECT_THAT(ChooseCores("all", 2, {3}).status().ToString(), HasSubstr("not 'all'"));
}

TEST(Launcher, SaysWhichRankThisProcessIs) {
  const auto find = [](const std::map<std::string, std::string>& environment) {
    return FindLaunchedRank([&](const char* name) {
      const auto it = environment.find(name);
      return it == environment.end() ? nullptr : it->second.c_str();
    });
  };
  EXPECT_FALSE(find({})->has_value());
  EXPECT_FALSE(find({{"RANK", "0"}})->has_value());
  const auto launched = find({{"RANK", "1"},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"MASTER_PORT", "29500"},
                              {"TORCHELASTIC_RUN_ID", "a/b"}});
  ASSERT_TRUE(launched.ok() && launched->has_value());
  EXPECT_EQ((*launched)->rank, 1);
  EXPECT_EQ((*launched)->size, 2);
  EXPECT_EQ((*launched)->group, "autopart-run-29500-a_b");
  EXPECT_THAT(find({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).status().ToString(), HasSubstr("RANK=2"));
  EXPECT_THAT(find({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).status().ToString(), HasSubstr("RANK=x"));
  EXPECT_THAT(
      find({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}}).status().ToString(),
      HasSubstr("ranks of one host"));
}

}  // namespace
}  // namespace autopart
