#include "runtime/cli/plan_command.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "partitioner/read_file.h"
#include "pipeline/plan.h"
#include "tests/pipeline/random_graph.h"
#include "tests/pipeline/small_plan.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PlanCommandTest : public ::testing::Test {
 protected:
  PlanCommandTest()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(folder_);
    graph_ = folder_ / "costs.json";
    plan_ = folder_ / "plan.json";
    std::ofstream(graph_) << ToJson(SmallGraph());
  }
  ~PlanCommandTest() override { std::filesystem::remove_all(folder_); }

  int Plan(Args args) {
    args.insert(args.end(), {"-o", plan_});
    std::ostringstream out, err;
    const int status = PlanCommand(args, {out, err});
    out_ = out.str();
    err_ = err.str();
    return status;
  }

  std::filesystem::path folder_;
  std::string graph_, plan_;
  std::string out_, err_;
};

TEST_F(PlanCommandTest, PlansACostGraphSavesThePlanAndReports) {
  ASSERT_EQ(Plan({graph_, "--gpus", "2", "--stages", "2", "--micro-batches", "4"}), kExitGood)
      << err_;
  EXPECT_THAT(out_, HasSubstr("2 stages × 1 replica · 4 micro-batches"));
  EXPECT_THAT(out_, HasSubstr("saved " + plan_));
  EXPECT_THAT(err_, IsEmpty());
  const absl::StatusOr<autopart::Plan> plan = PlanFromJson(*ReadFile(plan_));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(Validate(*plan, SmallGraph()).ok());
}

TEST_F(PlanCommandTest, ShowsThePlanItselfAsJson) {
  ASSERT_EQ(Plan({graph_, "--gpus", "1", "--format", "json"}), kExitGood) << err_;
  EXPECT_EQ(out_, *ReadFile(plan_));
}

TEST_F(PlanCommandTest, PlansInferenceWithTheForwardSchedule) {
  ASSERT_EQ(Plan({graph_, "--gpus", "2", "--schedule", "forward"}), kExitGood) << err_;
  EXPECT_THAT(out_, HasSubstr("inference"));
}

TEST_F(PlanCommandTest, TakesTheDeviceOfTheCostsUnlessToldOtherwise) {
  ASSERT_EQ(Plan({graph_, "--gpus", "2"}), kExitGood) << err_;
  EXPECT_THAT(out_, HasSubstr("2 × h100 80.0 GiB"));
  ASSERT_EQ(Plan({graph_, "--gpus", "2", "--device", "v100", "--memory", "16GiB"}), kExitGood);
  EXPECT_THAT(out_, HasSubstr("2 × v100 16.0 GiB"));
  EXPECT_THAT(out_, HasSubstr("on h100, not on v100"));
}

// The command with the advice of an error message, empty if there is none.
Args Advised(Args args, const std::string& message) {
  std::smatch found;
  if (std::regex_search(message, found, std::regex("With (\\d+) such devices it fits"))) {
    *(std::find(args.begin(), args.end(), "--gpus") + 1) = found[1];
    return args;
  }
  if (std::regex_search(message, found, std::regex("With (--.*) it fits"))) {
    for (const absl::string_view flag : absl::StrSplit(found[1].str(), ' ')) {
      args.emplace_back(flag);
    }
    return args;
  }
  if (!std::regex_search(message, found, std::regex("Without (--\\S+) it fits"))) return {};
  const auto flag = std::find(args.begin(), args.end(), found[1]);
  args.erase(flag, flag + 2);
  return args;
}

TEST_F(PlanCommandTest, EndsWithStatus3AndAdviceThatThenFits) {
  std::mt19937 random(3);
  const Args least = {"--optimizer", "sgd", "--recompute", "auto", "--shard-optimizer"};
  Args one_stage = least;
  one_stage.insert(one_stage.end(), {"--stages", "1"});
  const Args wishes[] = {{}, {"--schedule", "gpipe"}, least, one_stage};
  std::set<std::string> seen;
  for (int round = 0; round < 4; ++round) {
    std::ofstream(graph_) << ToJson(RandomGraph(random, 15));
    for (int64_t memory = 500; memory < 100000; memory += memory / 3) {
      Args args = {graph_, "--gpus", "2", "--device", "h100", "--memory", absl::StrCat(memory)};
      const Args& wish = wishes[round % std::size(wishes)];
      args.insert(args.end(), wish.begin(), wish.end());
      const int status = Plan(args);
      if (status == kExitGood) continue;
      ASSERT_EQ(status, kExitNothingFits) << err_;
      EXPECT_THAT(err_, HasSubstr("bytes too many"));
      const Args advised = Advised(args, err_);
      if (advised.empty()) continue;
      seen.insert(std::find(advised.begin(), advised.end(), "2") == advised.end() ? "devices"
                  : advised.size() > args.size()                                  ? "with"
                                                                                  : "without");
      EXPECT_EQ(Plan(advised), kExitGood) << absl::StrJoin(advised, " ") << ": " << err_;
    }
  }
  EXPECT_EQ(seen, (std::set<std::string>{"devices", "with", "without"}));
}

struct BadInput {
  const char* name;
  Args args;
  int status;
  const char* expected;
};

TEST_F(PlanCommandTest, AnswersBadInputWithOneClearMessage) {
  const std::string broken = folder_ / "broken.json";
  std::ofstream(broken) << ToJson(SmallGraph()).substr(0, 200);
  for (const BadInput& row : std::vector<BadInput>{
           {"no device", {graph_, "--gpus", "0"}, 2, "--gpus must be at least 1, not 0"},
           {"no number", {graph_, "--gpus", "two"}, 2, "--gpus"},
           {"unknown device",
            {graph_, "--gpus", "2", "--device", "tpu"},
            2,
            "unknown device 'tpu': known are h100"},
           {"stages",
            {graph_, "--gpus", "8", "--stages", "8"},
            2,
            "cannot make 8 stages: the model has 4 operators"},
           {"devices", {graph_, "--gpus", "8", "--stages", "3"}, 2, "cannot be shared out evenly"},
           {"memory", {graph_, "--gpus", "2", "--memory", "many"}, 2, "--memory"},
           {"fits not", {graph_, "--gpus", "2", "--memory", "10"}, 3, "no plan fits into 10 B"},
           {"schedule", {graph_, "--gpus", "2", "--schedule", "zigzag"}, 2, "unknown schedule"},
           {"optimizer", {graph_, "--gpus", "2", "--optimizer", "lion"}, 2, "unknown optimizer"},
           {"format", {graph_, "--gpus", "2", "--format", "pdf"}, 2, "--format"},
           {"flag", {graph_, "--gpus", "2", "--stage", "2"}, 2, "did you mean --stages?"},
           {"file", {folder_ / "none.json", "--gpus", "2"}, 2, "none.json"},
           {"broken file", {broken, "--gpus", "2"}, 2, "broken.json"},
       }) {
    EXPECT_EQ(Plan(row.args), row.status) << row.name << ": " << err_;
    EXPECT_THAT(err_, HasSubstr(row.expected)) << row.name;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << row.name << ": " << err_;
    EXPECT_THAT(out_, IsEmpty()) << row.name;
    EXPECT_FALSE(std::filesystem::exists(plan_)) << row.name;
  }
}

}  // namespace
}  // namespace autopart
