#include "pipeline/plan_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "pipeline/what_if.h"
#include "tests/pipeline/many_plans.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Plan Changed(const PlanChange& change) { return SimulateAgain(SmallPlan(), change)->plan; }

// Node 1 moved from stage 0 to stage 1.
Plan MovedCut() {
  Plan plan = Changed({});
  plan.stages[0].nodes = {0, 2};
  plan.stages[0].operators = 2;
  plan.stages[0].last_module = "first";
  plan.stages[1].nodes = {1, 3};
  plan.stages[1].operators = 2;
  plan.stages[1].first_module = "act";
  plan.edges = {{0, 1, {1}, true, 128, 128}};
  Cost(plan);
  return SimulateAgain(plan, {})->plan;
}

TEST(PlanDiff, OfAPlanWithItselfIsTheSame) {
  for (const auto& [name, plan] : ManyPlans()) {
    const PlanDiff diff = ComparePlans(plan, plan);
    EXPECT_TRUE(Same(diff)) << name;
    EXPECT_EQ(Verdict(diff), "step time the same");
  }
}

TEST(PlanDiff, SaysWhichCutMovedFromWhereToWhere) {
  EXPECT_EQ(absl::StrCat("\n", ToText(ComparePlans(Changed({}), MovedCut()))), R"(
step time up 10 %

step              29.3 → 32.3 ms                    +10 %
throughput        137 → 124 micro-batches/s         -9.3 %
peak memory       772 B

where the step goes
imbalance         3.00 → 6.00 ms                    +100 %

stage replicas  compute ms      peak memory            cut after
 0    1         4.00 → 3.00     672 B                  act → first
 1    1         6.00 → 7.00     772 B                  end
)");
}

TEST(PlanDiff, SaysThatThroughputIsAnotherQuestionWhereTheBatchGrew) {
  PlanChange change;
  change.micro_batches = 8;
  const PlanDiff diff = ComparePlans(Changed({}), Changed(change));
  EXPECT_EQ(Verdict(diff), "step time up 82 %, throughput up 9.9 %");
  EXPECT_THAT(ToText(diff), HasSubstr("\nmicro-batches     4 → 8\n"));
  EXPECT_THAT(ToText(diff), HasSubstr("[1 the same]"));
}

TEST(PlanDiff, CountsSamplesOnlyWhereBothPlansKnowThem) {
  Plan one = Changed({}), other = Changed({});
  one.micro_batch_samples = 8;
  EXPECT_EQ(ComparePlans(one, other).throughput_unit, "micro-batches/s");
  other.micro_batch_samples = 4;
  const PlanDiff diff = ComparePlans(one, other);
  EXPECT_EQ(diff.throughput_unit, "samples/s");
  EXPECT_EQ(Verdict(diff), "step time the same, throughput down 50 %");
}

TEST(PlanDiff, KnowsStagesThatOnlyOnePlanHas) {
  const std::vector<NamedPlan> plans = ManyPlans();
  Plan one = plans[1].plan, many = plans[2].plan;
  one.stages.resize(2);
  EXPECT_THAT(ToText(ComparePlans(one, many)), HasSubstr(" 3    new: "));
  EXPECT_THAT(ToText(ComparePlans(many, one)), HasSubstr(" 3    gone: "));
}

TEST(PlanDiff, ShowsTheStartOfALongCluster) {
  Plan other = Changed({});
  other.cluster = MixedCluster();
  other.memory_bytes = 0;
  EXPECT_THAT(ToText(ComparePlans(Changed({}), other)), HasSubstr(R"(
cluster           2 × h100 4.00 KiB, links 0.00102 GB/s, 250 us
                  → 2 hosts of 2 × h100 80.0 GiB, links 450 GB/s, 5.00 us, network 0.0125 GB/s shar…
)"));
}

TEST(PlanDiff, NamesDifferentModels) {
  Plan other = Changed({});
  other.model.hash = "another";
  EXPECT_THAT(Verdict(ComparePlans(Changed({}), other)),
              HasSubstr("; the plans are for different models"));
}

TEST(PlanDiff, HasPartsThatAddUpToTheStep) {
  const std::vector<NamedPlan> plans = ManyPlans();
  for (const auto& [name, plan] : plans) {
    const PlanDiff diff = ComparePlans(plans[0].plan, plan);
    Change<double> sum;
    for (const PartChange& part : diff.parts) {
      sum.before += part.ms.before;
      sum.after += part.ms.after;
    }
    EXPECT_NEAR(sum.before, diff.step_ms.before, 1e-6) << name;
    EXPECT_NEAR(sum.after, diff.step_ms.after, 1e-6) << name;
  }
}

TEST(PlanDiff, IsAtMost100ColumnsWide) {
  const std::vector<NamedPlan> plans = ManyPlans();
  for (const auto& [one, before] : plans) {
    for (const auto& [other, after] : plans) {
      for (const std::string& line :
           std::vector<std::string>(absl::StrSplit(ToText(ComparePlans(before, after)), '\n'))) {
        const auto columns =
            std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
        EXPECT_LE(columns, 100) << line;
        EXPECT_THAT(line, Not(testing::EndsWith(" ")));
      }
    }
  }
}

TEST(PlanDiff, IsWholeAsJson) {
  const PlanDiff diff = ComparePlans(Changed({}), MovedCut());
  const nlohmann::json json = nlohmann::json::parse(ToJson(diff));
  EXPECT_EQ(json["verdict"], Verdict(diff));
  EXPECT_EQ(json["step_ms"]["after"], diff.step_ms.after);
  EXPECT_EQ(json["stages"][0]["cut_after"]["before"], "act");
  EXPECT_EQ(json["stages"][0]["cut_after"]["after"], "first");
  EXPECT_EQ(json["choices"]["schedule"]["after"], "1f1b");
  EXPECT_EQ(json["parts_ms"].size(), 7);
}

}  // namespace
}  // namespace autopart
