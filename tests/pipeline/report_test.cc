#include "pipeline/report.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/pipeline/many_plans.h"
#include "tests/pipeline/small_plan.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const Plan& plan) {
  return absl::StrCat("\n", *RenderPlan(plan, "text", {"plan.json", 0}));
}

TEST(TextReport, OfAPipeline) {
  EXPECT_EQ(Text(SmallPlan()), R"(
small.pt      18 parameters (72 B), 4 operators
cluster       2 × h100 4.00 KiB, links 0.00102 GB/s, 250 us
batch         4 micro-batches, adam, seed 18446744073709551615

PLAN          2 stages × 1 replica · 4 micro-batches · schedule 1f1b
STEP          29.3 ms predicted · 137 micro-batches/s · 1.37× the compute of one device (68 %)
BOUND         20.0 ms: no plan on these 2 devices is faster (total work / devices).
              Gap 9.29 ms (46 %):
                bubble 5.00 · imbalance 3.00 · exposed messages 0.75 · exposed reduction 0.54

stage  ranks    from … to                ops   params  fwd ms  bwd ms   send/mb  of 4.00 KiB    idle
 0     0        first … act                3       13    1.50    2.50     128 B  ██░░░░░░ 0.977 25 %
 1*    1        last                       1        5    2.00    4.00     128 B  ██░░░░░░ 0.879  0 %
total           (* slowest)                4       18    3.50    6.50
and copies: 1 operator, 10 parameters shared by stages

timeline (0-9 forward, a-j backward, . idle; a column is 1.50 ms)
  0 |01...aa2.bb3.cc..dd.
  1 |.00aa11bb22cc33dd...

WHY   cut 0|1 after act: 1 value, 128 B forward, 128 B back
      memory: stage 0 is the fullest, 0.977 of 4.00 KiB
      not chosen: 1×2 1f1b 33.5 ms
TRY   --micro-batches 8 (twice the batch): 137 → 150 micro-batches/s (+10 %), 0.77 of 4.00 KiB
TRUST 50 % of the compute time was measured, the rest is estimated

saved plan.json
)");
}

TEST(TextReport, OfOneStage) {
  Plan plan = SmallPlan();
  plan.cluster.hosts[0].devices[0].count = 2;
  plan.edges.clear();
  PlanStage& stage = plan.stages[0];
  stage.ranks = {0, 1};
  stage.nodes = {0, 1, 2, 3};
  stage.owned_parameters = {0, 1, 2};
  stage.operators = 4;
  stage.parameters = 18;
  stage.send_bytes = 0;
  stage.copied_nodes.clear();
  plan.stages.pop_back();
  plan.measured_fraction = 1;
  plan.bound_ms = 20;
  Cost(plan);
  ASSERT_TRUE(Validate(plan).ok()) << Validate(plan);
  EXPECT_EQ(Text(plan), R"(
small.pt      18 parameters (72 B), 4 operators
cluster       2 × h100 4.00 KiB, links 0.00102 GB/s, 250 us
batch         4 micro-batches, adam, seed 18446744073709551615

PLAN          1 stage × 2 replicas · 4 micro-batches · schedule 1f1b
STEP          20.6 ms predicted · 195 micro-batches/s · 1.95× the compute of one device (97 %)
BOUND         20.0 ms: no plan on these 2 devices is faster (total work / devices).
              Gap 0.559 ms (3 %):
                exposed reduction 0.5586

stage  ranks    from … to                ops   params  fwd ms  bwd ms   send/mb  of 4.00 KiB    idle
 0     0,1      first … act                4       18    3.50    6.50         –  ██░░░░░░ 0.977 25 %
total                                      4       18    3.50    6.50

timeline (0-9 forward, a-j backward, . idle; a column is 3.50 ms)
  0 |0aa2cc

WHY   memory: stage 0 is the fullest, 0.977 of 4.00 KiB
TRUST all operator times were measured

saved plan.json
)");
}

