#include "pipeline/run_record.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/small_plan.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;

RunRecord SmallRecord(const Plan& plan) {
  RunRecord record;
  record.plan_hash = PlanHash(plan);
  record.model_hash = plan.model.hash;
  record.autopart_version = "0.1";
  record.torch_version = "2";
  record.processor = "a processor";
  record.transport = "threads";
  record.pinned = true;
  record.warm_up_steps = 3;
  record.step_s = {0.25, 0.125, 0.5};
  record.typical_step = 1;
  record.losses = {1.5, -0.5, 0.25};
  const Schedule schedule = *BuildSchedule(plan);
  for (int r = 0; r < static_cast<int>(schedule.ranks.size()); ++r) {
    RunRank rank{r, {}, 100, 900, 5000};
    double at = 0;
    for (const Action& action : schedule.ranks[r]) {
      rank.actions.push_back({action, at, at + 0.25, 0.125, 0.25});
      at += 0.25;
    }
    record.ranks.push_back(rank);
  }
  return record;
}

TEST(RunRecord, IsTheSameAfterSavingAndLoading) {
  const RunRecord record = SmallRecord(SmallPlan());
  const absl::StatusOr<RunRecord> loaded = RunRecordFromJson(ToJson(record));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(*loaded, record);
  EXPECT_TRUE(Validate(*loaded, SmallPlan()).ok());
}

TEST(RunRecord, KeepsALossThatIsNotFinite) {
  RunRecord record = SmallRecord(SmallPlan());
  record.losses[1] = std::nan("");
  const absl::StatusOr<RunRecord> loaded = RunRecordFromJson(ToJson(record));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(std::isnan(loaded->losses[1]));
}

TEST(RunRecord, QuantilesAreOfTheCountedSteps) {
  RunRecord record;
  for (int i = 100; i >= 0; --i) record.step_s.push_back(i);
  EXPECT_EQ(record.StepQuantile(0.1), 10);
  EXPECT_EQ(record.StepQuantile(0.5), 50);
  EXPECT_EQ(Quantile({}, 0.5), 0);
  EXPECT_EQ(Quantile({7}, 0.9), 7);
}

TEST(RunRecord, APlanThatWasOnlyCostedAnewHasTheSameHash) {
  const Plan plan = SmallPlan();
  Plan slower = plan;
  slower.predicted_step_ms *= 2;
  slower.stages[0].forward_ms *= 2;
  slower.cluster.hosts[0].link.latency_ms = 7;
  EXPECT_EQ(PlanHash(slower), PlanHash(plan));
  Plan other = plan;
  other.schedule = "gpipe";
  EXPECT_NE(PlanHash(other), PlanHash(plan));
  other = plan;
  other.stages[0].nodes = {0, 1};
  other.stages[1].nodes = {2, 3};
  EXPECT_NE(PlanHash(other), PlanHash(plan));
}

TEST(RunRecord, OfAnotherPlanOrModelIsRefused) {
  const Plan plan = SmallPlan();
  RunRecord record = SmallRecord(plan);
  Plan other = plan;
  other.micro_batches = 8;
  EXPECT_THAT(Validate(record, other).ToString(), HasSubstr("another plan"));
  record.model_hash = "large";
  EXPECT_THAT(Validate(record, plan).ToString(), HasSubstr("another model"));
  record = SmallRecord(plan);
  record.ranks[1].actions.pop_back();
  EXPECT_THAT(Validate(record, plan).ToString(), HasSubstr("the actions of rank 1"));
}

TEST(RunRecord, BrokenFilesAreRefusedWithTheFieldAtFault) {
  const std::string good = ToJson(SmallRecord(SmallPlan()));
  const auto error = [](const std::string& text) {
    const absl::StatusOr<RunRecord> record = RunRecordFromJson(text);
    EXPECT_EQ(record.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(record.status().message());
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  EXPECT_THAT(error(good.substr(0, good.size() / 2)), HasSubstr("not JSON"));
  EXPECT_THAT(error("{}"), HasSubstr("no record of a run"));
  EXPECT_THAT(error("[1]"), HasSubstr("no record of a run"));
  EXPECT_THAT(error(with("\"version\": 1", "\"version\": 2")), HasSubstr("it has version 2"));
  EXPECT_THAT(error(with("\"pinned\": true", "\"pinned\": 3")), HasSubstr("pinned"));
  EXPECT_THAT(error(with("[0.25,0.125,0.5]", "[]")), HasSubstr("no steps"));
  EXPECT_THAT(error(with("\"typical_step\": 1", "\"typical_step\": 3")), HasSubstr("typical_step"));
  EXPECT_THAT(error(with("\"rank\": 1", "\"rank\": 0")), HasSubstr("ranks[1].rank is 0"));
  EXPECT_THAT(error(with("\"0F0\"", "\"0Q0\"")), HasSubstr("ranks[0].actions[0]"));
  EXPECT_THAT(error(with("\"peak_bytes\": 900", "\"peak_bytes\": -1")),
              HasSubstr("ranks[0].peak_bytes"));
  EXPECT_THAT(error(with("\"end_s\": 0.25", "\"end_s\": null")),
              HasSubstr("ranks[0].actions[0].end_s"));
}

}  // namespace
}  // namespace autopart
