#include "runtime/cli/simulate_command.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/what_if.h"
#include "tests/pipeline/small_plan.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SimulateCommandTest : public ::testing::Test {
 protected:
  SimulateCommandTest()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(folder_);
    plan_ = folder_ / "plan.json";
    Save(Confirmed());
  }
  ~SimulateCommandTest() override { std::filesystem::remove_all(folder_); }

  // The small plan with the memory that a simulation finds.
  static Plan Confirmed() { return SimulateAgain(SmallPlan(), {})->plan; }
  void Save(const Plan& plan) { std::ofstream(plan_) << ToJson(plan); }

  int Simulate(Args args) {
    args.insert(args.begin(), plan_);
    std::ostringstream out, err;
    const int status = SimulateCommand(args, {out, err});
    out_ = out.str();
    err_ = err.str();
    return status;
  }

  std::filesystem::path folder_;
  std::string plan_;
  std::string out_, err_;
};

TEST_F(SimulateCommandTest, ConfirmsAPlanThatNobodyTouched) {
  ASSERT_EQ(Simulate({}), kExitGood) << err_;
  EXPECT_THAT(out_, HasSubstr("STEP          29.3 ms predicted"));
  EXPECT_THAT(out_, HasSubstr("The simulation confirms " + plan_));
  EXPECT_THAT(err_, IsEmpty());
}

TEST_F(SimulateCommandTest, SaysWhereAPlanEditedByHandIsWrong) {
  Plan plan = Confirmed();
  plan.predicted_step_ms = 12;
  plan.stages[1].peak_memory_bytes = 1;
  Save(plan);
  ASSERT_EQ(Simulate({}), kExitGood) << err_;
  EXPECT_THAT(out_, HasSubstr("STEP          29.3 ms predicted"));
  EXPECT_THAT(out_, HasSubstr(plan_ + " → simulated: step time up 144 %"));
  EXPECT_THAT(out_, HasSubstr("1 B → 772 B"));
  EXPECT_THAT(out_, HasSubstr("[1 the same]"));
}

TEST_F(SimulateCommandTest, KeepsStdoutForTheFormat) {
  ASSERT_EQ(Simulate({"--micro-batches", "8", "--format", "json"}), kExitGood) << err_;
  const absl::StatusOr<Plan> plan = PlanFromJson(out_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->micro_batches, 8);
  EXPECT_THAT(err_, HasSubstr("step time up 82 %"));
}

TEST_F(SimulateCommandTest, TakesAnotherScheduleAndNumberOfMicroBatches) {
  ASSERT_EQ(Simulate({"--schedule", "gpipe", "--micro-batches", "16"}), kExitGood) << err_;
  EXPECT_THAT(out_, HasSubstr("16 micro-batches · schedule gpipe"));
  EXPECT_THAT(out_, HasSubstr("BOUND         none"));
}

TEST_F(SimulateCommandTest, SaysWhatDoesNotFit) {
  EXPECT_EQ(Simulate({"--memory", "100"}), kExitNothingFits);
  EXPECT_THAT(err_, HasSubstr("does not fit: stage 1 needs 772 of 100 B"));
  EXPECT_THAT(out_, HasSubstr("STEP"));
}

TEST_F(SimulateCommandTest, TakesAnotherCluster) {
  const std::string cluster = folder_ / "cluster.yaml";
  std::ofstream(cluster) << "hosts:\n- devices: [{device: a100, count: 2}]\n"
                            "  link: {bandwidth: 1 GB/s, latency: 5 us}\n";
  ASSERT_EQ(Simulate({"--cluster", cluster}), kExitGood) << err_;
  EXPECT_THAT(out_, HasSubstr("2 × a100"));
  std::ofstream(cluster) << "hosts:\n- devices: [{device: a100, count: 3}]\n"
                            "  link: {bandwidth: 1 GB/s, latency: 5 us}\n";
  EXPECT_EQ(Simulate({"--cluster", cluster}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("the plan is for 2 devices, the cluster has 3"));
}

TEST_F(SimulateCommandTest, RefusesWhatThePlanCannotTake) {
  struct Row {
    Args args;
    const char* expected;
  };
  for (const Row& row : std::vector<Row>{
           {{"--schedule", "forward"}, "a plan for training (schedule 1f1b) cannot become"},
           {{"--schedule", "zigzag"}, "unknown schedule 'zigzag'"},
           {{"--micro-batches", "0"}, "at least 1 micro-batch"},
           {{"--memory", "0"}, "--memory must be at least 1 byte"},
           {{"--memory", "much"}, "--memory: "},
           {{"--cluster", "none.yaml"}, "none.yaml"},
       }) {
    EXPECT_EQ(Simulate(row.args), kExitUsage) << row.expected << err_;
    EXPECT_THAT(err_, HasSubstr(row.expected));
    EXPECT_THAT(out_, IsEmpty());
  }
}

}  // namespace
}  // namespace autopart
