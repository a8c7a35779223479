// The verbs that read a model file, run without a process: results, and one clear message with the
// right exit status for every kind of bad input.
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "partitioner/read_file.h"
#include "pipeline/planner.h"
#include "profiler/model.h"
#include "profiler/op_graph.h"
#include "runtime/cli/plan_model_command.h"
#include "runtime/cli/profile_command.h"
#include "runtime/cli/verify_command.h"

namespace autopart {
namespace {

using ::testing::AllOf;
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
  const std::filesystem::path folder = ::testing::TempDir() + "/autopart_model_commands_test";
  std::filesystem::create_directories(folder);
  return (folder / name).string();
}

std::string Write(const std::string& name, const std::string& content) {
  const std::string path = Scratch(name);
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

CostGraph CostsOf(const std::string& model) {
  const std::string costs = Scratch(model + ".costs.json");
  const Result result = Call(ProfileCommand, {ModelPath(model), "--device", "h100", "-o", costs});
  EXPECT_EQ(result.status, kExitGood) << result.err;
  return *CostGraphFromJson(*ReadFile(costs));
}

std::string PlanFile(const std::string& model) {
  PlannerOptions options;
  options.stages = 2;
  const absl::StatusOr<Plan> plan = MakePlan(CostsOf(model), *UniformCluster("h100", 2), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return Write(model + ".plan.json", ToJson(*plan));
}

TEST(ProfileCommand, WritesCostsAndPrintsATableThatAddsUp) {
  const std::string costs = Scratch("gpt2.costs.json");
  const Result result = Call(ProfileCommand, {ModelPath("gpt2"), "--device", "h100", "-o", costs});
  EXPECT_EQ(result.status, kExitGood) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("estimated on h100"), HasSubstr("aten::"),
                                HasSubstr("total"), HasSubstr("saved " + costs)));
  EXPECT_THAT(result.err, IsEmpty());
  const absl::StatusOr<CostGraph> graph = CostGraphFromJson(*ReadFile(costs));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->device, "h100");
}

TEST(ProfileCommand, WithoutOutputFileWritesCostsToStdout) {
  const Result result = Call(ProfileCommand, {ModelPath("skip_mlp"), "--device", "cpu"});
  EXPECT_EQ(result.status, kExitGood) << result.err;
  EXPECT_TRUE(CostGraphFromJson(result.out).ok());
}

TEST(ProfileCommand, SaysThatItMeasuresWhereNoDeviceIsNamed) {
  setenv("XDG_CACHE_HOME", Scratch("cache").c_str(), 1);
  const Result result = Call(ProfileCommand, {ModelPath("skip_mlp")});
  EXPECT_EQ(result.status, kExitGood) << result.err;
  EXPECT_THAT(result.err, HasSubstr("on this CPU"));
}

TEST(PlanModelCommand, PlansAModelSavesThePlanAndReports) {
  const std::string plan = Scratch("gpt2.plan.json");
  const Result result = Call(PlanModelCommand, {ModelPath("gpt2_train"), "--gpus", "4", "--device",
                                                "h100", "--stages", "2", "-o", plan});
  EXPECT_EQ(result.status, kExitGood) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("gpt2_train.pt"), HasSubstr("saved " + plan)));
  EXPECT_THAT(result.err, IsEmpty());
  EXPECT_EQ(Call(VerifyCommand, {plan, ModelPath("gpt2_train")}).status, kExitGood);
}

TEST(PlanModelCommand, ThePlanIsTheSameEveryTime) {
  const Args args = {
      ModelPath("bert"),        "--gpus", "2", "--device", "a100", "--format", "json", "-o",
      Scratch("bert.plan.json")};
  const Result first = Call(PlanModelCommand, args);
  EXPECT_EQ(first.status, kExitGood) << first.err;
  EXPECT_EQ(first.out, Call(PlanModelCommand, args).out);
}

TEST(PlanModelCommand, WithoutDeviceSaysWhatItAssumes) {
  setenv("XDG_CACHE_HOME", Scratch("cache").c_str(), 1);
  const Result result = Call(PlanModelCommand, {ModelPath("skip_mlp"), "--gpus", "2", "-o",
                                                Scratch("skip_mlp.plan.json")});
  EXPECT_EQ(result.status, kExitGood) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("no --device"), HasSubstr("on this CPU")));
}

TEST(PlanModelCommand, NoDevicesAreRefused) {
  const Result result =
      Call(PlanModelCommand, {ModelPath("skip_mlp"), "--gpus", "0", "--device", "h100"});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("--gpus"));
}

TEST(PlanModelCommand, MoreStagesThanOperatorsAreRefused) {
  const Result result = Call(PlanModelCommand, {ModelPath("skip_mlp"), "--gpus", "500", "--stages",
                                                "500", "--device", "h100"});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("500"));
}

TEST(PlanModelCommand, AnUnknownDeviceIsRefused) {
  const Result result =
      Call(PlanModelCommand, {ModelPath("skip_mlp"), "--gpus", "2", "--device", "b999"});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("unknown device 'b999'"));
}

TEST(PlanModelCommand, AModelThatFitsNowhereEndsWithThree) {
  const Result result = Call(PlanModelCommand, {ModelPath("skip_mlp"), "--gpus", "2", "--device",
                                                "h100", "--memory", "100"});
  EXPECT_EQ(result.status, kExitNothingFits);
}

// ---- captured graphs ----

std::string GraphFile(const std::string& model) {
  const absl::StatusOr<Model> loaded = LoadModelFile(ModelPath(model));
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return Write(model + ".graph.json", ToJson(loaded->graph));
}

