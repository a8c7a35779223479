#include "runtime/cli/diff_command.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/plan_diff.h"
#include "tests/pipeline/small_plan.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class DiffCommandTest : public ::testing::Test {
 protected:
  DiffCommandTest()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(folder_);
    before_ = folder_ / "before.json";
    slower_ = folder_ / "slower.json";
    Plan plan = SmallPlan();
    std::ofstream(before_) << ToJson(plan);
    plan.predicted_step_ms *= 1.04;
    std::ofstream(slower_) << ToJson(plan);
  }
  ~DiffCommandTest() override { std::filesystem::remove_all(folder_); }

  int Diff(const Args& args) {
    std::ostringstream out, err;
    const int status = DiffCommand(args, {out, err});
    out_ = out.str();
    err_ = err.str();
    return status;
  }

  std::filesystem::path folder_;
  std::string before_, slower_;
  std::string out_, err_;
};

TEST_F(DiffCommandTest, BeginsWithTheVerdict) {
  ASSERT_EQ(Diff({before_, slower_}), kExitGood) << err_;
  EXPECT_THAT(out_, StartsWith("step time up 4.0 %"));
  ASSERT_EQ(Diff({before_, before_}), kExitGood) << err_;
  EXPECT_THAT(out_, StartsWith("step time the same\n"));
  EXPECT_THAT(err_, IsEmpty());
}

TEST_F(DiffCommandTest, FailsWhereTheStepIsUpByMoreThanAllowed) {
  EXPECT_EQ(Diff({before_, slower_, "--fail-above", "5"}), kExitGood) << err_;
  EXPECT_EQ(Diff({before_, slower_, "--fail-above", "3"}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("takes 4.0 % more than that of"));
  EXPECT_THAT(err_, HasSubstr("--fail-above allows 3 %"));
  EXPECT_THAT(out_, StartsWith("step time up 4.0 %"));
  EXPECT_EQ(Diff({slower_, before_, "--fail-above", "0"}), kExitGood) << err_;
}

TEST_F(DiffCommandTest, KeepsStdoutForJson) {
  EXPECT_EQ(Diff({before_, slower_, "--format", "json", "--fail-above", "3"}), kExitFailed);
  Plan slower = SmallPlan();
  slower.predicted_step_ms *= 1.04;
  EXPECT_EQ(out_, ToJson(ComparePlans(SmallPlan(), slower)));
}

TEST_F(DiffCommandTest, AnswersBadInputWithOneClearMessage) {
  struct Row {
    Args args;
    const char* expected;
  };
  for (const Row& row : std::vector<Row>{
           {{before_}, "after is required"},
           {{before_, folder_ / "none.json"}, "none.json"},
           {{before_, slower_, "--fail-above", "-1"}, "--fail-above"},
           {{before_, slower_, "--fail-above", "much"}, "--fail-above"},
           {{before_, slower_, "--format", "html"}, "--format"},
       }) {
    EXPECT_EQ(Diff(row.args), kExitUsage) << row.expected;
    EXPECT_THAT(err_, HasSubstr(row.expected));
    EXPECT_THAT(out_, IsEmpty());
  }
}

}  // namespace
}  // namespace autopart
