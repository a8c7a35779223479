#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "pipeline/report.h"
#include "tests/pipeline/small_plan.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Render(const Plan& plan, const char* format) {
  return absl::StrCat("\n", *RenderPlan(plan, format, {}));
}

TEST(MermaidReport, IsTheStageGraph) {
  EXPECT_EQ(Render(SmallPlan(), "mermaid"), R"(
flowchart LR
  s0["stage 0 · rank 0<br/>first … act<br/>3 operators · forward 1.50 ms, backward 2.50 ms<br/>peak memory 1000 B"]
  s1["stage 1 · rank 1<br/>last<br/>1 operator · forward 2.00 ms, backward 4.00 ms<br/>peak memory 900 B"]
  s0 -->|"128 B, 128 B back"| s1
  s0 -.-|"shared parameters, 40 B"| s1
)");
}

TEST(DotReport, IsTheStageGraph) {
  EXPECT_EQ(Render(SmallPlan(), "dot"), R"(
digraph plan {
  rankdir=LR;
  node [shape=box, style=rounded, fontname="sans-serif"];
  edge [fontname="sans-serif"];
  s0 [label="stage 0 · rank 0\nfirst … act\n3 operators · forward 1.50 ms, backward 2.50 ms\npeak memory 1000 B"];
  s1 [label="stage 1 · rank 1\nlast\n1 operator · forward 2.00 ms, backward 4.00 ms\npeak memory 900 B"];
  s0 -> s1 [label="128 B, 128 B back"];
  s0 -> s1 [dir=none, style=dashed, constraint=false, label="shared parameters, 40 B"];
}
)");
}

Plan WithNames(const std::string& name) {
  Plan plan = SmallPlan();
  plan.stages[0].first_module = name;
  return plan;
}

TEST(MermaidReport, EscapesModuleNames) {
  const std::string text = Render(WithNames("a<b>&\"c\"`#;\\"), "mermaid");
  EXPECT_THAT(text, HasSubstr("a#lt;b#gt;#amp;#quot;c#quot;#96;#35;;#92; … act"));
}

TEST(DotReport, EscapesModuleNames) {
  const std::string text = Render(WithNames("a<b>&\"c\"\\"), "dot");
  EXPECT_THAT(text, HasSubstr("a<b>&\\\"c\\\"\\\\ … act"));
}

TEST(StageGraph, OfInferenceHasNothingBack) {
  Plan plan = SmallPlan();
  plan.schedule = "forward";
  plan.edges[0] = ForwardOnly(plan.edges[0]);
  Cost(plan);
  for (const char* format : {"mermaid", "dot"}) {
    EXPECT_THAT(Render(plan, format), Not(HasSubstr("back"))) << format;
  }
}

TEST(StageGraph, SaysHowManyStagesItLeavesOut) {
  Plan plan = SmallPlan();
  const PlanStage last = plan.stages[1];
  for (int s = 2; s < 100; ++s) {
    plan.stages.push_back(last);
    plan.stages.back().index = s;
    plan.edges.push_back({s - 1, s, {2}, true, 128, 128});
  }
  for (const char* format : {"mermaid", "dot"}) {
    const std::string text = Render(plan, format);
    EXPECT_THAT(text, HasSubstr("36 other stages")) << format;
    EXPECT_THAT(text, HasSubstr("s63")) << format;
    EXPECT_THAT(text, Not(HasSubstr("s64"))) << format;
  }
}

}  // namespace
}  // namespace autopart