class CapturedGraph : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, CapturedGraph,
                         ::testing::Values("gpt2_train", "bert", "t5", "llama", "control_flow",
                                           "recurrent", "mixtral", "vit"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CapturedGraph, CostsWhatItsModelCosts) {
  const Result of_model = Call(ProfileCommand, {ModelPath(GetParam()), "--device", "a100"});
  const Result of_graph = Call(ProfileCommand, {GraphFile(GetParam()), "--device", "a100"});
  EXPECT_EQ(of_graph.status, kExitGood) << of_graph.err;
  EXPECT_EQ(of_graph.out, of_model.out);
}

TEST(CapturedGraph, IsPlannedAndVerifiedLikeItsModel) {
  const std::string graph = GraphFile("gpt2_train"), plan = Scratch("graph.plan.json");
  const Result result =
      Call(PlanModelCommand, {graph, "--gpus", "2", "--device", "a100", "-o", plan});
  EXPECT_EQ(result.status, kExitGood) << result.err;
  EXPECT_THAT(result.out, HasSubstr("gpt2_train.graph.json"));
  EXPECT_EQ(Call(VerifyCommand, {plan, graph}).status, kExitGood);
  EXPECT_EQ(Call(VerifyCommand, {plan, ModelPath("gpt2_train")}).status, kExitGood);
}

TEST(CapturedGraph, HasItsInputsInside) {
  const Result result =
      Call(ProfileCommand, {GraphFile("skip_mlp"), "--device", "cpu", "--input", "float32[64,8]"});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, AllOf(HasSubstr("skip_mlp.graph.json"), HasSubstr("leave --input out")));
}

TEST(CapturedGraph, OtherJsonIsRefused) {
  const Result result = Call(ProfileCommand, {Write("other.json", " {\"a\": 1}")});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, AllOf(HasSubstr("other.json"), HasSubstr("no autopart operator graph")));
}

TEST(CapturedGraph, IsNoModelToRun) {
  const absl::StatusOr<Model> model = LoadModelFile(GraphFile("skip_mlp"));
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("has no weights"));
}

TEST(VerifyCommand, AcceptsTheModelThatThePlanWasMadeFor) {
  const Result result = Call(VerifyCommand, {PlanFile("skip_mlp"), ModelPath("skip_mlp")});
  EXPECT_EQ(result.status, kExitGood) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("is a plan for"), HasSubstr("2 stages")));
}

TEST(VerifyCommand, APlanForAnotherModelIsRefused) {
  const std::string plan = PlanFile("skip_mlp");
  const Result result = Call(VerifyCommand, {plan, ModelPath("tied_head")});
  EXPECT_EQ(result.status, kExitFailed);
  EXPECT_THAT(result.err, AllOf(HasSubstr(plan), HasSubstr("is no plan for")));
}

TEST(VerifyCommand, APlanFromANewerVersionIsRefused) {
  std::string text = *ReadFile(PlanFile("skip_mlp"));
  const size_t version = text.find("\"version\"");
  ASSERT_NE(version, std::string::npos);
  const size_t digit = text.find_first_of("0123456789", version);
  text.replace(digit, 1, "99");
  const Result result = Call(VerifyCommand, {Write("newer.json", text), ModelPath("skip_mlp")});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, AllOf(HasSubstr("newer.json"), HasSubstr("99"), HasSubstr("newer")));
}

TEST(VerifyCommand, ABrokenPlanIsRefused) {
  const Result result =
      Call(VerifyCommand, {Write("broken.json", "{\"version\":"), ModelPath("skip_mlp")});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("broken.json"));
}

TEST(ModelCommands, AFileThatIsNoTorchScriptFileIsRefused) {
  const Result result = Call(ProfileCommand, {Write("text.pt", "hello, this is no model")});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, AllOf(HasSubstr("text.pt"), HasSubstr("TorchScript")));
}

TEST(ModelCommands, ATruncatedFileIsRefused) {
  std::ifstream whole(ModelPath("skip_mlp"), std::ios::binary);
  std::stringstream content;
  content << whole.rdbuf();
  const std::string text = content.str();
  const Result result =
      Call(ProfileCommand, {Write("truncated.pt", text.substr(0, text.size() / 2))});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("truncated.pt"));
}

TEST(ModelCommands, AMissingFileIsRefused) {
  const Result result = Call(ProfileCommand, {Scratch("missing.pt")});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("missing.pt"));
}

TEST(ModelCommands, AnUnknownDeviceIsRefusedWithTheKnownOnes) {
  const Result result = Call(ProfileCommand, {ModelPath("skip_mlp"), "--device", "b999"});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, AllOf(HasSubstr("unknown device 'b999'"), HasSubstr("h100")));
}

TEST(ModelCommands, AWrongInputShapeIsRefusedNamingTheOperator) {
  const Result result =
      Call(ProfileCommand, {ModelPath("skip_mlp"), "--device", "cpu", "--input", "float32[3,7]"});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, AllOf(HasSubstr("skip_mlp.pt"), HasSubstr("aten::linear")));
}

TEST(ModelCommands, AWrongInputTypeIsRefused) {
  const Result result = Call(ProfileCommand, {ModelPath("tied_head"), "--device", "cpu", "--input",
                                              "float32[2,7]", "--input", "float32[2,7]"});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("tied_head.pt"));
}

TEST(ModelCommands, AWrongNumberOfInputsIsRefused) {
  const Result result =
      Call(ProfileCommand, {ModelPath("tied_head"), "--device", "cpu", "--input", "int64[2,7]<50"});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("2"));
}

TEST(ModelCommands, AnInputThatCannotBeReadIsRefused) {
  const Result result =
      Call(ProfileCommand, {ModelPath("skip_mlp"), "--device", "cpu", "--input", "int99[3"});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("int99[3"));
}

}  // namespace
}  // namespace autopart
