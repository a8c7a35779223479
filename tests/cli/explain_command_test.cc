#include "runtime/cli/explain_command.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/accuracy.h"
#include "pipeline/report.h"
#include "tests/pipeline/small_plan.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ExplainCommandTest : public ::testing::Test {
 protected:
  ExplainCommandTest()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(folder_);
    plan_ = folder_ / "plan.json";
    std::ofstream(plan_) << ToJson(SmallPlan());
  }
  ~ExplainCommandTest() override { std::filesystem::remove_all(folder_); }

  int Explain(const Args& args) {
    std::ostringstream out, err;
    const int status = ExplainCommand(args, {out, err});
    out_ = out.str();
    err_ = err.str();
    return status;
  }

  std::filesystem::path folder_;
  std::string plan_;
  std::string out_, err_;
};

TEST_F(ExplainCommandTest, ShowsASavedPlanInEveryFormat) {
  for (const std::string& format : ReportFormats()) {
    ASSERT_EQ(Explain({plan_, "--format", format}), kExitGood) << err_;
    EXPECT_EQ(out_, *RenderPlan(SmallPlan(), format, {})) << format;
    EXPECT_THAT(err_, IsEmpty()) << format;
  }
}

TEST_F(ExplainCommandTest, ShowsTextByDefault) {
  ASSERT_EQ(Explain({plan_}), kExitGood) << err_;
  EXPECT_EQ(out_, *RenderPlan(SmallPlan(), "text", {}));
}

TEST_F(ExplainCommandTest, SetsARunBesideThePlan) {
  const Plan plan = SmallPlan();
  RunRecord record;
  record.plan_hash = PlanHash(plan);
  record.model_hash = plan.model.hash;
  record.step_s = {plan.predicted_step_ms / 2e3};
  const Schedule schedule = *BuildSchedule(plan);
  for (int r = 0; r < 2; ++r) {
    RunRank rank;
    rank.rank = r;
    for (const Action& action : schedule.ranks[r]) rank.actions.push_back({action, 0, 0, 0, 0});
    record.ranks.push_back(rank);
  }
  const std::string run = folder_ / "run.json";
  std::ofstream(run) << ToJson(record);
  ASSERT_EQ(Explain({plan_, "--actual", run}), kExitGood) << err_;
  EXPECT_EQ(out_, AccuracyText(*CompareRun(plan, record)));
  EXPECT_THAT(out_, HasSubstr("+100.0 %"));
  ASSERT_EQ(Explain({plan_, "--actual", run, "--format", "json"}), kExitGood) << err_;
  EXPECT_EQ(out_, AccuracyJson(*CompareRun(plan, record)));
  EXPECT_EQ(Explain({plan_, "--actual", run, "--format", "dot"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--actual is shown as text or json, not as dot"));
  EXPECT_EQ(Explain({plan_, "--actual", plan_}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("no record of a run"));
  record.plan_hash = "another";
  std::ofstream(run) << ToJson(record);
  EXPECT_EQ(Explain({plan_, "--actual", run}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("run.json: the run is of another plan"));
}

TEST_F(ExplainCommandTest, AnswersBadInputWithOneClearMessage) {
  const std::string costs = folder_ / "costs.json";
  std::ofstream(costs) << ToJson(SmallGraph());
  const std::string other = folder_ / "other.json";
  std::ofstream(other) << "{\"a\": 1}";
  const std::string broken = folder_ / "broken.json";
  std::ofstream(broken) << ToJson(SmallPlan()).substr(0, 200);
  struct Row {
    Args args;
    const char* expected;
  };
  for (const Row& row : std::vector<Row>{
           {{folder_ / "none.json"}, "none.json"},
           {{costs}, "costs.json: this is a cost graph, not a plan"},
           {{other}, "other.json: plan: "},
           {{broken}, "broken.json: plan: the text is not JSON"},
           {{plan_, "--format", "pdf"}, "--format"},
           {{}, "plan is required"},
       }) {
    EXPECT_EQ(Explain(row.args), kExitUsage) << row.expected;
    EXPECT_THAT(err_, HasSubstr(row.expected));
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
    EXPECT_THAT(out_, IsEmpty());
  }
}

}  // namespace
}  // namespace autopart