TEST(TextReport, OfInference) {
  Plan plan = SmallPlan();
  plan.schedule = "forward";
  plan.edges[0] = ForwardOnly(plan.edges[0]);
  Cost(plan);
  plan.stages[1].send_bytes = 0;
  plan.measured_fraction = 0;
  plan.bound_ms = 7;
  plan.alternatives.clear();
  ASSERT_TRUE(Validate(plan).ok()) << Validate(plan);
  EXPECT_EQ(Text(plan), R"(
small.pt      18 parameters (72 B), 4 operators
cluster       2 × h100 4.00 KiB, links 0.00102 GB/s, 250 us
batch         4 micro-batches, inference, seed 18446744073709551615

PLAN          2 stages × 1 replica · 4 micro-batches · schedule forward
STEP          9.88 ms predicted · 405 micro-batches/s · 1.42× the compute of one device (71 %)
BOUND         7.00 ms: no plan on these 2 devices is faster (total work / devices).
              Gap 2.88 ms (41 %):
                bubble 1.75 · imbalance 0.75 · exposed messages 0.38

stage  ranks    from … to                ops   params  fwd ms  bwd ms   send/mb  of 4.00 KiB    idle
 0     0        first … act                3       13    1.50       –     128 B  ██░░░░░░ 0.977 25 %
 1*    1        last                       1        5    2.00       –         –  ██░░░░░░ 0.879  0 %
total           (* slowest)                4       18    3.50       –
and copies: 1 operator, 10 parameters shared by stages

timeline (0-9 forward, . idle; a column is 1.50 ms)
  0 |0123...
  1 |.001233

WHY   cut 0|1 after act: 1 value, 128 B forward
      memory: stage 0 is the fullest, 0.977 of 4.00 KiB
TRY   --micro-batches 8 (twice the batch): 405 → 448 micro-batches/s (+10 %), 0.398 of 4.00 KiB
TRUST operator times are roofline estimates for h100; none was measured

saved plan.json
)");
}

TEST(JsonReport, IsThePlan) {
  EXPECT_EQ(*RenderPlan(SmallPlan(), "json", {}), ToJson(SmallPlan()));
}

TEST(RenderPlan, ListsTheFormatsItKnows) {
  EXPECT_THAT(std::string(RenderPlan(SmallPlan(), "pdf", {}).status().message()),
              HasSubstr("unknown format 'pdf': known are text, json"));
}

// p stages with long names, big numbers and edges between all.
Plan WidePlan(std::mt19937& random, int p, int d) {
  Plan plan = SmallPlan();
  plan.stages.clear();
  plan.edges.clear();
  plan.reductions.clear();
  plan.cluster = *UniformCluster("h100", p * d);
  plan.micro_batches = 12 * d;
  plan.memory_bytes = int64_t{80} << 30;
  plan.model = {"wide.pt", "wide", 0, 0, 0, true};
  plan.bound_kind = "path";
  for (int s = 0; s < p; ++s) {
    PlanStage stage;
    stage.index = s;
    for (int r = 0; r < d; ++r) stage.ranks.push_back(r * p + s);
    stage.operators = random() % 5000;
    stage.parameters = random() % 2000000000;
    for (int n = 0; n < stage.operators; ++n) {
      stage.nodes.push_back(plan.model.operators + n);
    }
    plan.model.operators += stage.operators;
    plan.model.parameters += stage.parameters;
    stage.first_module = absl::StrCat("model.language_model.transformer.layers.", s, ".attention");
    stage.last_module = absl::StrCat("model.language_model.transformer.layers.", s, ".mlp.output");
    stage.forward_ms = 1 + random() % 100000 / 977.0;
    stage.backward_ms = 2 * stage.forward_ms;
    stage.send_bytes = random();
    stage.peak_memory_bytes = plan.memory_bytes / (1 + random() % 5);
    stage.idle_fraction = 1;
    plan.stages.push_back(stage);
    for (int t = 0; t < s; ++t) plan.edges.push_back({t, s, {t}, true, 1 << 28, 1 << 28});
  }
  std::sort(plan.edges.begin(), plan.edges.end(), [](const StageEdge& a, const StageEdge& b) {
    return std::pair(a.from, a.to) < std::pair(b.from, b.to);
  });
  plan.predicted_step_ms = 123456;
  plan.bound_ms = 12345;
  for (int i = 0; i < 9; ++i) {
    plan.alternatives.push_back({i + 1, plan.micro_batches, 64, 0, "gpipe", "none", false, 1234,
                                 "does not fit: stage 3 needs 1234 of 80.0 GiB"});
  }
  return plan;
}

int ColumnsOf(const std::string& line) {
  return std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

TEST(TextReport, IsAtMost100ColumnsWideAndOfBoundedLength) {
  std::mt19937 random(1);
  std::vector<NamedPlan> plans = ManyPlans();
  for (const auto& [p, d] : {std::pair(1, 1), {2, 64}, {8, 1}, {16, 8}, {48, 2}}) {
    plans.push_back({absl::StrCat(p, " x ", d), WidePlan(random, p, d)});
  }
  for (auto& [name, plan] : plans) {
    plan.model.name = "a-file-with-a-name-that-goes-on-and-on-and-tells-everything-about-it.json";
    const std::vector<std::string> lines = absl::StrSplit(Text(plan), '\n');
    EXPECT_LT(lines.size(), 90);
    for (const std::string& line : lines) {
      EXPECT_LE(ColumnsOf(line), 100) << name << ": " << line;
      EXPECT_THAT(line, Not(testing::EndsWith(" "))) << name;
    }
  }
}

std::string LineOf(const std::string& text, const std::string& begin) {
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    if (line.rfind(begin, 0) == 0) return line;
  }
  return "";
}

TEST(TextReport, DescribesHostsThatDiffer) {
  Plan plan = SmallPlan();
  plan.memory_bytes = 0;
  plan.cluster = MixedCluster();
  EXPECT_THAT(Text(plan), HasSubstr(R"(
cluster       2 hosts of 2 × h100 80.0 GiB, links 450 GB/s, 5.00 us,
              network 0.0125 GB/s shared, 20.0 us, 1 host of 4 × v100 32.0 GiB,
              links 150 GB/s, 5.00 us, network 0.00125 GB/s, 50.0 us
)"));
  EXPECT_THAT(Text(plan), HasSubstr("× the compute of one h100"));
  plan.cluster = *UniformCluster("h100", 20);
  EXPECT_THAT(Text(plan), HasSubstr("\ncluster       2 hosts of 8 × h100 80.0 GiB, "
                                    "1 host of 4 × h100 80.0 GiB, links 450 GB/s, 5.00 us,\n"));
}

TEST(TextReport, CountsSamplesWhereTheyAreKnown) {
  Plan plan = SmallPlan();
  plan.micro_batch_samples = 8;
  EXPECT_THAT(LineOf(Text(plan), "STEP"), HasSubstr(" · 1093 samples/s · "));
  EXPECT_THAT(LineOf(Text(plan), "batch"), HasSubstr("4 micro-batches of 8 samples, adam"));
}

TEST(TextReport, SaysWhatIsNotUsualInThePlanLine) {
  Plan plan = SmallPlan();
  plan.dtype = "bf16";
  plan.shard_optimizer = true;
  plan.reduce_bucket_bytes = 1 << 20;
  plan.stages[0].recomputed_nodes = {0, 1};
  EXPECT_EQ(LineOf(Text(plan), "PLAN"),
            "PLAN          2 stages × 1 replica · 4 micro-batches · schedule 1f1b · bf16");
  EXPECT_THAT(Text(plan),
              HasSubstr("\n              recompute in 1 of 2 stages · optimizer sharded · "
                        "reduced in buckets of 1.00 MiB\n"));
  plan.stages[1].recomputed_nodes = {3};
  EXPECT_THAT(Text(plan), HasSubstr(" · bf16 · recompute\n              optimizer sharded"));
}

TEST(TextReport, SaysWhetherThePlanIsOptimal) {
  Plan plan = SmallPlan();
  EXPECT_THAT(Text(plan), HasSubstr("              Gap 9.29 ms (46 %):\n"));
  plan.optimal = true;
  EXPECT_THAT(Text(plan), HasSubstr("Gap 9.29 ms (46 %), optimal for this cost model:\n"));
  plan.predicted_step_ms = plan.bound_ms;
  EXPECT_THAT(Text(plan), HasSubstr("Gap 0 ms (0 %), optimal for this cost model\n"));
}

TEST(TextReport, HasRowsThatAddUpToTheTotals) {
  std::mt19937 random(2);
  for (const int p : {3, 8, 48}) {
    const std::string text = Text(WidePlan(random, p, 1));
    // Columns from the right place of each row: ops, M params, fwd, bwd.
    std::vector<double> sums(4), totals(4);
    bool in_table = false;
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
      if (line.rfind("stage", 0) == 0) {
        in_table = true;
        continue;
      }
      if (!in_table || line.size() < 60) continue;
      // By columns, not bytes.
      std::vector<std::string> cells;
      std::string plain;
      for (const char c : line) {
        if ((c & 0xC0) != 0x80) plain += (c & 0x80) ? '?' : c;
      }
      int begin = 37;
      for (const int width : {7, 9, 8, 8}) {
        std::string cell = plain.substr(begin, width);
        cell.erase(std::remove(cell.begin(), cell.end(), ','), cell.end());
        cells.push_back(cell);
        begin += width;
      }
      const bool total = line.rfind("total", 0) == 0;
      for (int i = 0; i < 4; ++i) (total ? totals : sums)[i] += std::stod(cells[i]);
      if (total) break;
    }
    for (int i = 0; i < 4; ++i)
      EXPECT_NEAR(sums[i], totals[i], 1e-6 * (1 + totals[i])) << p << text;
    EXPECT_GT(totals[0], 0);
  }
}

TEST(Report, TrustNamesTheFactorThatARunGave) {
  Plan plan = SmallPlan();
  EXPECT_THAT(*RenderPlan(plan, "text", {}), Not(HasSubstr("factor")));
  plan.costs_scale = 1.0625;
  EXPECT_THAT(*RenderPlan(plan, "text", {}), HasSubstr("; a run gave them the factor 1.062"));
}

}  // namespace
}  // namespace autopart
